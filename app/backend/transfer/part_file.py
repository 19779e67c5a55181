"""A file on its way: `NAME.part` with its bytes so far, and `NAME.part.json` that says of what.

It knows how to go on from any byte after a kill: the length of the part is the progress, its bytes
are hashed again before more are added, and the name without `.part` appears only once the hash is
right and the disk has it. It refuses to know where bytes come from.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from app.backend.files import read_json_object, write_atomically
from app.backend.transfer.faults import not_written
from app.backend.transfer.files import READ, Hasher, RemoteFile
from app.backend.transfer.http import Source


def write_all(stream: BinaryIO, data: bytes) -> None:
    """Writes every byte; an unbuffered stream may take fewer than it is given."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


class PartFile:
    """One file being received into `folder`. Used by one thread at a time."""

    def __init__(self, folder: Path, file: RemoteFile, source: Source) -> None:
        self.file = file
        self.target = folder / file.path
        self.path = folder / f"{file.path}.part"
        self._note = folder / f"{file.path}.part.json"
        self._identity = {
            "url": source.url.partition("?")[0],
            "size": file.size,
            "sha256": file.sha256,
            "git_sha1": file.git_sha1,
        }
        self._stream: BinaryIO | None = None
        self._hasher: Hasher | None = None
        self.etag = ""
        self.position = 0

    @property
    def is_done(self) -> bool:
        """Whether the finished file is there: it got its name only after its hash was right."""
        with contextlib.suppress(OSError):
            return self.target.stat().st_size == self.file.size
        return False

    def open(self, each: Callable[[int], None]) -> None:
        """Makes the part ready to take bytes at `position`; kept bytes are hashed first.
        each(bytes) is called meanwhile and may raise. Raises TransferError, Interrupted."""
        if self._stream is not None and self._hasher is not None:
            return  # a further try of the same process: the hash is where the bytes end
        with self._writing():
            self.close()
            known = self._read_note()
            stream = open(self.path, "r+b" if known else "w+b", buffering=0)  # noqa: SIM115
            self._stream, self._hasher, self.position = stream, self.file.hasher(), 0
            if not known:
                self._write_note()
            while data := stream.read(READ):
                self._hasher.update(data)
                self.position += len(data)
                each(len(data))

    def note_etag(self, etag: str) -> None:
        """Remembers what the server calls this version, to notice another one after a restart."""
        if etag and etag != self.etag:
            self.etag = etag
            with self._writing():
                self._write_note()

    def append(self, data: bytes) -> None:
        """Writes and hashes. Raises TransferError; then the next `open` reads the part again."""
        assert self._stream is not None
        assert self._hasher is not None
        with self._writing():
            write_all(self._stream, data)
            self._hasher.update(data)
            self.position += len(data)

    def restart(self) -> None:
        """Throws away what was kept."""
        assert self._stream is not None
        with self._writing():
            self._stream.seek(0)
            self._stream.truncate()
        self._hasher, self.position, self.etag = self.file.hasher(), 0, ""

    @property
    def is_right(self) -> bool:
        assert self._hasher is not None
        return self._hasher.hexdigest() == self.file.expected

    def publish(self) -> None:
        """Waits until the disk has every byte, then gives the file its name."""
        assert self._stream is not None
        with self._writing():
            os.fsync(self._stream.fileno())
            self.close()
            os.replace(self.path, self.target)
            self._note.unlink(missing_ok=True)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._hasher = None

    def _read_note(self) -> bool:
        """Whether the part on disk is of the very file that is wanted."""
        try:
            note = read_json_object(self._note)
            if self.path.stat().st_size > self.file.size:
                return False
        except (OSError, ValueError):
            return False
        self.etag = str(note.pop("etag", ""))
        return note == self._identity

    def _write_note(self) -> None:
        note = {**self._identity, "etag": self.etag}
        write_atomically(self._note, json.dumps(note, indent=1) + "\n")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            left = self.file.size - self.position
            free = _free(self.path.parent)
            raise not_written(self.file.path, error, left, free) from error


def _free(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0
