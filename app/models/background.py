"""Work off the GUI thread whose outcome comes back on it.

It knows threads, a stop for each piece of work, and how every error becomes a `Problem`. It refuses
to know what the work is. Threads start when they are first needed and are as many as were allowed,
so that a list of models is not asked for all at once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Qt, Signal, Slot

from app.backend.transfer.faults import Interrupted
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from engine.errors import UnblurError

log = logging.getLogger("unblur.models")
Result = TypeVar("Result")


@dataclass(eq=False)
class Task:
    """One piece of work. `stop` asks it to end; its outcome is then heard of as stopped."""

    work: Callable[[Stop], Any]
    then: Callable[[Any], None]
    failed: Callable[[Problem], None]
    stopped: Callable[[], None]
    stop: Stop = field(default_factory=Stop)


class Background(QObject):
    _ended = Signal(object)

    def __init__(self, name: str, threads: int, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._name, self._most = name, threads
        self._waiting: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open: set[Task] = set()
        self._closed = False
        self._ended.connect(self._deliver, Qt.ConnectionType.QueuedConnection)

    def run(
        self,
        work: Callable[[Stop], Result],
        then: Callable[[Result], None],
        failed: Callable[[Problem], None],
        stopped: Callable[[], None] = lambda: None,
    ) -> Task:
        """Calls `work` on a thread, then exactly one of the others on the GUI thread; none of them
        once `close` was called. Pieces of work begin in the order they were given."""
        task = Task(work, then, failed, stopped)
        if self._closed:
            return task
        self._open.add(task)
        self._waiting.put(task)
        if len(self._threads) < self._most and len(self._threads) < len(self._open):
            name = f"{self._name} {len(self._threads) + 1}"
            # a daemon: a name lookup that hangs must not keep the process from ending
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return task

    def close(self, until: float) -> bool:
        """Stops all work and waits for it up to `until` (of time.monotonic). True when it ended."""
        self._closed = True
        for task in list(self._open):
            task.stop.set()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            outcome: tuple[Callable[..., None], tuple[object, ...]]
            try:
                task.stop.check()
                outcome = (task.then, (task.work(task.stop),))
            except Interrupted:
                outcome = (task.stopped, ())
            except Exception as error:  # noqa: BLE001 - the thread's root: all become a Problem
                stopping = task.stop.is_set
                outcome = (task.stopped, ()) if stopping else (task.failed, (problem_of(error),))
            if not self._closed:
                self._ended.emit((task, *outcome))

    @Slot(object)
    def _deliver(self, ended: tuple[Task, Callable[..., None], tuple[object, ...]]) -> None:
        task, callback, values = ended
        self._open.discard(task)
        if not self._closed:
            callback(*values)


def problem_of(error: Exception) -> Problem:
    """Any error as a person meets it. Unknown ones are logged with their trace and named, never
    hidden."""
    if isinstance(error, UnblurError):
        log.info("%s", error.code)
        return Problem(error.code, error.message, error.action, str(getattr(error, "link", "")))
    if isinstance(error, MemoryError):
        return Problem(
            "memory.exhausted",
            "This computer ran out of memory.",
            "Close other programs, then try again.",
        )
    log.error("failed unexpectedly", exc_info=error)
    return Problem(
        "app.unexpected",
        f"Something failed that Unblur does not know: {type(error).__name__}.",
        "Try again. The log file has the details.",
    )
