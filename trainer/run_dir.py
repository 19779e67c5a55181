"""The files of a run, and what they say of it after any kind of end.

    spec.json         what was asked (never changed)
    manifest.json     base model and data with their hashes, program version, when it began
    events.jsonl      append-only; a torn last line is left out when reading
    alive.json        process, its start and its last heartbeat, and how it ended
    lock              held by the process that works here (`trainer.run_life`)
    control           "pause", "save" or "stop", written by whoever watches
    checkpoints/      update-000010.safetensors with .json beside it; "last" and "best" name two
    replay.jsonl      the start model's own verified answers

Whether a run goes on is judged from its process and its heartbeat, never from a stored state alone.
Every file but the journal is replaced whole. Knows no learner.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from safetensors import SafetensorError

from engine.errors import RequestError, RuntimeFailure
from trainer.data.task import Task
from trainer.events import TrainEvent, read_event
from trainer.spec import TrainSpec
from trainer.strict_json import read, write

State = Literal["running", "paused", "stopped", "finished", "failed", "crashed"]
STALE = 90.0  # seconds without a heartbeat after which a living process is called hung
SPARE = 16 << 20  # bytes for the journal and other small files


@dataclass(frozen=True)
class RunStatus:
    """state, and why in words. pid: of the process, None when there is none."""

    state: State
    reason: str
    update: int
    pid: int | None


@dataclass(frozen=True)
class Checkpoint:
    """One saved state: tensors' file and what belongs to it."""

    tensors: Path
    meta: Mapping[str, Any]


class RunDir:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, spec: TrainSpec, manifest: Mapping[str, Any]) -> RunDir:
        """A new folder. Raises RequestError `run.exists` where one is, RuntimeFailure
        `train.disk`."""
        if (path / "spec.json").exists():
            raise RequestError(
                "run.exists",
                f"{path} already holds a run.",
                "Resume it, or name another folder.",
            )
        with disk_errors(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            replace_file(path / "manifest.json", json.dumps(manifest, indent=1, default=str))
            replace_file(path / "spec.json", spec.to_json())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Raises RequestError `run.none` for a folder without a run."""
        if not (path / "spec.json").is_file():
            raise RequestError(
                "run.none", f"{path} holds no run.", "Name the folder that a run wrote."
            )
        return cls(path)

    @property
    def spec(self) -> TrainSpec:
        return TrainSpec.open(self.path / "spec.json")

    def append(self, event: TrainEvent) -> None:
        """Adds an event; what was added survives a kill of the process."""
        with disk_errors(self.path), (self.path / "events.jsonl").open("ab") as file:
            file.write(event.line().encode())

    def events(self) -> Iterator[TrainEvent]:
        """All events but a torn line."""
        try:
            text = (self.path / "events.jsonl").read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            event = read_event(line)
            if event is not None:
                yield event

    def mend(self) -> None:
        """Ends a torn last line, so that the next event is not glued to it."""
        path = self.path / "events.jsonl"
        if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
            with disk_errors(self.path), path.open("ab") as file:
                file.write(b"\n")

    # Life and control.

    def beat(self, state: str, update: int, reason: str = "", moved: float | None = None) -> None:
        """The process's sign of life; state "running" or "paused", or how it ended. moved: when it
        last came further, in seconds since the epoch; now by default."""
        now = time.time()
        value = {
            "pid": os.getpid(),
            "started": process_start(os.getpid()),
            "heartbeat": now,
            "moved": now if moved is None else moved,
            "state": state,
            "update": update,
            "reason": reason,
        }
        with disk_errors(self.path):
            replace_file(self.path / "alive.json", json.dumps(value), sync=False)

    def status(self) -> RunStatus:
        """What the run is doing, from its process and heartbeat."""
        try:
            value = json.loads((self.path / "alive.json").read_text(encoding="utf-8"))
            state, update = str(value["state"]), int(value["update"])
            pid, started = int(value["pid"]), value["started"]
            age = time.time() - float(value["heartbeat"])
            still = time.time() - float(value.get("moved", value["heartbeat"]))
        except (OSError, ValueError, KeyError, TypeError):
            return RunStatus("stopped", "It has not begun.", 0, None)
        if state in ("finished", "stopped", "failed"):
            return RunStatus(state, str(value.get("reason", "")), update, None)  # pyright: ignore[reportArgumentType]
        if process_start(pid) != started:
            return RunStatus("crashed", "Its process is gone without a word.", update, None)
        if age > STALE:
            reason = f"Its process lives, but gave no sign for {age:.0f} s."
            return RunStatus("crashed", reason, update, pid)
        if state == "paused":
            return RunStatus("paused", "", update, pid)
        reason = f"What it does now has taken {still:.0f} s so far." if still > STALE else ""
        return RunStatus("running", reason, update, pid)

    def ask(self, what: Literal["pause", "resume", "save", "stop"]) -> None:
        """Tells the process of this run to do something at its next update."""
        with disk_errors(self.path):
            replace_file(self.path / "control", what, sync=False)

    def asked(self) -> str:
        """What was asked, "" for nothing. "save" and "resume" are forgotten once read."""
        path = self.path / "control"
        try:
            what = path.read_text(encoding="utf-8").strip()
        except OSError:
            return ""
        if what in ("save", "resume"):
            path.unlink(missing_ok=True)
        return what

    def forget_asked(self) -> None:
        (self.path / "control").unlink(missing_ok=True)

    # Checkpoints.

    def save(self, update: int, tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Writes a checkpoint whole, names it the last one, and removes those that are neither last
        nor best. Raises RuntimeFailure `train.disk`; what was saved before stays."""
        from safetensors.torch import save_file

        name = f"update-{update:06d}"
        target = self.checkpoints / f"{name}.safetensors"
        part = target.with_suffix(".part")
        with disk_errors(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            try:
                save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, part)
                sync_file(part)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
            replace_file(target.with_suffix(".json"), json.dumps(dict(meta)))
            replace_file(self.checkpoints / "last", name)
        self._clean()

    def name_best(self, update: int) -> None:
        """The checkpoint of `update` is the best so far."""
        with disk_errors(self.path):
            replace_file(self.checkpoints / "best", f"update-{update:06d}")
        self._clean()

    def checkpoint(self, which: Literal["last", "best"]) -> Checkpoint | None:
        """None where there is none yet. Raises RuntimeFailure `run.damaged`."""
        try:
            name = (self.checkpoints / which).read_text(encoding="utf-8").strip()
        except OSError:
            return None
        tensors = self.checkpoints / f"{name}.safetensors"
        try:
            meta = json.loads(tensors.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _damaged(name, error) from error
        return Checkpoint(tensors, meta)

    def tensors(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """A checkpoint's tensors by name. Raises RuntimeFailure `run.damaged`."""
        from safetensors.torch import load_file

        try:
            return load_file(checkpoint.tensors)
        except (OSError, SafetensorError) as error:
            raise _damaged(checkpoint.tensors.stem, error) from error

    def need_room(self, checkpoint_bytes: int) -> None:
        """Looks whether the disk holds what a run will save: the last checkpoint, the best one, and
        one being written. Raises RuntimeFailure `train.disk`."""
        with disk_errors(self.path):
            kept = len(list(self.checkpoints.glob("update-*.safetensors")))
            free = shutil.disk_usage(self.path).free
        wanted = max(1, 3 - kept) * checkpoint_bytes + SPARE
        if free < wanted:
            raise RuntimeFailure(
                "train.disk",
                f"The run will save {wanted / 1e9:.2f} GB in {self.path}; {free / 1e9:.2f} GB are "
                "free.",
                "Make room, or name a folder on another disk.",
            )

    def _clean(self) -> None:
        kept = set()
        for which in ("last", "best"):
            try:
                kept.add((self.checkpoints / which).read_text(encoding="utf-8").strip())
            except OSError:
                continue
        for old in self.checkpoints.glob("update-*"):
            if old.stem not in kept:
                old.unlink(missing_ok=True)

    def keep_replay(self, replay: Sequence[Task]) -> None:
        """The start model's own answers, so that a resumed run replays the same ones."""
        lines = [json.dumps(write(task), ensure_ascii=False) + "\n" for task in replay]
        with disk_errors(self.path):
            replace_file(self.path / "replay.jsonl", "".join(lines))

    def replay(self) -> list[Task] | None:
        """What `keep_replay` wrote; None when nothing was."""
        try:
            text = (self.path / "replay.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return [read(Task, json.loads(line), "replay") for line in text.splitlines() if line]

    @property
    def bytes(self) -> int:
        """What the run takes on the disk."""
        return sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file())


def _damaged(name: str, error: Exception) -> RuntimeFailure:
    return RuntimeFailure(
        "run.damaged",
        f"The checkpoint {name} of this run cannot be read: {error}.",
        "Put the run's folder back from a copy, or start a new run.",
    )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turns a failing disk into a typed error that names the folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        if not full and not isinstance(error, OSError):
            raise
        what = "The disk is full" if full else f"The disk refused ({error})"
        raise RuntimeFailure(
            "train.disk",
            f"{what}: {folder} cannot be written. What was saved before is kept.",
            "Make room, then resume the run.",
        ) from error


def replace_file(path: Path, text: str, sync: bool = True) -> None:
    """A whole file in place of the old one, so that a kill leaves one of the two."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    if sync:
        sync_file(part)
    part.replace(path)


def sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def process_start(pid: int) -> str | None:
    """Something that tells a process from a later one of the same number; None when there is
    none."""
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return None


def file_hash(path: Path) -> str:
    """sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def all_runs(folder: Path) -> Iterable[RunDir]:
    """Runs directly inside a folder, newest first."""
    found = [RunDir(p.parent) for p in folder.glob("*/spec.json")]
    return sorted(found, key=lambda run: -(run.path / "spec.json").stat().st_mtime)
