"""What one download is: a repository at one commit, its files, and the manifest that ends it.

It knows the JSON of the queue and of a finished model's `unblur-model.json`. It refuses to know how
bytes arrive. A token is never part of either.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from app.backend.files import read_json_object, write_atomically
from app.backend.transfer.faults import TransferError
from app.backend.transfer.files import RemoteFile, is_plain_name

MANIFEST = "unblur-model.json"
VERSION = 1
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class DownloadPlan:
    """A model to be fetched. commit: pinned, so that a file cannot change half-way. into: an
    existing model folder whose bad files are replaced (a repair); None = a new folder."""

    repo_id: str
    commit: str
    endpoint: str
    files: tuple[RemoteFile, ...]
    licence: str = ""
    into: Path | None = field(default=None)

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.repo_id) or ".." in self.repo_id:
            raise ValueError(f"{self.repo_id!r} is not a repository's name")
        if not _COMMIT.fullmatch(self.commit):
            raise ValueError(f"{self.commit!r} is not a commit")
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.endpoint!r} is not a hub's address")
        if not self.files:
            raise ValueError("nothing to download")

    @property
    def id(self) -> str:
        """The same for the same model, so that a later run finds what an earlier one received."""
        key = f"{self.endpoint} {self.repo_id} {self.commit} {self.into or ''}"
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def url(self, file: RemoteFile) -> str:
        return file_url(self.endpoint, self.repo_id, self.commit, file.path)

    def to_json(self) -> dict[str, object]:
        return {
            "repo_id": self.repo_id,
            "commit": self.commit,
            "endpoint": self.endpoint,
            "licence": self.licence,
            "into": str(self.into) if self.into else None,
            "files": [_file_json(file) for file in self.files],
        }

    @classmethod
    def from_json(cls, value: object) -> DownloadPlan:
        """Raises ValueError for what `to_json` did not write."""
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        try:
            return cls(
                repo_id=str(value["repo_id"]),
                commit=str(value["commit"]),
                endpoint=str(value["endpoint"]),
                licence=str(value.get("licence", "")),
                into=Path(value["into"]) if value.get("into") else None,
                files=tuple(_file_from(item) for item in value["files"]),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a download: {error!r}") from error


@dataclass(frozen=True)
class Manifest:
    """What a finished model folder says of itself."""

    repo_id: str
    commit: str
    endpoint: str
    licence: str
    fetched: str
    files: tuple[RemoteFile, ...]


def file_url(endpoint: str, repo_id: str, commit: str, path: str) -> str:
    return f"{endpoint}/{repo_id}/resolve/{quote(commit, safe='')}/{quote(path)}"


def write_manifest(folder: Path, plan: DownloadPlan) -> None:
    """Raises OSError."""
    document = {
        "version": VERSION,
        **{key: value for key, value in plan.to_json().items() if key != "into"},
        "fetched": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_atomically(folder / MANIFEST, json.dumps(document, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest | None:
    """None when there is none, or none that can be trusted: the folder is then a plain one."""
    try:
        value = read_json_object(folder / MANIFEST)
        plan = DownloadPlan.from_json(value)
    except (OSError, ValueError):
        return None
    fetched = str(value.get("fetched", ""))
    return Manifest(plan.repo_id, plan.commit, plan.endpoint, plan.licence, fetched, plan.files)


def new_folder(root: Path, plan: DownloadPlan) -> Path:
    """Where a finished model goes: `root`/owner/name; with the commit where another version is.
    Raises TransferError when both are taken."""
    free = [folder for folder in _places(root, plan) if not folder.exists()]
    if not free:
        raise TransferError(
            "transfer.name_taken",
            f"{_places(root, plan)[-1]} is there already and is not this version.",
            "Move or rename that folder, then resume.",
        )
    return free[0]


def published(root: Path, plan: DownloadPlan) -> Path | None:
    """The finished model of this very plan in `root`, None when it is not there. A manifest is
    enough: it is written last."""
    for folder in _places(root, plan):
        manifest = read_manifest(folder)
        if manifest is None or manifest.repo_id != plan.repo_id:
            continue
        if manifest.commit == plan.commit:
            return folder
    return None


def refuse_if_here(root: Path, plan: DownloadPlan) -> None:
    """Raises TransferError for a model that need not be downloaded."""
    folder = published(root, plan) if plan.into is None else None
    if folder is not None:
        raise TransferError(
            "transfer.already_here",
            f"{plan.repo_id} ({plan.commit[:8]}) is already in {folder}.",
            "Verify it, or delete it first.",
        )


def _places(root: Path, plan: DownloadPlan) -> tuple[Path, Path]:
    owner, name = plan.repo_id.split("/")
    versioned = f"{name}@{plan.commit[:8]}"
    if not all(is_plain_name(part) for part in (owner, name, versioned)):
        raise TransferError(
            "transfer.name",
            f"{plan.repo_id} cannot be the name of a folder on every system.",
            "Choose another copy of the model.",
        )
    return root / owner / name, root / owner / versioned


def _file_json(file: RemoteFile) -> dict[str, object]:
    value: dict[str, object] = {"path": file.path, "size": file.size}
    if file.sha256:
        value["sha256"] = file.sha256
    if file.git_sha1:
        value["git_sha1"] = file.git_sha1
    return value


def _file_from(value: object) -> RemoteFile:
    if not isinstance(value, dict):
        raise ValueError("a file is not an object")
    return RemoteFile(
        path=str(value["path"]),
        size=int(value["size"]),
        sha256=value.get("sha256"),
        git_sha1=value.get("git_sha1"),
    )
