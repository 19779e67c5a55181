"""Writes a .safetensors file whose tensors arrive in pieces and in any order: the header and the
size of the file are fixed first, then bytes go to their places.

Knows the file format, as `engine.checkpoint.tensor_file` does for reading. The safetensors package
serialises a whole file from memory, which a model larger than memory does not allow. Knows nothing
of models, and refuses nothing: what it is told to write has been planned.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedRandom
from math import prod
from pathlib import Path
from types import TracebackType

from engine.checkpoint.tensor_file import ITEM_SIZES, Bytes


@dataclass(frozen=True)
class NewTensor:
    """A tensor to be written. dtype: as in a safetensors header, e.g. "F8_E4M3"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return ITEM_SIZES[self.dtype] * prod(self.shape)


class FileLayout:
    """Where every tensor of one file goes. header: the file's first bytes. starts: name -> absolute
    offset. size: of the whole file in bytes."""

    def __init__(self, tensors: Sequence[NewTensor]) -> None:
        """Keeps the given order where that leaves every tensor aligned to its elements; tensors
        whose length would misalign their neighbours go last, the widest elements first."""
        ordered = sorted(tensors, key=_place)
        table: dict[str, object] = {"__metadata__": {"format": "pt"}}
        position = 0
        for tensor in ordered:
            table[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [position, position + tensor.nbytes],
            }
            position += tensor.nbytes
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text
        self.size = len(self.header) + position
        self.starts: dict[str, int] = {}
        position = len(self.header)
        for tensor in ordered:
            self.starts[tensor.name] = position
            position += tensor.nbytes


class NewFile:
    """An open file of a given layout. A file of that layout that is already there keeps its
    bytes."""

    def __init__(self, path: Path, layout: FileLayout) -> None:
        """Creates the file at its full size. OSError as from `open`, also where the disk is known
        not to have room."""
        self._layout = layout
        self.is_new = not _has_layout(path, layout)
        self._file: BufferedRandom = path.open("w+b" if self.is_new else "r+b")
        try:
            if self.is_new:
                self._file.truncate(layout.size)
                _reserve(self._file.fileno(), layout.size)
                self._file.write(layout.header)
                self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def write(self, name: str, begin: int, data: Bytes) -> None:
        """Puts bytes at byte `begin` of a tensor."""
        self._file.seek(self._layout.starts[name] + begin)
        self._file.write(data.data)

    def read(self, name: str, begin: int, out: Bytes) -> None:
        """Fills `out` with bytes that were written, from byte `begin` of a tensor on."""
        self._file.seek(self._layout.starts[name] + begin)
        if self._file.readinto(out.data) != out.size:
            raise OSError(f"{self._file.name} ends early")

    def flush(self) -> None:
        """Gives what was written to the operating system: it outlives this process."""
        self._file.flush()

    def close(self) -> None:
        """Closes; the bytes are on the disk then."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._file.close()


def _reserve(descriptor: int, size: int) -> None:
    """Lets a full disk say so now rather than after an hour. Some systems cannot; that is no fault
    of the file."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _has_layout(path: Path, layout: FileLayout) -> bool:
    if not path.is_file() or path.stat().st_size != layout.size:
        return False
    with path.open("rb") as file:
        return file.read(len(layout.header)) == layout.header


def _place(tensor: NewTensor) -> tuple[int, int]:
    item = ITEM_SIZES[tensor.dtype]
    if item == 8:
        return 0, 0
    return (1, 0) if tensor.nbytes % 4 == 0 else (2, -item)
