"""Which folders hold models, of which kind, and how many models each had when it was last seen.

It knows one versioned JSON file. It refuses to look into the folders (`scan`), and to forget one
that is absent: its drive may come back.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from app.backend.files import read_json_object, write_atomically
from engine.errors import UnblurError

VERSION = 1


class LibraryError(UnblurError):
    """Something on this computer's disks is not as asked for."""


class Kind(StrEnum):
    """MODELS: owner/name folders; downloads may go here. CACHE: Hugging Face's own, read in place.
    MODEL: one model's folder, added as it is."""

    MODELS = "models"
    CACHE = "hugging face cache"
    MODEL = "model"


@dataclass(frozen=True)
class Folder:
    """seen: models found at the last look, 0 for a new one."""

    path: Path
    kind: Kind
    seen: int = 0


class FolderList:
    """The folders, the first of kind MODELS being where downloads go. Safe for several threads.
    `problem`: None, or a sentence on why changes will not outlive the window."""

    def __init__(self, store: Path, default: Path, cache: Path | None) -> None:
        self.problem: str | None = None
        self.default = default
        self._store, self._lock = store, threading.RLock()
        self._may_write = True
        self._cache = cache
        self._hidden: set[Path] = set()  # taken off the list by hand
        self._stamp = self._stamp_now()
        self._folders = self._completed(self._read())

    def all(self) -> tuple[Folder, ...]:
        with self._lock:
            return tuple(self._folders)

    def taken_off(self) -> tuple[Path, ...]:
        """Folders that a person took off the list."""
        with self._lock:
            return tuple(sorted(self._hidden))

    @property
    def download_to(self) -> Path:
        """Where downloads go. The default folder is made here; a chosen one never is."""
        path = next(folder.path for folder in self.all() if folder.kind is Kind.MODELS)
        if path == self.default:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LibraryError(
                    "library.not_writable",
                    f"The models folder {path} cannot be made ({error.strerror}).",
                    "Choose another models folder.",
                ) from error
        return path

    def choose_download_folder(self, path: Path) -> None:
        """Puts a folder first. Raises LibraryError for one that is no folder."""
        folder = self.add(path)
        if folder.kind is not Kind.MODELS:
            raise LibraryError(
                "library.not_for_downloads",
                f"{path} is {_words(folder.kind)}; downloads need a folder of their own.",
                "Choose another folder.",
            )
        with self._lock:
            self._folders = [folder, *(f for f in self._folders if f.path != folder.path)]
            self._write()

    def add(self, path: Path) -> Folder:
        """Adds a folder that a person chose or dropped; its kind is seen. Raises LibraryError."""
        path = path.expanduser().absolute()
        folder = _recognised(path)
        with self._lock:
            self._catch_up()
            for known in self._folders:
                if known.path == folder.path:
                    return known
            self._folders.append(folder)
            self._hidden.discard(folder.path)
            self._write()
        return folder

    def remove(self, path: Path) -> None:
        """Takes a folder off the list; nothing on the disk changes."""
        with self._lock:
            self._catch_up()
            if all(folder.path != path for folder in self._folders):
                return
            self._folders = [folder for folder in self._folders if folder.path != path]
            self._hidden.add(path)
            if all(folder.kind is not Kind.MODELS for folder in self._folders):
                self._folders.insert(0, Folder(self.default, Kind.MODELS))
            self._write()

    def note_seen(self, path: Path, count: int) -> None:
        """Remembers how many models a folder had, so that an empty one can be told from an absent
        drive."""
        with self._lock:
            self._catch_up()
            changed = [
                replace(folder, seen=count) if folder.path == path else folder
                for folder in self._folders
            ]
            if changed != self._folders:
                self._folders = changed
                self._write()

    def _completed(self, folders: list[Folder]) -> list[Folder]:
        """With a place for downloads, and the cache unless it was taken off."""
        if all(folder.kind is not Kind.MODELS for folder in folders):
            folders = [Folder(self.default, Kind.MODELS), *folders]
        known = {folder.path for folder in folders} | self._hidden
        if self._cache is not None and self._cache not in known:
            folders = [*folders, Folder(self._cache, Kind.CACHE)]
        return folders

    def _catch_up(self) -> None:
        """Before a change: another window or a command may have changed the file meanwhile, and
        what it added must not be written over."""
        now = self._stamp_now()
        if not self._may_write or now is None or now == self._stamp:
            return
        self._stamp = now
        found = self._read()
        if found:  # else it was damaged: what is known here is written instead
            self._folders = self._completed(found)

    def _stamp_now(self) -> tuple[int, int, int] | None:
        """Differs after every write, which puts a new file in place."""
        try:
            status = self._store.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> list[Folder]:
        try:
            document = read_json_object(self._store)
            if int(document["version"]) > VERSION:
                self._may_write = False
                self.problem = "The list of model folders is of a newer Unblur and is left alone."
                return []
            self._hidden = {Path(path) for path in document["hidden"]}
            return [
                Folder(Path(item["path"]), Kind(item["kind"]), int(item["seen"]))
                for item in document["folders"]
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._may_write = False
            self.problem = f"The list of model folders cannot be read ({error.strerror})."
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._hidden.clear()
            aside = self._store.with_suffix(f".damaged-{int(time.time())}.json")
            try:
                self._store.rename(aside)
            except OSError:
                self._may_write = False
            self.problem = f"The list of model folders was damaged ({error}); kept as {aside.name}."
        return []

    def _write(self) -> None:
        if not self._may_write:
            return
        folders = [{**asdict(f), "path": str(f.path), "kind": f.kind.value} for f in self._folders]
        try:
            hidden = sorted(map(str, self._hidden))
            document = {"version": VERSION, "folders": folders, "hidden": hidden}
            write_atomically(self._store, json.dumps(document, indent=1) + "\n")
            self._stamp = self._stamp_now()
        except OSError as error:
            self.problem = f"The list of model folders cannot be saved ({error.strerror})."
        else:
            self.problem = None


def _recognised(path: Path) -> Folder:
    try:
        if not path.is_dir():
            what = "a file" if path.is_file() else "not there"
            raise LibraryError(
                "library.not_a_folder",
                f"{path} is {what}; a models folder is a folder.",
                "Choose the folder that the models are in.",
            )
        names = {item.name for item in path.iterdir()}
        hub = path / "hub"
        inner = hub.is_dir() and any(item.name.startswith("models--") for item in hub.iterdir())
    except OSError as error:
        raise LibraryError(
            "library.unreadable",
            f"{path} cannot be read ({error.strerror}).",
            "Check that you may read it and that its disk is connected.",
        ) from error
    if any(name.startswith("models--") for name in names):
        return Folder(path, Kind.CACHE)
    if inner:
        return Folder(path / "hub", Kind.CACHE)
    if "config.json" in names:
        return Folder(path, Kind.MODEL)
    return Folder(path, Kind.MODELS)


def _words(kind: Kind) -> str:
    return {
        Kind.CACHE: "a Hugging Face cache",
        Kind.MODEL: "one model's folder",
        Kind.MODELS: "a models folder",
    }[kind]
