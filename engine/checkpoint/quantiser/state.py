"""The journal of an unfinished copy: which units are done, with checksums of what they wrote, and
the lock that keeps a second process out.

A line is written after its unit's bytes were handed to the operating system, so that a killed
process loses at most the unit it was at. After a power failure lines and bytes may disagree; the
checksums find that. Knows nothing of tensors.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from engine.checkpoint.refusals import printable, refuse

JOURNAL = "quantise-journal.jsonl"
LOCK = "quantise.lock"
PART = "quantise-journal.part"  # the journal while it is being rewritten


@dataclass(frozen=True)
class ModuleError:
    """How far one quantised matrix is from the original: ||W - W'|| / ||W|| (Frobenius; 0 for an
    all-zero matrix), and the sums of squares it is made of."""

    module: str
    rows: int
    cols: int
    error_square: float
    weight_square: float

    @property
    def relative(self) -> float:
        return (self.error_square / self.weight_square) ** 0.5 if self.weight_square else 0.0


@dataclass(frozen=True)
class Done:
    """A finished unit. checksums: CRC-32 of each output's bytes, in order. errors: one a matrix."""

    unit: str
    checksums: tuple[int, ...]
    errors: tuple[ModuleError, ...]


class Journal:
    """The journal inside a folder; one process at a time."""

    def __init__(self, folder: Path, fingerprint: str, restart: bool) -> None:
        """Takes the lock and opens the journal of this plan, making both where they are absent.
        restart: removes what an earlier process left in the folder. Raises CheckpointError
        `quantise.other_partial`, `quantise.busy`; OSError."""
        self._path = folder / JOURNAL
        self._lock: BinaryIO = (folder / LOCK).open("ab")
        try:
            _take(self._lock, folder)
            if restart:  # the journal last: until then it says whose folder this is
                kept = (LOCK, JOURNAL)
                for item in [i for i in folder.iterdir() if i.name not in kept]:
                    item.unlink()
                self._path.unlink(missing_ok=True)
            self.done = self._read(folder, fingerprint)
            self._rewrite(fingerprint)
            self._file = self._path.open("a", encoding="utf-8")
        except BaseException:
            self._lock.close()
            raise

    def add(self, done: Done) -> None:
        """Notes a unit whose bytes were flushed."""
        self.done[done.unit] = done
        self._file.write(_line(done))
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def _read(self, folder: Path, fingerprint: str) -> dict[str, Done]:
        if not self._path.exists():
            return {}
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        done: dict[str, Done] = {}
        for number, line in enumerate(lines):
            try:
                value = json.loads(line)
                if number == 0:
                    if value["plan"] != fingerprint:
                        raise _other(folder)
                    continue
                errors = tuple(ModuleError(**error) for error in value["errors"])
                entry = Done(value["unit"], tuple(value["checksums"]), errors)
            except (ValueError, KeyError, TypeError):
                break  # cut short when the process ended; what follows was not written by us
            done[entry.unit] = entry
        return done

    def _rewrite(self, fingerprint: str) -> None:
        """Without a line that was cut short."""
        text = json.dumps({"plan": fingerprint}) + "\n"
        text += "".join(_line(entry) for entry in self.done.values())
        part = self._path.with_name(PART)
        part.write_text(text, encoding="utf-8")
        part.replace(self._path)


def is_ours(folder: Path) -> bool:
    """Whether a folder is an unfinished copy: it has a journal, or nothing yet but what comes
    before one."""
    if (folder / JOURNAL).is_file():
        return True
    return folder.is_dir() and not {item.name for item in folder.iterdir()} - {LOCK, PART}


def remove_journal(folder: Path) -> None:
    """Removes journal and lock from a finished copy."""
    for name in (JOURNAL, LOCK):
        with suppress(OSError):  # the copy is whole with or without them
            (folder / name).unlink()


def _line(done: Done) -> str:
    return json.dumps(asdict(done)) + "\n"


def _other(folder: Path) -> Exception:
    return refuse(
        "quantise.other_partial",
        f"{printable(folder.name)} holds an unfinished copy that was begun from another source or"
        " with other options.",
        "Use the options it was begun with, choose another folder, or start over (--restart).",
        file=folder.name,
    )


def _take(lock: BinaryIO, folder: Path) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise refuse(
            "quantise.busy",
            f"Another process is writing {printable(folder.name)}.",
            "Wait for it to end, or choose another folder.",
            file=folder.name,
        ) from error


def sync_files(folder: Path) -> None:
    """Makes what a folder's files hold outlive a power failure."""
    for item in folder.iterdir():
        with item.open("r+b") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Makes a rename in the folder outlive a power failure, where the system offers that."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
