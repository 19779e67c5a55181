"""Repositories as git and LFS see them: commits, blobs, both hashes, and who may read them.

It knows contents and their hashes. It refuses to know HTTP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class Blob:
    """A file's content: bytes, or (size, read(start, stop)) with a stated hash for a virtual one.
    lfs: kept outside git, as all large files are."""

    def __init__(
        self,
        data: bytes = b"",
        *,
        lfs: bool = False,
        size: int | None = None,
        read: Callable[[int, int], bytes] | None = None,
        sha256: str | None = None,
    ) -> None:
        self.size = len(data) if size is None else size
        self.lfs = lfs
        self._read = read or (lambda start, stop: data[start:stop])
        self.sha256 = sha256 or hashlib.sha256(data).hexdigest()
        self.oid = hashlib.sha1(b"blob %d\0" % self.size + data).hexdigest()

    def read(self, start: int, stop: int) -> bytes:
        return self._read(start, stop)

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass
class Repository:
    """owner/name with one commit at a time. gated: readers maps a token to "accepted", "new",
    "pending", "rejected" or "narrow" (a token that may not read gated models)."""

    name: str
    files: dict[str, Blob]
    licence: str = "apache-2.0"
    gated: bool = False
    private: bool = False
    readers: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    config: Mapping[str, object] | None = None

    @property
    def commit(self) -> str:
        """Follows from the content, as in git."""
        digest = hashlib.sha1(self.name.encode())
        for path, blob in sorted(self.files.items()):
            digest.update(f"{path} {blob.etag}\n".encode())
        return digest.hexdigest()

    def info(self) -> dict[str, object]:
        """What /api/models/NAME answers."""
        return {
            "_id": hashlib.sha1(self.name.encode()).hexdigest()[:24],
            "id": self.name,
            "modelId": self.name,
            "author": self.name.partition("/")[0],
            "sha": self.commit,
            "lastModified": "2026-02-03T04:05:06.000Z",
            "createdAt": "2026-01-02T03:04:05.000Z",
            "private": self.private,
            "gated": "auto" if self.gated else False,
            "disabled": False,
            "downloads": 1234,
            "likes": 5,
            "tags": ["safetensors", *self.tags, f"license:{self.licence}"],
            "cardData": {"license": self.licence},
            "config": self.config or {},
            "siblings": [{"rfilename": path} for path in self.files],
        }

    def tree(self) -> list[dict[str, object]]:
        """What /api/models/NAME/tree/REVISION answers: folders too, as the hub does."""
        entries: list[dict[str, object]] = []
        for folder in sorted({path.partition("/")[0] for path in self.files if "/" in path}):
            entries.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
        for path, blob in self.files.items():
            if "/" in path:
                continue
            entry: dict[str, object] = {
                "type": "file",
                "oid": blob.oid,
                "size": blob.size,
                "path": path,
            }
            if blob.lfs:
                entry["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": 134}
            entries.append(entry)
        return entries
