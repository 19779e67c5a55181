"""One reply for the server: made in the engine's thread, handed over to the one that answers.

It knows the engine's events and what of them goes out. It refuses to know HTTP. A reply ends within
a step once its `stop` is set, whoever sets it: a client that went away, a stop text that was met,
or the server's end.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

from app.server.errors import SERVER, ApiError, api_error_of
from app.server.request import ChatRequest
from app.server.stops import Outlet
from app.server.turns import LOOK_SECONDS
from engine.errors import UnblurError
from engine.protocol import Engine
from engine.types import (
    Event,
    Finished,
    GenerationStats,
    ModelInfo,
    Started,
    StepTaken,
    TokenState,
)

log = logging.getLogger("unblur.server")


@dataclass(frozen=True)
class Begun:
    prompt_tokens: int
    path: str


@dataclass(frozen=True)
class Piece:
    """Text of the answer that is final and was not sent before."""

    text: str


@dataclass(frozen=True)
class Step:
    """One denoising step, as the extension sends it (docs/server.md)."""

    document: dict[str, object]


@dataclass(frozen=True)
class Ended:
    """reason: as of `engine.types.StopReason`, or "stop_text"."""

    reason: str
    stats: GenerationStats


Item = Begun | Piece | Step | Ended


class EitherStop(threading.Event):
    """Two events read as one. Only for readers that ask `is_set`, as engines do."""

    def __init__(self, first: threading.Event, second: threading.Event) -> None:
        super().__init__()
        self._both = (first, second)

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._both)


class ModelSource(Protocol):
    """Who has the model. Both methods are called from any thread."""

    def info(self) -> ModelInfo:
        """The loaded model. Raises ApiError 503 when there is none."""
        ...

    def submit(self, reply: Reply) -> None:
        """Has `reply.run` called in the engine's thread soon, or `reply.refuse` if it cannot be."""
        ...


class Reply:
    """A request on its way. `run` is called once in the engine's thread, `items` is read by
    another."""

    def __init__(self, chat: ChatRequest) -> None:
        self.chat = chat
        self.stop = threading.Event()
        self._items: queue.SimpleQueue[Item | ApiError] = queue.SimpleQueue()

    def run(self, engine: Engine, other_stop: threading.Event | None = None) -> None:
        """Makes the reply. other_stop: ends it, too. Raises whatever the engine raised, after the
        reader was told."""
        stop = self.stop if other_stop is None else EitherStop(self.stop, other_stop)
        outlet = Outlet(self.chat.stops)
        ended = False
        try:
            if engine.info.name != self.chat.model:
                raise no_model(
                    f"The model {self.chat.model} was replaced while the request waited.",
                    "Ask again, for the model that is loaded now.",
                )
            for event in engine.generate(self.chat.request, stop):
                for item in self._items_of(event, outlet, engine):
                    self._items.put(item)
                    ended = ended or isinstance(item, Ended)
                if outlet.found:
                    self.stop.set()
            if not ended:
                raise RuntimeError("the engine ended a reply without saying how")
        except Exception as error:
            if not isinstance(error, UnblurError):
                log.error("a reply failed", exc_info=error)
            self._items.put(api_error_of(error))
            raise

    def refuse(self, error: ApiError) -> None:
        """Instead of `run`: the reply cannot be made."""
        self._items.put(error)

    def items(self, check: Callable[[], None]) -> Generator[Item]:
        """What comes of it, up to `Ended`. `check` is called while waiting; when it raises, or the
        reader leaves, the reply is stopped, and its end is waited for. Raises ApiError."""
        over = False
        try:
            while not over:
                item = self._next(check)
                over = not isinstance(item, (Begun, Piece, Step))
                if isinstance(item, ApiError):
                    raise item
                yield item
        finally:
            self.stop.set()
            while not over:  # the turn is not given on while the engine is at work
                over = not isinstance(self._items.get(), (Begun, Piece, Step))

    def _next(self, check: Callable[[], None]) -> Item | ApiError:
        while True:
            check()
            try:
                return self._items.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue

    def _items_of(self, event: Event, outlet: Outlet, engine: Engine) -> Iterator[Item]:
        if isinstance(event, Started):
            yield Begun(event.prompt_tokens, event.path)
        elif isinstance(event, StepTaken):
            if self.chat.steps and not outlet.found:
                yield Step(step_document(event, engine))
        else:
            text = outlet.more(event.text, final=isinstance(event, Finished))
            if text:
                yield Piece(text)
            if isinstance(event, Finished):
                yield Ended("stop_text" if outlet.found else event.reason, event.stats)


def step_document(event: StepTaken, engine: Engine) -> dict[str, object]:
    """A step as JSON: lists with one entry for each position of the block, None where no forward
    has judged it."""
    states = [TokenState(int(state)) for state in event.state]
    return {
        "block": event.block,
        "step": event.step,
        "block_start": event.block_start,
        "forwards": event.forwards,
        "seconds": round(event.seconds, 6),
        "ids": event.ids.tolist(),
        "pieces": list(engine.pieces(event.ids.tolist())),
        "states": [state.name.lower() for state in states],
        "confidence": [_finite(value) for value in event.confidence.tolist()],
        "entropy": [_finite(value) for value in event.entropy.tolist()],
        "edited_from": [None if value < 0 else value for value in event.edited_from.tolist()],
    }


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def no_model(message: str, action: str) -> ApiError:
    return ApiError(503, "model_not_loaded", message, action, kind=SERVER)
