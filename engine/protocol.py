"""The protocol between the engine and whoever drives it: one reply is an iterator of events.

Two implementations: `engine.engine.TorchEngine` (the real one) and `engine.fake.FakeEngine`
(scripted, for the window's tests). Knows no torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from engine.trace import Fork, Trace, TraceHeader
from engine.trace.attribution import Attribution, Reach
from engine.types import Event, GenerateRequest, LoadProgress, Message, ModelInfo

ProgressCallback = Callable[[LoadProgress], None]


class Engine(Protocol):
    """A loaded model. One reply at a time; every method is called from one worker thread."""

    @property
    def info(self) -> ModelInfo: ...

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Length of the templated prompt in tokens."""
        ...

    def generate(
        self, request: GenerateRequest, stop: threading.Event | None = None
    ) -> Iterator[Event]:
        """Yields Started, then StepTaken and BlockFinished, then exactly one Finished. `stop` is
        read once a step and ends the reply within one step (Finished with reason "stopped"). Raises
        UnblurError on failure; the engine stays usable afterwards.
        """
        ...

    def trace_header(self, request: GenerateRequest) -> TraceHeader:
        """What a trace of the reply says of itself before it begins. Raises RequestError as
        `generate` does."""
        ...

    def fork(self, fork: Fork, stop: threading.Event | None = None) -> Iterator[Event]:
        """A recorded reply again, with a change from a step on: all its events, from the first
        step's. Raises as `generate`, and TraceError for what cannot be forked."""
        ...

    def attribute(
        self,
        trace: Trace,
        step: int,
        position: int,
        reach: Reach = "near",
        stop: threading.Event | None = None,
    ) -> Attribution:
        """How much each token accepted before adds to the confidence of one absolute position in
        one step (row of the trace). Raises TraceError for what cannot be asked, RequestError
        `request.stopped`, RuntimeFailure."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens dropped."""
        ...

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Display text of each token alone (special tokens by their name), for a canvas."""
        ...

    def unload(self) -> None:
        """Gives the memory back. The engine cannot be used afterwards."""
        ...


class EngineLoader(Protocol):
    """Loads a model folder; what the window's worker calls. `stop` abandons the load (raises
    `load.stopped`).
    """

    def __call__(self, path: str, progress: ProgressCallback, stop: threading.Event) -> Engine: ...
