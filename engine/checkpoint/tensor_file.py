"""One .safetensors file: a header parsed with suspicion, and values read by mmap a window at a
time.

Knows the file format (8 bytes of header length, a JSON header, then raw little-endian data that the
header must cover exactly) and how to read without keeping the file's pages in memory. Refuses every
malformed header with an error of its own. Knows nothing of models.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeGuard

import numpy as np
import numpy.typing as npt

from engine.checkpoint.refusals import (
    DOWNLOAD_AGAIN,
    plain_file_size,
    printable,
    refuse,
    unreadable,
)
from engine.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]

WINDOW = (
    8 << 20
)  # bytes mapped at once: all that a read adds to resident memory (a scan: twice this)
HEADER_LIMIT = 100_000_000  # the format's own limit
_LFS_START = b"version https://git-lfs"

# Bytes an element takes, for every dtype the format knows with whole bytes.
ITEM_SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor as its header declares it. start, stop: absolute byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    file: str

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class TensorFile:
    """An open file with its validated header. `entries` is ordered by offset."""

    def __init__(self, path: Path) -> None:
        """Opens and parses. Raises CheckpointError; the message names the file, and expected and
        found sizes.
        """
        self.path = path
        self.name = path.name
        plain_file_size(path)  # before it is opened, which would wait for a pipe's writer
        try:
            self._file = path.open("rb")
            self._seeking = threading.Lock()
        except OSError as error:
            raise unreadable(self.name, error) from error
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.entries = parse_header(self._file, self.name, self.size)
        except OSError as error:
            self._file.close()
            raise unreadable(self.name, error) from error
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def read_into(self, entry: TensorEntry, out: Bytes, begin: int = 0) -> None:
        """Copies `out.size` bytes of the tensor, from its byte `begin` on, into `out`."""
        assert 0 <= begin <= begin + out.size <= entry.nbytes
        first = entry.start + begin
        for start in range(first, first + out.size, WINDOW):
            stop = min(start + WINDOW, first + out.size)
            out[start - first : stop - first] = self._window(start, stop)

    def pread(self, out: Bytes, start: int) -> None:
        """Fills `out` with the file's bytes from `start` on; no page of the file becomes resident.
        Releases the GIL; may be called from any thread."""
        view, done = out.data, 0
        try:
            while done < len(view):
                count = self._read_at(view[done:], start + done)
                if not count:
                    raise self._shrank(start + done)
                done += count
        except OSError as error:
            raise unreadable(self.name, error) from error

    def scan(self, entries: Iterable[TensorEntry]) -> Iterator[tuple[TensorEntry, int, Bytes]]:
        """Yields (tensor, byte offset in it, bytes) in file order, in pieces that never split 16
        bytes of a tensor.

        The bytes are a view of the mapping: they must not be kept after the next piece is asked
        for.
        """
        start, stop, window = 0, 0, np.empty(0, np.uint8)
        for entry in sorted(entries, key=lambda item: item.start):
            position = entry.start
            while position < entry.stop:
                if not start <= position < stop or (stop < entry.stop and stop - position < 16):
                    start, stop = position, min(position + WINDOW, self.size)
                    del window  # the mapping goes before the next one comes
                    window = self._window(start, stop)
                end = min(entry.stop, stop)
                if end < entry.stop:
                    end -= (end - entry.start) % 16
                yield entry, position - entry.start, window[position - start : end - start]
                position = end

    def _window(self, start: int, stop: int) -> Bytes:
        """A read-only view of bytes [start, stop). The mapping lives as long as the view (numpy
        holds it).
        """
        now = os.fstat(self._descriptor()).st_size
        if now < stop:  # touching a page behind the end would kill the process
            raise self._shrank(now)
        aligned = start - start % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = _map(self._descriptor(), stop - aligned, aligned)
        except (OSError, ValueError) as error:
            raise unreadable(self.name, error) from error
        return np.frombuffer(mapping, np.uint8)[start - aligned :]

    def _read_at(self, out: memoryview, start: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor(), [out], start)
        with self._seeking:  # Windows has no read that leaves the file's position alone
            self._file.seek(start)
            return self._file.readinto(out)

    def _descriptor(self) -> int:
        try:
            return self._file.fileno()
        except ValueError as error:  # closed file
            raise RuntimeError(f"{self.name} was released") from error

    def _shrank(self, now: int) -> CheckpointError:
        return refuse(
            "checkpoint.changed",
            f"{self.name} shrank from {self.size} to {now} bytes while it was being read.",
            DOWNLOAD_AGAIN,
            file=self.name,
        )


def _map(descriptor: int, length: int, offset: int) -> mmap.mmap:
    if sys.platform == "linux":  # fault the pages in at once instead of one by one
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(descriptor, length, flags=flags, prot=mmap.PROT_READ, offset=offset)
    return mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=offset)


def parse_header(file: BinaryIO, name: str, size: int) -> dict[str, TensorEntry]:
    """The tensors of a file of `size` bytes, from its first bytes: `file` need hold no more than
    the header, so that a file can be judged before it is downloaded. Raises CheckpointError."""
    if size == 0:
        raise refuse(
            "checkpoint.empty_file", f"{name} is empty (0 bytes).", DOWNLOAD_AGAIN, file=name
        )
    start = file.read(max(8, len(_LFS_START)))
    if start.startswith(_LFS_START):
        raise refuse(
            "checkpoint.lfs_pointer",
            f"{name} is a Git LFS pointer of {size} bytes, not the weights themselves.",
            "Fetch the real file (git lfs pull, or download it).",
            file=name,
        )
    length = int.from_bytes(start[:8], "little")
    if size < 8 or length > size - 8:
        raise refuse(
            "checkpoint.header_too_long",
            f"{name}: its header length says {length} bytes of header, but the file has {size}"
            " bytes in all.",
            f"The file is cut short or is not a safetensors file. {DOWNLOAD_AGAIN}",
            file=name,
            item="header length",
        )
    if length > HEADER_LIMIT:
        raise refuse(
            "checkpoint.header_too_long",
            f"{name}: its header length says {length} bytes; the format allows {HEADER_LIMIT}.",
            f"This is not a safetensors file. {DOWNLOAD_AGAIN}",
            file=name,
            item="header length",
        )
    file.seek(8)
    raw = file.read(length)
    header = _header_json(raw, name)
    entries = [
        _entry(tensor, value, name, 8 + length)
        for tensor, value in header.items()
        if tensor != "__metadata__"
    ]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    _check_coverage(entries, name, 8 + length, size)
    return {entry.name: entry for entry in entries}


def _header_json(raw: bytes, name: str) -> dict[str, object]:
    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            duplicates.extend(key for key, _ in pairs if key in seen or seen.add(key))
        return result

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=collect)
    except (ValueError, RecursionError) as error:
        raise _bad_header(name, f"the header is not valid JSON ({error})") from error
    if duplicates:
        raise refuse(
            "checkpoint.duplicate_key",
            f"{name}: the header names {printable(duplicates[0])} more than once.",
            DOWNLOAD_AGAIN,
            file=name,
            item=printable(duplicates[0]),
        )
    if not isinstance(header, dict):
        raise _bad_header(name, "the header is not a JSON object")
    for key in header:
        if not key.isprintable():
            raise _bad_header(name, f"the tensor name {printable(key)} is not printable text")
    return header


def _entry(tensor: str, value: object, file: str, data_start: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise _bad_entry(file, tensor, "is not described by an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        raise refuse(
            "checkpoint.unknown_dtype",
            f"{file}: tensor {tensor} has dtype {printable(str(dtype))}, which does not exist in"
            " the safetensors format or is not read here.",
            "Use a checkpoint saved as safetensors in bfloat16, float16, float32 or NVFP4.",
            file=file,
            item=tensor,
        )
    if not _is_sizes(shape):
        raise _bad_entry(file, tensor, f"has the impossible shape {printable(repr(shape))}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad_entry(file, tensor, f"has impossible offsets {printable(repr(offsets))}")
    expected = ITEM_SIZES[dtype]
    for size in shape:
        expected *= size
    begin, end = offsets
    if end - begin != expected:
        raise _bad_entry(
            file,
            tensor,
            f"of {dtype} {list(shape)} takes {expected} bytes, but its offsets hold {end - begin}",
        )
    return TensorEntry(tensor, dtype, tuple(shape), data_start + begin, data_start + end, file)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**63 for item in value
    )


def _check_coverage(entries: list[TensorEntry], name: str, data_start: int, size: int) -> None:
    position = data_start
    for entry in entries:
        if entry.start < position:
            raise _bad_entry(name, entry.name, "overlaps the tensor before it in the file")
        if entry.start > position:
            raise _bad_entry(name, entry.name, f"leaves a hole of {entry.start - position} bytes")
        position = entry.stop
    if position > size:
        raise refuse(
            "checkpoint.truncated",
            f"{name} is truncated: expected {position} bytes, found {size}.",
            DOWNLOAD_AGAIN,
            file=name,
        )
    if position < size:
        raise refuse(
            "checkpoint.trailing_bytes",
            f"{name} is longer than its tensors: expected {position} bytes, found {size}.",
            DOWNLOAD_AGAIN,
            file=name,
        )


def _bad_header(name: str, problem: str) -> Exception:
    return refuse(
        "checkpoint.header_invalid",
        f"{name}: {problem}.",
        DOWNLOAD_AGAIN,
        file=name,
        item="header",
    )


def _bad_entry(file: str, tensor: str, problem: str) -> Exception:
    return refuse(
        "checkpoint.header_invalid",
        f"{file}: tensor {tensor} {problem}.",
        DOWNLOAD_AGAIN,
        file=file,
        item=tensor,
    )
