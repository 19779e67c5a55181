"""The downloads as the window sees them: the queue's latest figures, at most ten times a second.

It knows when the queue is worth looking at and passes commands on. It refuses to know widgets and
bytes. The queue's lock may be held while a file is synced, so it is never taken on the GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from app.backend.model_services import ModelServices
from app.backend.transfer.plan import DownloadPlan
from app.backend.transfer.queue import DownloadQueue, DownloadView, Problem, State
from app.models.background import Background

LOOK_MS = 100
ACTIVE = (State.QUEUED, State.RUNNING)


class DownloadsModel(QObject):
    changed = Signal()
    finished = Signal(object)  # DownloadView of a model that has just become whole
    failed = Signal(object)  # Problem

    _queue_changed = Signal()  # from the queue's threads

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.views: tuple[DownloadView, ...] = ()
        self.problem = ""
        self._queue: DownloadQueue | None = None
        self._looking = False
        self._known: dict[str, State] | None = None  # at the last look, None before the first
        self._lane = Background("queue", 1, self)
        self._timer = QTimer(self)
        self._timer.setInterval(LOOK_MS)
        self._timer.timeout.connect(self._look)
        self._queue_changed.connect(self._begin, Qt.ConnectionType.QueuedConnection)

    def note_change(self) -> None:
        """For the queue's `on_change`: from any thread."""
        self._queue_changed.emit()

    def attach(self, services: ModelServices) -> None:
        """Starts the queue, with what a former session has left in it."""
        self._queue = services.queue
        self._command(lambda queue: queue.start())
        self._begin()

    @property
    def active(self) -> int:
        """How many wait or run."""
        return sum(view.state in ACTIVE for view in self.views)

    def find(self, repo_id: str, commit: str) -> DownloadView | None:
        """The download of this very version, repairs left out."""
        for view in self.views:
            if (view.repo_id, view.commit) == (repo_id, commit) and not view.is_repair:
                return view
        return None

    def add(self, plan: DownloadPlan, root: Path) -> None:
        self._command(lambda queue: queue.add(plan, root))

    def pause(self, identity: str) -> None:
        self._command(lambda queue: queue.pause(identity))

    def resume(self, identity: str) -> None:
        self._command(lambda queue: queue.resume(identity))

    def cancel(self, identity: str) -> None:
        """Takes it off the list and deletes what was received."""
        self._command(lambda queue: queue.cancel(identity))

    def forget(self, identity: str) -> None:
        self._command(lambda queue: queue.forget(identity))

    def close(self, until: float) -> bool:
        """See `Background.close`. The queue itself is stopped by who opened it."""
        self._timer.stop()
        return self._lane.close(until)

    def _command(self, action: Callable[[DownloadQueue], object]) -> None:
        queue = self._queue
        if queue is not None:
            self._lane.run(lambda _: action(queue), lambda _: self._begin(), self._not_done)

    def _not_done(self, problem: Problem) -> None:
        self.failed.emit(problem)
        self._begin()

    @Slot()
    def _begin(self) -> None:
        """Something has changed: look now, and go on looking as long as something moves."""
        self._look()
        self._timer.start()

    @Slot()
    def _look(self) -> None:
        queue = self._queue
        if queue is not None and not self._looking:
            self._looking = True
            self._lane.run(lambda _stop: queue.views(), self._show, self._not_looked)

    def _not_looked(self, problem: Problem) -> None:
        self._looking = False
        self._timer.stop()
        self.failed.emit(problem)

    def _show(self, views: tuple[DownloadView, ...]) -> None:
        self._looking = False
        before, self._known = self._known, {view.id: view.state for view in views}
        self.problem = (self._queue.problem if self._queue is not None else None) or ""
        if views != self.views:
            self.views = views
            self.changed.emit()
        if before is not None:
            for view in views:
                if view.state is State.DONE and before.get(view.id) is not State.DONE:
                    self.finished.emit(view)
        if not self.active:
            self._timer.stop()
