"""Training runs as the window sees them: a child process each, and its folder.

The child outlives the window: it is found again by its folder, and everything known of it is read
from there (`trainer.run_dir`). Knows processes and files; no widgets, no torch, no training.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import RuntimeFailure
from trainer.events import TrainEvent, read_event
from trainer.run_dir import RunDir, RunStatus, all_runs, replace_file
from trainer.spec import TrainSpec

Spawn = Callable[[Sequence[str], Path], "subprocess.Popen[bytes]"]


def trainer_command(arguments: Sequence[str]) -> list[str]:
    """How the trainer is called: a module here, a flag of the app itself where it is frozen."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "--trainer", *arguments]
    return [sys.executable, "-m", "trainer", *arguments]


def spawn(command: Sequence[str], errors: Path) -> subprocess.Popen[bytes]:
    """A child in a session of its own, so that closing the window or its terminal does not end it;
    what it says beside its events goes to a file."""
    with errors.open("ab") as file:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=os.name == "posix",
            close_fds=True,
        )


class TrainingRuns:
    """All runs under one folder."""

    def __init__(self, folder: Path, spawn: Spawn = spawn) -> None:
        self.folder = folder
        self._spawn = spawn
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def begin(self, spec: TrainSpec, name: str) -> Path:
        """Starts a child on a new folder and returns it at once; the child fills it. Raises
        RuntimeFailure `training.not_started`."""
        target, number = self.folder / name, 2
        while target.exists() or self._asked(target).exists():
            target, number = self.folder / f"{name}-{number}", number + 1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._asked(target), spec.to_json())
            arguments = ["run", str(self._asked(target)), "--out", str(target), "--json"]
            self._start(target, arguments)
        except OSError as error:
            raise RuntimeFailure(
                "training.not_started",
                f"The training could not be started: {error.strerror or error}.",
                "Check that the runs folder can be written, and that memory is free.",
            ) from error
        return target

    def resume(self, target: Path) -> None:
        """Starts a child that goes on with a run. Raises RuntimeFailure `training.not_started`."""
        try:
            self._start(target, ["resume", str(target), "--json"])
        except OSError as error:
            raise RuntimeFailure(
                "training.not_started",
                f"The training could not be started: {error.strerror or error}.",
                "Check that memory is free, and try again.",
            ) from error

    def _start(self, target: Path, arguments: Sequence[str]) -> None:
        errors = self._asked(target).with_suffix(".log")
        errors.unlink(missing_ok=True)
        self._children[target] = self._spawn(trainer_command(arguments), errors)

    def _asked(self, target: Path) -> Path:
        """The spec a child was started with, beside its folder."""
        return target.with_name(f".{target.name}.json")

    def status(self, target: Path) -> RunStatus:
        """What a run is doing. A child that ended before it had a folder is said with the last line
        it wrote."""
        child = self._children.get(target)
        over = child is not None and child.poll() is not None
        if (target / "alive.json").exists():
            status = RunDir(target).status()
            if status.state == "crashed" and (last := self._last_words(target)):
                return RunStatus("crashed", last, status.update, status.pid)
            return status
        if child is not None and not over:
            return RunStatus("running", "It is starting.", 0, child.pid)
        if child is not None:
            reason = self._last_words(target) or f"It ended at once (status {child.returncode})."
            return RunStatus("failed", reason, 0, None)
        return RunStatus("crashed", "It never began.", 0, None)

    def _last_words(self, target: Path) -> str:
        """The last line of what a child said beside its events."""
        try:
            data = self._asked(target).with_suffix(".log").read_bytes()[-4000:]
        except OSError:
            return ""
        text = data.decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:500] if lines else ""

    def runs(self) -> list[RunDir]:
        """Runs that have a folder, newest first."""
        return list(all_runs(self.folder))

    def forget(self, target: Path) -> Path:
        """Puts a run aside, so that it can come back until the window closes; returns where it is.
        Raises RuntimeFailure `training.alive` for one that goes on."""
        if self.status(target).state in ("running", "paused"):
            raise RuntimeFailure(
                "training.alive", "This run is going on.", "Stop it first, then delete it."
            )
        aside = target.with_name(f".deleted-{target.name}-{int(time.time())}")
        target.replace(aside)
        return aside

    def bring_back(self, aside: Path, target: Path) -> None:
        """Undoes `forget`. Raises RuntimeFailure `training.taken` where another run took its
        place."""
        if target.exists():
            raise RuntimeFailure(
                "training.taken",
                f"Another run is called {target.name} now.",
                f"Rename it, then move {aside.name} back by hand.",
            )
        aside.replace(target)

    def empty_aside(self) -> None:
        """Removes what was put aside, for good; called when the window closes."""
        for aside in self.folder.glob(".deleted-*"):
            shutil.rmtree(aside, ignore_errors=True)


@dataclass
class EventTail:
    """New events of a run's journal since the last look. A line still being written waits."""

    path: Path
    _offset: int = 0

    def new(self) -> list[TrainEvent]:
        """Events in order. A journal that got shorter is read anew."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole, found, _ = data.rpartition(b"\n")
        if not found:
            return []
        self._offset += len(whole) + 1
        events = (read_event(line.decode("utf-8", "replace")) for line in whole.split(b"\n"))
        return [event for event in events if event is not None]


def tail_of(target: Path) -> EventTail:
    """The journal of a run's folder from its beginning."""
    return EventTail(target / "events.jsonl")
