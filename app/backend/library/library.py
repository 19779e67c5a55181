"""The library as a whole: every folder's models, deleting and bringing back, room used, doubles.

It knows folders, scans and the trash. It refuses to know the network: everything here works without
one. Methods read disks, which may be slow or asleep: not for the GUI's thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.backend.library import trash
from app.backend.library.folders import FolderList, Kind, LibraryError
from app.backend.library.scan import FolderView, LocalModel, Presence, scan
from app.backend.library.trash import Deleted


@dataclass(frozen=True)
class LibraryView:
    """Every folder as it was a moment ago."""

    folders: tuple[FolderView, ...]

    @property
    def models(self) -> tuple[LocalModel, ...]:
        return tuple(model for view in self.folders for model in view.models)

    @property
    def doubles(self) -> dict[str, tuple[LocalModel, ...]]:
        """repo_id -> its copies and versions, where there are several."""
        found: dict[str, list[LocalModel]] = {}
        for model in self.models:
            if model.repo_id:
                found.setdefault(model.repo_id, []).append(model)
        return {name: tuple(models) for name, models in found.items() if len(models) > 1}


class Library:
    """store: the JSON of the folder list. default: where models go until a person chooses. cache:
    Hugging Face's, None to leave it out. Safe for several threads."""

    def __init__(self, store: Path, default: Path, cache: Path | None) -> None:
        self.folders = FolderList(store, default, cache)

    def scan(self) -> LibraryView:
        """Looks at every folder. Raises nothing: a folder that cannot be read says so."""
        gone = {origin for entry in self.deleted() for origin, _ in entry.moves}
        views = tuple(
            scan(folder, may_be_missing=folder.path == self.folders.default)
            for folder in self.folders.all()
            if folder.path not in gone
        )
        for view in views:
            if view.presence is Presence.PRESENT:
                self.folders.note_seen(view.folder.path, len(view.models))
        return LibraryView(tuple(_each_once(views)))

    def find(self, name: str) -> LocalModel:
        """A model by path, owner/name, owner/name@commit, or name alone. Raises LibraryError when
        there is none, or more than one."""
        wanted, _, version = name.partition("@")
        path = os.path.abspath(name)
        models = self.scan().models
        exact = [model for model in models if str(model.path) == path]
        found = exact or [
            model
            for model in models
            if wanted.lower() in (model.name.lower(), model.name.lower().rpartition("/")[2])
            and model.commit.startswith(version)
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            raise LibraryError(
                "library.not_found",
                f"There is no model {name} on this computer.",
                "See what there is: unblur models list",
            )
        places = "; ".join(f"{model.path}" for model in found)
        raise LibraryError(
            "library.ambiguous",
            f"{name} names {len(found)} models: {places}.",
            "Give one of these paths.",
        )

    def delete(self, model: LocalModel) -> Deleted:
        """Moves it into the trash; `undo` brings it back. Raises LibraryError."""
        deleted = trash.delete(model)
        if model.kind is not Kind.MODEL:  # empty because of us, not because its disk is absent
            for folder in self.folders.all():
                if folder.path == model.root:
                    self.folders.note_seen(model.root, len(scan(folder).models))
        return deleted

    def undo(self, deleted: Deleted) -> None:
        """Raises LibraryError."""
        trash.undo(deleted)

    def deleted(self) -> tuple[Deleted, ...]:
        """What can still be brought back."""
        return tuple(trash.find(self._bases()))

    def empty_trash(self) -> int:
        """Deletes for good what was deleted; bytes freed. At the end of the app. Raises
        LibraryError at the first that resists."""
        freed = 0
        for entry in self.deleted():
            self.destroy(entry)
            freed += entry.size
        return freed

    def destroy(self, deleted: Deleted) -> None:
        """Deletes one for good. Raises LibraryError."""
        trash.destroy(deleted)
        for origin, _ in deleted.moves:  # a model's own folder is no folder any more
            self.folders.remove(origin)

    def _bases(self) -> list[Path]:
        bases: list[Path] = []
        listed = [folder.path for folder in self.folders.all()]
        for path in (*listed, *self.folders.taken_off()):  # what was deleted there before is kept
            bases += [path, path.parent]
        return list(dict.fromkeys(bases))


def _each_once(views: tuple[FolderView, ...]) -> Iterator[FolderView]:
    """A model's folder that lies in another listed one is one model, not two copies of it: who
    deleted the double would have none left."""
    seen: set[str] = set()
    for view in views:
        models: list[LocalModel] = []
        for model in view.models:
            real = os.path.realpath(model.path)
            if real not in seen:
                seen.add(real)
                models.append(model)
        if len(models) == len(view.models):
            yield view
        elif models or view.folder.kind is not Kind.MODEL:
            yield replace(view, models=tuple(models))


def disk_use(models: tuple[LocalModel, ...]) -> int:
    """Bytes that models take together; a content that versions share counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for model in models:
        for name, size in model.files:
            try:
                status = os.stat(model.path / name)
            except OSError:
                continue
            if size > 0 and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_size
    return total


def hugging_face_cache() -> Path | None:
    """The cache that other programs fill, where there is one."""
    from huggingface_hub.constants import HF_HUB_CACHE

    path = Path(HF_HUB_CACHE)
    return path if path.is_dir() else None
