"""What a file of a repository is, which of them a model needs, and the hashes that prove them.

It knows names, sizes and the two hashes the hub publishes: SHA-256 for large files, git's own SHA-1
for small ones. It refuses pickles, code and names that could leave the folder.
"""

from __future__ import annotations

import errno
import hashlib
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from app.backend.transfer.faults import TransferError

INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
READ = 1 << 20
LARGEST = 1 << 60  # bytes; no file system holds a larger file
_WANTED = {
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    INDEX,
}
_LEGAL = re.compile(r"(licen[cs]e|notice|use_policy|copying)([._-].*)?", re.IGNORECASE)
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


class Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub lists it. size: bytes. sha256 or git_sha1: lower-case hex; at least one."""

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    def __post_init__(self) -> None:
        if not is_plain_name(self.path):
            raise ValueError(f"{self.path!r} is not a plain file name")
        if not 0 <= self.size <= LARGEST or not (self.sha256 or self.git_sha1):
            raise ValueError(f"{self.path}: no size that can be, or no hash")
        for value, digits in ((self.sha256, 64), (self.git_sha1, 40)):
            if value and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
                raise ValueError(f"{self.path}: a hash has {digits} hexadecimal digits")

    @property
    def expected(self) -> str:
        return self.sha256 or self.git_sha1 or ""

    def hasher(self) -> Hasher:
        """A hasher whose digest of the whole file is `expected`."""
        if self.sha256:
            return hashlib.sha256()
        blob = hashlib.sha1(usedforsecurity=False)  # git's name of a file, not a signature
        blob.update(b"blob %d\0" % self.size)
        return blob


def hash_matches(
    path: Path, file: RemoteFile, each: Callable[[int], None] = lambda _count: None
) -> bool:
    """Whether the file on disk is the one meant. each(bytes) is called as it is read and may raise
    to stop. Raises OSError, also for a pipe or a device, which might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a plain file")
    hasher = file.hasher()
    with open(path, "rb", buffering=0) as stream:
        while data := stream.read(READ):
            hasher.update(data)
            each(len(data))
    return hasher.hexdigest() == file.expected


def is_plain_name(name: str) -> bool:
    """Whether a name from outside is one file in a folder, on every system."""
    return (
        bool(name)
        and len(name) <= 200
        and PurePosixPath(name).name == name
        and name not in (".", "..")
        and not re.search(r'[\x00-\x1f<>:"/\\|?*]', name)
        and not name.endswith((" ", "."))
        and not _RESERVED.fullmatch(name)
    )


def is_needed(name: str) -> bool:
    """Whether a model's file of this name is ever fetched or read here: not a pickle, not code."""
    return name in _WANTED or name.endswith(".safetensors") or bool(_LEGAL.fullmatch(name))


def needed_files(
    listing: Iterable[RemoteFile], shards: Sequence[str] | None
) -> tuple[RemoteFile, ...]:
    """The files a model needs, small ones first. shards: what its index names, None = no index.

    Raises TransferError where there are no safetensors files, with the reason.
    """
    files = {file.path: file for file in listing}
    weights = [name for name in files if name.endswith(".safetensors")]
    if shards is not None:
        weights = list(dict.fromkeys(shards))
        for name in weights:
            if name not in files or not name.endswith(".safetensors"):
                raise TransferError(
                    "transfer.missing_shard",
                    f"The model's index names {name[:100]!r}, which the hub does not have.",
                    "The model is incomplete on the hub; choose another version of it.",
                )
    if not weights or "config.json" not in files:
        raise _nothing_to_run(files)
    small = [n for n in files if is_needed(n) and not n.endswith(".safetensors")]
    chosen = [files[name] for name in (*small, *weights)]
    return tuple(sorted(chosen, key=lambda file: (file.size, file.path)))


def _nothing_to_run(files: Iterable[str]) -> TransferError:
    names = list(files)
    pickle = next((name for name in names if name.endswith(PICKLES)), None)
    gguf = next((name for name in names if name.endswith(".gguf")), None)
    if pickle is not None:
        return TransferError(
            "transfer.pickle",
            f"This model has its weights only as {pickle}, a format that can hide a program, so it"
            " is never downloaded or opened.",
            "Choose a version saved as safetensors.",
        )
    found = "GGUF files, which are not read here" if gguf else "no safetensors weights"
    if any(name.endswith(".safetensors") for name in names):
        found = "no config.json"
    return TransferError(
        "transfer.no_weights",
        f"This repository has {found}.",
        "Choose a repository with config.json and .safetensors files.",
    )
