"""One training run as it is watched: its figures so far, what it is doing, and what it is told.

It knows the journal's events and polls them off the GUI thread. It refuses to know widgets and how
anything is trained.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.backend.training import EventTail, TrainingRuns, tail_of, trainer_command
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background
from engine.errors import RuntimeFailure
from trainer.events import TrainEvent
from trainer.run_dir import RunDir, RunStatus

POLL_MS = 500


@dataclass
class Watched:
    """What is known of a run. updates: metrics in order; validations: of the start and after
    updates; samples: the newest ones; notices: sentences; error: the last one."""

    updates: list[Mapping[str, Any]] = field(default_factory=list)
    validations: list[Mapping[str, Any]] = field(default_factory=list)
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    error: Problem | None = None
    total: int = 0

    def add(self, event: TrainEvent) -> None:
        data = {**event.data, "update": event.update, "time": event.time}
        if event.kind == "metrics":
            self.updates.append(data)
        elif event.kind == "validation":
            self.validations.append(data)
            self.samples = []
        elif event.kind == "sample":
            self.samples.append(data)
        elif event.kind == "notice":
            self.notices.append(str(data.get("text", "")))
        elif event.kind == "error":
            texts = (str(data.get(name, "")) for name in ("code", "text", "action"))
            self.error = Problem(*texts)

    @property
    def seconds_left(self) -> float | None:
        """From the pace of the last twenty updates; None until there are three."""
        if len(self.updates) < 3 or not self.total:
            return None
        recent = self.updates[-20:]
        pace = (recent[-1]["time"] - recent[0]["time"]) / (len(recent) - 1)
        return pace * max(0, self.total - recent[-1]["update"])

    @property
    def start(self) -> Mapping[str, Any] | None:
        return self.validations[0] if self.validations else None

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The most right measurement after the start, the faster of two alike."""
        after = self.validations[1:]
        return max(after, key=lambda v: (round(v["accuracy"], 2), v["tpf"]), default=None)


@dataclass(frozen=True)
class _Look:
    """One poll's outcome."""

    path: Path
    events: list[TrainEvent]
    status: RunStatus
    total: int
    bytes: int


class RunModel(QObject):
    """changed: something new is known. exported: a folder was written. discarded, restored: the
    run was put aside, or brought back."""

    changed = Signal()
    exported = Signal(str)
    discarded = Signal()
    restored = Signal(str)  # the run's folder

    def __init__(self, runs: TrainingRuns, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.runs = runs
        self.path: Path | None = None
        self.status: RunStatus | None = None
        self.watched = Watched()
        self.exporting = ""
        self.aside: tuple[Path, Path] | None = None  # where a run was, and where it was put
        self.bytes = 0  # of the run's folder
        self.problem: Problem | None = None
        self._tail: EventTail | None = None
        self._looking = False
        self._work = Background("unblur-run", 2, self)
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._look)

    def watch(self, folder: str) -> None:
        """Shows the run in a folder, "" for none."""
        path = Path(folder) if folder else None
        if path == self.path:
            return
        self.path, self.status, self.watched, self.problem = path, None, Watched(), None
        self.bytes = 0
        self._tail = None if path is None else tail_of(path)
        if path is None:
            self._timer.stop()
        else:
            self._timer.start()
            self._look()
        self.changed.emit()

    @property
    def alive(self) -> bool:
        return self.status is not None and self.status.state in ("running", "paused")

    def ask(self, what: Literal["pause", "resume", "save", "stop"]) -> None:
        """Tells the run; it follows after the update it is in."""
        path = self.path
        if path is not None:
            self._work.run(lambda _stop: RunDir.open(path).ask(what), lambda _: None, self._failed)

    def go_on(self) -> None:
        """Starts a process again for a run that was stopped or crashed."""
        path = self.path
        if path is not None and not self.alive:
            self._work.run(lambda _stop: self.runs.resume(path), lambda _: None, self._failed)

    def discard(self) -> None:
        """Puts the run that is shown aside; `undo` brings it back until the window closes."""
        path = self.path
        if path is None or self.alive:
            return

        def gone(aside: Path) -> None:
            self.aside = (path, aside)
            self.discarded.emit()

        self._work.run(lambda _stop: self.runs.forget(path), gone, self._failed)

    def undo(self) -> None:
        """Brings back the run that was discarded last."""
        if self.aside is None:
            return
        target, aside = self.aside

        def back(_: object) -> None:
            self.aside = None
            self.restored.emit(str(target))

        self._work.run(lambda _stop: self.runs.bring_back(aside, target), back, self._failed)

    def export(self, what: str, target: Path) -> None:
        """Writes what was learnt into a new folder, in a process of its own."""
        path = self.path
        if path is None or self.exporting:
            return
        self.exporting, self.problem = what, None
        self.changed.emit()
        arguments = ["export", str(path), "--what", what, "--to", str(target)]

        def work(_stop: Stop) -> str:
            done = subprocess.run(
                trainer_command(arguments),
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                stdin=subprocess.DEVNULL,
                check=False,
            )
            if done.returncode:
                said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
                raise RuntimeFailure(
                    "training.export",
                    f"The export failed: {said[-1][:400]}",
                    "Choose another folder, or look at the log.",
                )
            return str(target)

        self._work.run(work, self._exported, self._failed)

    @Slot(str)
    def _exported(self, folder: str) -> None:
        self.exporting = ""
        self.changed.emit()
        self.exported.emit(folder)

    @Slot()
    def _look(self) -> None:
        path, tail = self.path, self._tail
        if path is None or tail is None or self._looking:
            return
        self._looking = True

        total, size = self.watched.total, self.bytes

        def work(_stop: Stop) -> _Look:
            nonlocal total, size
            events = tail.new()
            begun = (path / "spec.json").exists()
            if begun and not total:  # it never changes
                total = RunDir(path).spec.updates
            if begun and (events or not size):  # files come with events
                size = RunDir(path).bytes
            return _Look(path, events, self.runs.status(path), total, size)

        self._work.run(work, self._seen, self._look_failed)

    def _seen(self, look: _Look) -> None:
        self._looking = False
        if look.path != self.path:
            return
        for event in look.events:
            self.watched.add(event)
        news = bool(look.events) or look.status != self.status
        self.status, self.watched.total, self.bytes = look.status, look.total, look.bytes
        if news:
            self.changed.emit()

    def _look_failed(self, problem: Problem) -> None:
        self._looking = False
        self._failed(problem)

    def _failed(self, problem: Problem) -> None:
        self.problem, self.exporting = problem, ""
        self.changed.emit()

    def close(self, until: float) -> bool:
        """Stops watching; the run goes on. What was discarded is removed for good."""
        self._timer.stop()
        ended = self._work.close(until)
        if self.aside is not None:
            self.runs.empty_aside()
        return ended
