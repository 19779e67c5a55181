"""The engine's thread: loads, generates and unloads, one thing at a time, and never touches a
widget.

It knows the engine protocol and how every error becomes a `Failure`. It refuses to know who
listens. torch is imported here, inside the thread, when a load starts, and nowhere else in the app.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.backend.conversations import Failure, Figures
from app.backend.preload import collector_resting, preload_torch
from app.models.inspector_live import LiveTrace
from app.models.snapshot import SnapshotBuilder, SnapshotHolder
from engine.errors import UnblurError
from engine.openmp import let_threads_sleep
from engine.protocol import Engine, EngineLoader, ProgressCallback
from engine.trace import Fork
from engine.trace.fork import header_of_fork
from engine.types import BlockFinished, Event, Finished, GenerateRequest, LoadProgress, StepTaken

log = logging.getLogger("unblur.worker")


class ReplySink(Protocol):
    """Told of a reply's progress in the worker thread, before generation goes on: what must not be
    lost goes here.
    """

    def begun(self) -> None: ...

    def block(self, text: str) -> None: ...

    def ended(self, outcome: ReplyOutcome) -> None: ...


@dataclass(frozen=True)
class GenerationJob:
    """request: a reply, or a recorded one again with a change."""

    reply_id: str
    request: GenerateRequest | Fork
    sink: ReplySink


@dataclass(frozen=True)
class Question:
    """Something else that the loaded model is asked. ask: called with the engine and a stop that
    ends it early, in the worker's thread."""

    question_id: str
    ask: Callable[[Engine, threading.Event], object]


@dataclass(frozen=True)
class Answer:
    """What came of a question. failure: None when `value` is what `ask` gave. engine_lost: as of
    a `ReplyOutcome`."""

    question_id: str
    value: object
    failure: Failure | None = None
    engine_lost: bool = False


@dataclass(frozen=True)
class ReplyOutcome:
    """How a reply ended. `failure` is None unless it failed; `text` then holds the blocks finished
    before.

    engine_lost: the error was not one the engine promises to survive.
    """

    reply_id: str
    text: str
    reason: str
    figures: Figures | None
    failure: Failure | None = None
    engine_lost: bool = False


class ProgressHolder:
    """The latest `LoadProgress`; a load reports thousands of times, the window looks 30 times a
    second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: LoadProgress | None = None

    def put(self, progress: LoadProgress) -> None:
        with self._lock:
            self._latest = progress

    def take(self) -> LoadProgress | None:
        with self._lock:
            latest, self._latest = self._latest, None
            return latest


def load_real_engine(path: str, progress: ProgressCallback, stop: threading.Event) -> Engine:
    """`engine.engine.load_engine`, imported on first use because it imports torch (seconds on a
    cold disk).
    """
    progress(LoadProgress(0, 0, "Starting PyTorch"))
    let_threads_sleep()
    preload_torch()
    try:
        with collector_resting():
            from engine.engine import load_engine
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors", "tokenizers", "transformers"):
            raise
        raise UnblurError(
            "install.incomplete",
            f"The Python package {error.name} is not installed.",
            "Close Unblur and start it with: python run.py",
        ) from error
    return load_engine(path, progress, stop)


class EngineWorker(QObject):
    """Lives in its own QThread; every slot runs there. Results go out as frozen dataclasses."""

    loaded = Signal(object)  # ModelInfo
    load_failed = Signal(object)  # Failure
    load_stopped = Signal()
    reply_ended = Signal(object)  # ReplyOutcome
    answered = Signal(object)  # Answer
    unloaded = Signal()

    def __init__(
        self,
        loader: EngineLoader,
        snapshots: SnapshotHolder,
        progress: ProgressHolder,
        stop: threading.Event,
        live_trace: LiveTrace,
    ) -> None:
        super().__init__()
        self._live_trace = live_trace
        self._loader = loader
        self._snapshots = snapshots
        self._progress = progress
        self._stop = stop
        self._engine: Engine | None = None

    @Slot(str)
    def load(self, path: str) -> None:
        """Gives the old model's memory back first: two models need not fit side by side."""
        try:
            self._drop_engine()
            self._engine = self._loader(path, self._progress.put, self._stop)
            info = self._engine.info
        except Exception as error:  # noqa: BLE001 - the thread's root: every error becomes a Failure
            self._engine = None
            gc.collect()
            if isinstance(error, UnblurError) and error.code == "load.stopped":
                self.load_stopped.emit()
            else:
                self.load_failed.emit(failure_of(error, "load"))
        else:
            self.loaded.emit(info)

    @Slot(object)
    def generate(self, job: GenerationJob) -> None:
        text = ""
        try:
            job.sink.begun()
            outcome = None
            for event in self._events(job):
                if isinstance(event, BlockFinished):
                    text = event.text
                    job.sink.block(text)
                elif isinstance(event, Finished):
                    outcome = ReplyOutcome(
                        job.reply_id, event.text, event.reason, Figures.of(event.stats)
                    )
            if outcome is None:
                raise RuntimeError("the engine ended a reply without saying how")
        except Exception as error:  # noqa: BLE001 - the thread's root: every error becomes a Failure
            outcome = ReplyOutcome(
                job.reply_id,
                text,
                reason="",
                figures=None,
                failure=failure_of(error, "generate"),
                engine_lost=not isinstance(error, UnblurError),
            )
        job.sink.ended(outcome)
        self.reply_ended.emit(outcome)

    def _events(self, job: GenerationJob) -> Iterator[Event]:
        """The engine's events, each put on the canvas as it passes."""
        if self._engine is None:
            raise UnblurError("load.no_model", "No model is loaded.", "Open a model first.")
        builder = SnapshotBuilder(job.reply_id, self._engine)
        if isinstance(job.request, Fork):
            header = header_of_fork(job.request)
            events = self._engine.fork(job.request, self._stop)
        else:
            header = self._engine.trace_header(job.request)
            events = self._engine.generate(job.request, self._stop)
        self._live_trace.begin(job.reply_id, header)
        for event in events:
            if isinstance(event, StepTaken):
                self._live_trace.add(event, self._engine.pieces)
            elif isinstance(event, Finished):
                self._live_trace.end(event)
            snapshot = builder.add(event)
            if snapshot is not None:
                self._snapshots.put(snapshot)
            yield event

    @Slot(object)
    def ask(self, question: Question) -> None:
        try:
            if self._engine is None:
                raise UnblurError("load.no_model", "No model is loaded.", "Open a model first.")
            answer = Answer(question.question_id, question.ask(self._engine, self._stop))
        except Exception as error:  # noqa: BLE001 - the thread's root: every error becomes a Failure
            answer = Answer(
                question.question_id,
                None,
                failure_of(error, "ask"),
                engine_lost=not isinstance(error, UnblurError),
            )
        self.answered.emit(answer)

    @Slot()
    def unload(self) -> None:
        try:
            self._drop_engine()
        except Exception as error:  # noqa: BLE001 - the thread's root: every error becomes a Failure
            self.load_failed.emit(failure_of(error, "unload"))
        else:
            self.unloaded.emit()

    @Slot()
    def shut_down(self) -> None:
        """Last slot of the thread: gives the memory back and ends its event loop."""
        try:
            self._drop_engine()
        except Exception:  # the thread's root; the process is about to end
            log.exception("unloading at the end failed")
        QThread.currentThread().quit()

    def _drop_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.unload()
            del engine
            gc.collect()


def failure_of(error: Exception, during: str) -> Failure:
    """Any error as a person meets it. Unknown ones are logged with their trace and named, never
    hidden.
    """
    if isinstance(error, UnblurError):
        log.warning("%s failed: %s", during, error)
        return Failure(error.code, error.message, error.action, during)
    if isinstance(error, MemoryError):
        log.warning("%s ran out of memory", during)
        return Failure(
            "memory.exhausted",
            "This computer ran out of memory.",
            "Close other programs, or open a smaller model.",
            during,
        )
    log.error("%s failed unexpectedly", during, exc_info=error)
    return Failure(
        "app.unexpected",
        f"Something failed that Unblur does not know: {type(error).__name__}: {error}",
        "Load the model again. The log file has the details.",
        during,
    )
