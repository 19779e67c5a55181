"""What models a folder holds: names, versions, sizes and known hashes, read from the disk alone.

It knows three layouts: owner/name folders, Hugging Face's cache (in place, through its links), and
one model's folder. It refuses to open weights and pickles, and to call an absent drive empty.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.backend.hub.support import (
    JsonFiles,
    Looked,
    Support,
    Supported,
    quantisation_words,
    stated_context,
    support_of_config,
)
from app.backend.library.folders import Folder, Kind
from app.backend.transfer.download import HIDDEN
from app.backend.transfer.files import PICKLES, RemoteFile, is_needed, is_plain_name
from app.backend.transfer.plan import MANIFEST, read_manifest
from engine.checkpoint.folder import read_json
from engine.errors import CheckpointError

COPY_JOURNAL = "quantise-journal.jsonl"  # of an NVFP4 copy that is not finished
NAMED = 3  # unreadable folders that are named one by one
SYSTEMS = ("lost+found", "System Volume Information", "$RECYCLE.BIN")  # on the top of a disk
_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Presence(StrEnum):
    PRESENT = "present"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class LocalModel:
    """A model on a disk. path: its folder, to be given to the engine. root: the folder of the
    library it is in. repo_id, commit: "" where nobody wrote them down. size: bytes of its files.
    files: every file's name and size, -1 for one that is named and missing. hashes: what the files
    should be, as far as known. problem: a sentence where something is missing, "" otherwise."""

    path: Path
    root: Path
    kind: Kind
    name: str
    repo_id: str
    commit: str
    endpoint: str
    licence: str
    size: int
    files: tuple[tuple[str, int], ...]
    hashes: tuple[RemoteFile, ...]
    support: Support
    quantisation: str
    context: int | None
    problem: str = ""


@dataclass(frozen=True)
class FolderView:
    """A folder as it is now. reason: why it is absent, unreadable, or shown in part; "" where all
    of it is shown."""

    folder: Folder
    presence: Presence
    reason: str
    models: tuple[LocalModel, ...] = ()


def scan(folder: Folder, may_be_missing: bool = False) -> FolderView:
    """Looks at one folder. Raises nothing; reads names, sizes and small JSON files. may_be_missing:
    it is made when it is first needed, so until then it is empty, not absent."""
    try:
        if not folder.path.is_dir():
            if may_be_missing and not folder.seen:
                return FolderView(folder, Presence.PRESENT, "")
            return _absent(folder, f"{folder.path} is not there. Its disk may not be connected.")
        names = [item.name for item in folder.path.iterdir()]
        unread: list[str] = []
        models = tuple(_models(folder, unread))
    except OSError as error:
        reason = f"{folder.path} cannot be read ({error.strerror})."
        return FolderView(folder, Presence.UNREADABLE, reason)
    nothing = all(name.startswith(".") and name != HIDDEN for name in names)
    if not models and folder.seen and nothing:
        return _absent(
            folder,
            f"{folder.path} is empty, and had {folder.seen} models when it was last seen. Its disk"
            " may not be connected.",
        )
    return FolderView(folder, Presence.PRESENT, _in_part(unread), models)


def _in_part(unread: list[str]) -> str:
    if not unread:
        return ""
    more = f" and {len(unread) - NAMED} more" if len(unread) > NAMED else ""
    return f"Not shown, since it cannot be read: {', '.join(unread[:NAMED])}{more}."


def _absent(folder: Folder, reason: str) -> FolderView:
    return FolderView(folder, Presence.ABSENT, reason)


def _models(folder: Folder, unread: list[str]) -> Iterator[LocalModel]:
    """unread: takes the names of what cannot be read. One such folder hides no other; only where
    the folder itself cannot be read, OSError is raised."""
    if folder.kind is Kind.MODEL:
        yield _plain(folder, folder.path, folder.path.name)
    elif folder.kind is Kind.CACHE:
        for repository in sorted(folder.path.glob("models--*--*")):
            yield from _readable(_cached(folder, repository), repository.name, unread)
    else:
        for path in _visible_folders(folder.path):
            yield from _readable(_named(folder, path, unread), path.name, unread)


def _readable(models: Iterator[LocalModel], name: str, unread: list[str]) -> Iterator[LocalModel]:
    try:
        yield from models
    except FileNotFoundError:
        return  # it was moved away while it was looked at
    except OSError:
        unread.append(name)


def _named(folder: Folder, path: Path, unread: list[str]) -> Iterator[LocalModel]:
    """A model's own folder, or an owner's with models in it."""
    if _is_model(path):
        yield _plain(folder, path, path.name)
        return
    for inner in _visible_folders(path):
        name = f"{path.name}/{inner.name}"
        yield from _readable(_one(folder, inner, name), name, unread)


def _one(folder: Folder, path: Path, name: str) -> Iterator[LocalModel]:
    if _is_model(path):
        yield _plain(folder, path, name)


def _visible_folders(path: Path) -> list[Path]:
    shown = [p for p in path.iterdir() if not p.name.startswith(".") and p.name not in SYSTEMS]
    return sorted(p for p in shown if _may_be_folder(p))


def _may_be_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return True  # e.g. a share that is gone: looking into it tells


def _is_model(path: Path) -> bool:
    names = {item.name for item in path.iterdir()}
    if COPY_JOURNAL in names:
        return False
    return bool({"config.json", MANIFEST} & names) or any(n.endswith(".safetensors") for n in names)


def _plain(folder: Folder, path: Path, name: str) -> LocalModel:
    manifest = read_manifest(path)
    files = _files(path)
    present = dict(files)
    missing: list[tuple[str, int]] = []
    if manifest is not None:
        missing = [(file.path, -1) for file in manifest.files if file.path not in present]
    return _described(
        folder,
        path,
        name=manifest.repo_id if manifest else name,
        files=(*files, *missing),
        repo_id=manifest.repo_id if manifest else "",
        commit=manifest.commit if manifest else "",
        endpoint=manifest.endpoint if manifest else "",
        licence=manifest.licence if manifest else "",
        hashes=manifest.files if manifest else (),
    )


def _cached(folder: Folder, repository: Path) -> Iterator[LocalModel]:
    """Every version that Hugging Face's cache has of one model."""
    _, owner, name = repository.name.split("--", 2)
    snapshots = repository / "snapshots"
    for path in _visible_folders(snapshots) if snapshots.is_dir() else []:
        files = _files(path)
        if not any(n == "config.json" or n.endswith((".safetensors", *PICKLES)) for n, _ in files):
            continue
        hashes = [_hash_of(path / file, size) for file, size in files if size >= 0]
        yield _described(
            folder,
            path,
            name=f"{owner}/{name}",
            files=files,
            repo_id=f"{owner}/{name}",
            commit=path.name,
            endpoint="",
            licence="",
            hashes=tuple(found for found in hashes if found is not None),
        )


def _hash_of(path: Path, size: int) -> RemoteFile | None:
    """The cache names each content by its hash, and links to it."""
    if not path.is_symlink() or not is_plain_name(path.name):
        return None
    name = Path(os.readlink(path)).name
    if not _HEX.fullmatch(name):
        return None
    if len(name) == 64:
        return RemoteFile(path.name, size, sha256=name)
    return RemoteFile(path.name, size, git_sha1=name)


def _files(path: Path) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the plain files; -1 for a link that leads nowhere."""
    found: list[tuple[str, int]] = []
    for item in sorted(path.iterdir()):
        try:
            status = item.stat()
        except OSError:  # leads nowhere or in a circle, or was deleted this moment
            if item.is_symlink():
                found.append((item.name, -1))
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((item.name, status.st_size))
    return tuple(found)


def _described(
    folder: Folder,
    path: Path,
    *,
    name: str,
    files: tuple[tuple[str, int], ...],
    repo_id: str,
    commit: str,
    endpoint: str,
    licence: str,
    hashes: tuple[RemoteFile, ...],
) -> LocalModel:
    config, support = _config(path, files)
    read = JsonFiles(config, {}, {}, {})
    missing = [file for file, size in files if size < 0 and is_needed(file)]
    problem = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing."
    return LocalModel(
        path=path,
        root=folder.path,
        kind=folder.kind,
        name=name,
        repo_id=repo_id,
        commit=commit,
        endpoint=endpoint,
        licence=licence,
        size=sum(size for _, size in files if size > 0),
        files=files,
        hashes=hashes,
        support=support,
        quantisation=quantisation_words(read),
        context=stated_context(config),
        problem=problem if missing else "",
    )


def _config(path: Path, files: tuple[tuple[str, int], ...]) -> tuple[dict[str, object], Support]:
    names = [name for name, size in files if size >= 0]
    pickle = next((name for name in names if name.endswith(PICKLES)), None)
    if pickle is not None and not any(name.endswith(".safetensors") for name in names):
        reason = f"{pickle} is a pickle file, which can hide a program; it is never opened."
        return {}, Support(Supported.NO, reason, Looked.NOTHING)
    if "config.json" not in names:
        return {}, Support(Supported.NO, "It has no config.json.", Looked.NOTHING)
    try:
        config = read_json(path / "config.json")
    except CheckpointError as error:
        return {}, Support(Supported.NO, error.message, Looked.CONFIG)
    return config, support_of_config(config)
