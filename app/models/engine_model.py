"""The model as the window sees it: one lifecycle, one latest snapshot, and commands that never
block.

It owns the worker thread and the 33 ms timer that carries the latest snapshot to whoever paints. It
refuses to know conversations and widgets. Every method runs on the GUI thread and returns at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QThread, QTimer, Signal, Slot

from app.backend.conversations import Failure
from app.backend.files import DEMO_MODEL
from app.models.inspector_live import LiveTrace
from app.models.lifecycle import Lifecycle, checked
from app.models.snapshot import Snapshot, SnapshotHolder
from app.models.worker import (
    Answer,
    EngineWorker,
    GenerationJob,
    ProgressHolder,
    Question,
    ReplyOutcome,
    load_real_engine,
)
from engine.protocol import EngineLoader
from engine.types import LoadProgress, ModelInfo

log = logging.getLogger("unblur.model")
PAINT_MS = 33
CLOSE_MS = 30_000  # a step, or a read from a slow disk, may take as long
BUSY = frozenset({Lifecycle.LOADING, Lifecycle.GENERATING, Lifecycle.STOPPING, Lifecycle.UNLOADING})


class EngineModel(QObject):
    state_changed = Signal(object)  # Lifecycle
    progress_changed = Signal(object)  # LoadProgress
    snapshot_changed = Signal(object)  # Snapshot
    reply_ended = Signal(object)  # ReplyOutcome
    answered = Signal(object)  # Answer
    load_failed = Signal(object)  # Failure

    _load = Signal(str)
    _generate = Signal(object)
    _ask = Signal(object)
    _unload = Signal()
    _shut_down = Signal()

    def __init__(self, loader: EngineLoader = load_real_engine, parent: QObject | None = None):
        super().__init__(parent)
        self.state = Lifecycle.NO_MODEL
        self.info: ModelInfo | None = None
        self.path = ""
        self.progress: LoadProgress | None = None
        self.failure: Failure | None = None
        self.asking = False  # what keeps the model busy is a question, not a reply
        self._then: Callable[[], None] | None = None
        self._given_up = False
        self._stop = threading.Event()
        self._snapshots = SnapshotHolder()
        self._progress = ProgressHolder()
        self._timer = QTimer(self)
        self._timer.setInterval(PAINT_MS)
        self._timer.timeout.connect(self._tick)
        self._thread = QThread(self)
        self._thread.setObjectName("engine")
        self.live_trace = LiveTrace()
        self._worker = EngineWorker(
            loader, self._snapshots, self._progress, self._stop, self.live_trace
        )
        self._worker.moveToThread(self._thread)
        self._load.connect(self._worker.load)
        self._generate.connect(self._worker.generate)
        self._ask.connect(self._worker.ask)
        self._unload.connect(self._worker.unload)
        self._shut_down.connect(self._worker.shut_down)
        self._worker.loaded.connect(self._on_loaded)
        self._worker.load_failed.connect(self._on_load_failed)
        self._worker.load_stopped.connect(self._on_load_stopped)
        self._worker.reply_ended.connect(self._on_reply_ended)
        self._worker.answered.connect(self._on_answered)
        self._worker.unloaded.connect(self._on_unloaded)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self.state in BUSY

    @property
    def is_demo(self) -> bool:
        """Whether the model in use (or last tried) is the one that ships with Unblur."""
        return self.path == str(DEMO_MODEL)

    @Slot()
    def load_demo(self) -> None:
        self.load(str(DEMO_MODEL))

    def load(self, path: str) -> None:
        """Opens a model folder. Whatever runs is stopped first; the old model's memory is given
        back before.
        """
        if self.busy:
            self._after_stop(lambda: self.load(path))
            return
        self.path = path
        self.info = None
        self.failure = None
        self.progress = None
        self._stop.clear()
        self._move(Lifecycle.LOADING)
        self._load.emit(path)

    def generate(self, job: GenerationJob) -> None:
        """Starts a reply. Only when READY."""
        self._move(Lifecycle.GENERATING)
        self._stop.clear()
        self._snapshots.clear()
        self._generate.emit(job)

    def ask(self, question: Question) -> None:
        """Asks the model something else than a reply. Only when READY; busy as with a reply."""
        self.asking = True
        self._move(Lifecycle.GENERATING)
        self._stop.clear()
        self._ask.emit(question)

    @Slot()
    def stop(self) -> None:
        """Ends the load or the reply within one step. Does nothing when neither runs."""
        if self.state in (Lifecycle.LOADING, Lifecycle.GENERATING):
            self._stop.set()
            self._move(Lifecycle.STOPPING)

    @Slot()
    def unload(self) -> None:
        """Gives the model's memory back, stopping what runs first. Does nothing without a model."""
        if self.busy:
            self._after_stop(self.unload)
        elif self.state in (Lifecycle.READY, Lifecycle.FAILED):
            self.info = None
            self._move(Lifecycle.UNLOADING)
            self._unload.emit()

    def close(self) -> bool:
        """Stops, unloads and ends the thread. True when it ended; waits at most `CLOSE_MS`, once,
        for a step to finish. Nothing is heard of the model afterwards.
        """
        if self._given_up or not self._thread.isRunning():
            return not self._given_up
        self._timer.stop()
        self._then = None
        self._stop.set()
        self._shut_down.emit()
        ended = self._thread.wait(CLOSE_MS)
        if not ended:
            self._given_up = True
            log.error("the engine's thread did not end within %d s", CLOSE_MS / 1000)
        # what the worker said while it was waited for comes too late: nobody asked for its stop
        QCoreApplication.removePostedEvents(self, QEvent.Type.MetaCall.value)
        return ended

    def _after_stop(self, action: Callable[[], None]) -> None:
        self._then = action
        self.stop()

    def _move(self, state: Lifecycle) -> None:
        self.state = checked(self.state, state)
        if self.busy:
            self._timer.start()
        else:
            self._timer.stop()
        if not self.busy and self._then is not None:
            # what waited for this moment comes first: whoever hears of it could start a reply
            action, self._then = self._then, None
            action()
            if self.state is not state:
                return
        self.state_changed.emit(state)

    @Slot()
    def _tick(self) -> None:
        progress = self._progress.take()
        if progress is not None and self.state is Lifecycle.LOADING:
            self.progress = progress
            self.progress_changed.emit(progress)
        snapshot: Snapshot | None = self._snapshots.take()
        if snapshot is not None:
            self.snapshot_changed.emit(snapshot)

    @Slot(object)
    def _on_loaded(self, info: ModelInfo) -> None:
        self.info = info
        self._move(Lifecycle.READY)

    @Slot(object)
    def _on_load_failed(self, failure: Failure) -> None:
        self.failure = failure
        self._move(Lifecycle.FAILED)
        if self.state is Lifecycle.FAILED:  # and not already loading what was asked for meanwhile
            self.load_failed.emit(failure)

    @Slot()
    def _on_load_stopped(self) -> None:
        self._move(Lifecycle.NO_MODEL)

    @Slot(object)
    def _on_reply_ended(self, outcome: ReplyOutcome) -> None:
        self._tick()  # the last snapshot is painted before the answer takes its place
        if outcome.engine_lost:
            self.failure = outcome.failure
        self.reply_ended.emit(outcome)
        self._move(Lifecycle.FAILED if outcome.engine_lost else Lifecycle.READY)

    @Slot(object)
    def _on_answered(self, answer: Answer) -> None:
        self.asking = False
        if answer.engine_lost:
            self.failure = answer.failure
        self.answered.emit(answer)
        self._move(Lifecycle.FAILED if answer.engine_lost else Lifecycle.READY)

    @Slot()
    def _on_unloaded(self) -> None:
        self.path = ""
        self._move(Lifecycle.NO_MODEL)
