"""Deleting that can be taken back until the app is closed.

It knows moves within one disk: a deleted model goes into `.unblur/trash` beside it, with a note of
where everything was, written before anything is moved. It refuses to decide when to empty it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from app.backend.files import read_json_object, write_atomically
from app.backend.library.folders import Kind, LibraryError
from app.backend.library.scan import LocalModel
from app.backend.transfer.download import HIDDEN

NOTE = "deleted.json"
_PART = re.compile(r"[0-9]+")  # how a part is called in the trash, whatever its own name is


@dataclass(frozen=True)
class Deleted:
    """A deleted model that can still be brought back. place: its folder in the trash. moves: where
    each part was and where it is."""

    id: str
    name: str
    size: int
    when: float
    place: Path
    moves: tuple[tuple[Path, Path], ...]


def delete(model: LocalModel) -> Deleted:
    """Moves a model into the trash of its disk. Raises LibraryError; then nothing has moved."""
    identity = uuid.uuid4().hex[:12]
    place = base_of(model) / HIDDEN / "trash" / identity
    entry = Deleted(identity, model.name, model.size, time.time(), place, ())
    try:
        moves = tuple((path, place / str(n)) for n, path in enumerate(_parts(model)))
        entry = replace(entry, moves=moves)
        place.mkdir(parents=True)
        _write_note(entry)
        for origin, target in moves:
            os.rename(origin, target)
    except OSError as error:
        with contextlib.suppress(LibraryError):
            undo(entry)
        raise LibraryError(
            "library.not_deleted",
            f"{model.name} cannot be deleted ({error.strerror}).",
            "Check that its folder can be written, and that no program has the model open.",
        ) from error
    return entry


def undo(entry: Deleted) -> None:
    """Puts everything back where it was. Raises LibraryError, naming what is in the way."""
    for origin, target in entry.moves:
        if not target.exists() and not target.is_symlink():
            continue  # it was never moved, or is back already
        try:
            if origin.exists():
                raise FileExistsError(0, "something else is there now")
            origin.parent.mkdir(parents=True, exist_ok=True)
            os.rename(target, origin)
        except OSError as error:
            raise LibraryError(
                "library.not_restored",
                f"{entry.name} cannot be put back to {origin} ({error.strerror}).",
                f"It is kept in {entry.place} until Unblur is closed; move it by hand.",
            ) from error
    _clear(entry)


def find(bases: list[Path]) -> list[Deleted]:
    """Everything in the trash below these folders, what a killed app left included."""
    found: list[Deleted] = []
    for base in bases:
        with contextlib.suppress(OSError):
            for note in sorted((base / HIDDEN / "trash").glob(f"*/{NOTE}")):
                entry = _read_note(note)
                if entry is not None:
                    found.append(entry)
    return sorted(found, key=lambda entry: entry.when)


def destroy(entry: Deleted) -> None:
    """Deletes for good. Raises LibraryError."""
    try:
        shutil.rmtree(entry.place)
    except OSError as error:
        raise LibraryError(
            "library.not_emptied",
            f"{entry.name} cannot be deleted for good ({error.strerror}).",
            f"It lies in {entry.place}.",
        ) from error
    _clear(entry)


def base_of(model: LocalModel) -> Path:
    """The folder whose trash a model goes to."""
    return model.root.parent if model.kind is Kind.MODEL else model.root


def _parts(model: LocalModel) -> list[Path]:
    """What makes up a model: its folder; in Hugging Face's cache also the contents that no other
    version uses, and the names of this version."""
    if model.kind is not Kind.CACHE:
        return [model.path]
    repository = model.path.parent.parent
    others = [p for p in model.path.parent.iterdir() if p != model.path]
    if not others:
        return [repository]
    used = {blob for other in others for blob in _blobs(other)}
    parts = [model.path, *sorted(_blobs(model.path) - used)]
    refs = repository / "refs"
    for ref in sorted(refs.rglob("*")) if refs.is_dir() else []:
        if ref.is_file() and ref.read_bytes().strip() == model.commit.encode():
            parts.append(ref)
    return parts


def _blobs(snapshot: Path) -> set[Path]:
    """The contents that a version's links lead to. What lies outside the cache's own folder of
    contents is somebody else's and is never among them."""
    contents = snapshot.parent.parent / "blobs"
    found: set[Path] = set()
    for item in snapshot.rglob("*"):
        if item.is_symlink():
            target = Path(os.path.normpath(item.parent / os.readlink(item)))
            if target.parent == contents and target.is_file():
                found.add(target)
    return found


def _write_note(entry: Deleted) -> None:
    document = {
        "name": entry.name,
        "size": entry.size,
        "when": entry.when,
        "moves": [[str(a.relative_to(_base(entry.place))), b.name] for a, b in entry.moves],
    }
    write_atomically(entry.place / NOTE, json.dumps(document, indent=1) + "\n")


def _read_note(path: Path) -> Deleted | None:
    try:
        note = read_json_object(path)
        moves = tuple(_move(path.parent, *pair) for pair in note["moves"])
        when, size = float(note["when"]), int(note["size"])
        return Deleted(path.parent.name, str(note["name"]), size, when, path.parent, moves)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None  # not ours; left alone


def _move(place: Path, origin: str, name: str) -> tuple[Path, Path]:
    """Where a part was and where it is. Both are written as names below the folder they belong to:
    a disk may come back under another name, and a note from elsewhere must not reach further."""
    way = PurePath(origin)
    if way.is_absolute() or not way.parts or ".." in way.parts or not _PART.fullmatch(name):
        raise ValueError("leads out of its folder")
    return _base(place) / way, place / name


def _base(place: Path) -> Path:
    """The folder that a place of the trash belongs to."""
    return place.parents[2]


def _clear(entry: Deleted) -> None:
    """Removes the trash's own folders once they are empty."""
    with contextlib.suppress(OSError):
        (entry.place / NOTE).unlink(missing_ok=True)
    for folder in (entry.place, entry.place.parent, entry.place.parent.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()
