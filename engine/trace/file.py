"""The `.dntrace` file: magic, JSON header, arrays as they lie in memory (docs/dntrace.md).

Knows bytes and trusts none of them: a file from anywhere is refused with a sentence, never with a
crash. Reading takes the file's size in memory; writing puts the file in place at once or not at
all.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from engine.trace.checks import check_trace
from engine.trace.errors import TraceError
from engine.trace.header import FORMAT_VERSION, TraceHeader
from engine.trace.header_json import damaged, header_from_json, header_to_json
from engine.trace.trace import KeptLogits, Trace

EXTENSION = ".dntrace"
MAGIC = b"DNTRACE\n"
PREFIX = len(MAGIC) + 8  # and the header's length, uint64
ALIGN = 64
MAX_HEADER = 16 * 2**20  # JSON grows up to 24 times its size when it is read
MAX_FILE = 8 * 2**30
# name: (dtype, shape by dimension). S, L, K, N, V and P are found on reading, and agree everywhere.
REQUIRED = {
    "block": ("<i4", "S"),
    "step": ("<i4", "S"),
    "block_start": ("<i4", "S"),
    "forwards": ("<i4", "S"),
    "seconds": ("<f8", "S"),
    "ids": ("<i4", "SL"),
    "edited_from": ("<i4", "SL"),
    "state": ("|u1", "SL"),
    "confidence": ("<f4", "SL"),
    "entropy": ("<f4", "SL"),
}
TOP = {"top_ids": ("<i4", "SLK"), "top_p": ("<f4", "SLK")}
LOGITS = {
    "logit_step": ("<i4", "N"),
    "logit_position": ("<i4", "N"),
    "logits": ("<f4", "NV"),
}
PROMPT = {"prompt_ids": ("<i4", "P")}
Arrays = dict[str, npt.NDArray[Any]]


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a `.dntrace` file beside its place, then puts it there. Raises TraceError
    `trace.not_written`, leaving what was there."""
    target = Path(path)
    arrays = _arrays_of(trace)
    table, offset = {}, 0
    for name, array in arrays.items():
        table[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "offset": offset}
        offset = _aligned(offset + array.nbytes)
    content = {
        "version": FORMAT_VERSION,
        "data_bytes": offset,
        "arrays": table,
        "trace": header_to_json(trace.header),
    }
    header = json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
    begin = _aligned(PREFIX + len(header))
    if len(header) > MAX_HEADER or begin + offset > MAX_FILE:
        raise TraceError(
            "trace.too_large",
            f"This trace would take {(begin + offset) / 2**20:.0f} MB, more than a trace file "
            "can hold.",
            "Record fewer positions, fewer candidates, or a shorter reply.",
        )
    draft = target.with_name(f".{secrets.token_hex(8)}{EXTENSION}.part")
    try:
        with draft.open("xb") as file:
            file.write(MAGIC + len(header).to_bytes(8, "little") + header)
            file.write(b"\0" * (begin - PREFIX - len(header)))
            for array in arrays.values():
                file.write(array.reshape(-1).view(np.uint8).data)
                file.write(b"\0" * (_aligned(array.nbytes) - array.nbytes))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except OSError as error:
        raise TraceError(
            "trace.not_written",
            f"{target.name} could not be written: {error.strerror or error}.",
            "Choose another folder, or make room on the disk.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads a `.dntrace` file whole; its arrays are read-only views of one buffer of the file's
    size.

    Raises TraceError: `trace.not_readable` (no such file, no permission), `trace.not_a_trace`,
    `trace.newer`, `trace.truncated`, `trace.too_large` or `trace.damaged`.
    """
    source = Path(path)
    try:
        if not stat.S_ISREG(source.stat().st_mode):  # opening a pipe would wait for its writer
            raise OSError("it is not a file")
        with source.open("rb") as file:
            trace = _read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise TraceError(
            "trace.not_readable",
            f"{source.name or source} cannot be read: {error.strerror or error}.",
            "Check that the file is there and may be read.",
        ) from error
    except ValueError as error:  # a name with a null character
        raise TraceError(
            "trace.not_readable",
            "This is no name a file can have.",
            "Choose a file from the list.",
        ) from error
    except MemoryError as error:
        raise TraceError(
            "trace.too_large",
            f"{source.name} does not fit into this computer's memory.",
            "Close other programs, or open it on a computer with more memory.",
        ) from error
    check_trace(trace)
    return trace


def _read(file: BufferedReader, size: int) -> Trace:
    prefix = file.read(PREFIX)
    if not prefix.startswith(MAGIC):
        raise TraceError(
            "trace.not_a_trace",
            "This file is no trace of a reply."
            if size
            else "This file is empty, so it is no trace of a reply.",
            f"Choose a file that ends in {EXTENSION}.",
        )
    if size > MAX_FILE:
        raise TraceError(
            "trace.too_large",
            f"The file has {size / 2**30:.0f} GB; a trace has at most {MAX_FILE / 2**30:.0f}.",
            "Check where it comes from.",
        )
    length = int.from_bytes(prefix[len(MAGIC) :], "little")
    if len(prefix) < PREFIX or PREFIX + length > size:
        raise _truncated(size)
    if length > MAX_HEADER:
        raise damaged(f"its header claims {length} bytes")
    content = _json(file.read(length))
    begin = _aligned(PREFIX + length)
    data_bytes = content.get("data_bytes")
    if not _is_count(data_bytes):
        raise damaged("'data_bytes' is no size")
    if begin + data_bytes > size:
        raise _truncated(size)
    if begin + data_bytes != size:
        raise damaged("there is something behind its end")
    file.seek(begin)
    data = np.empty(data_bytes, dtype=np.uint8)
    if file.readinto(data.data) != data_bytes:
        raise _truncated(size)
    data.flags.writeable = False
    return _trace(content, data)


def _json(raw: bytes) -> dict[str, Any]:
    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    try:
        content = json.loads(raw.decode("utf-8"), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise damaged("its header is not readable") from error
    if not isinstance(content, dict):
        raise damaged("its header is no object")
    version = content.get("version")
    if not _is_count(version) or version < 1:
        raise damaged("it has no version")
    if version > FORMAT_VERSION:
        raise TraceError(
            "trace.newer",
            f"This trace has format {version}; this version of Unblur reads {FORMAT_VERSION}.",
            "Update Unblur.",
        )
    return content


def _trace(content: dict[str, Any], data: npt.NDArray[np.uint8]) -> Trace:
    table = content.get("arrays")
    if not isinstance(table, dict):
        raise damaged("it lists no arrays")
    sizes: dict[str, int] = {}
    found = _take(table, REQUIRED, data, sizes)
    optional = {
        kind: _take(table, names, data, sizes)
        for kind, names in (("top", TOP), ("logits", LOGITS), ("prompt", PROMPT))
        if any(name in table for name in names)
    }
    prompt = optional.get("prompt", {}).get("prompt_ids")
    ids = () if prompt is None else tuple(prompt.tolist())
    header = header_from_json(content.get("trace"), ids)
    header = replace(header, format_version=content["version"])
    _agree(header, sizes)
    logits = optional.get("logits")
    kept = None
    if logits is not None:
        kept = KeptLogits(logits["logit_step"], logits["logit_position"], logits["logits"])
    return Trace(**found, **optional.get("top", {}), logits=kept, header=header)


def _take(
    table: dict[str, Any],
    names: dict[str, tuple[str, str]],
    data: npt.NDArray[np.uint8],
    sizes: dict[str, int],
) -> Arrays:
    """Views of the named arrays, all there and of the expected type. sizes: dimensions by letter,
    added to."""
    return {name: _view(name, table.get(name), kind, data, sizes) for name, kind in names.items()}


def _view(
    name: str,
    entry: object,
    kind: tuple[str, str],
    data: npt.NDArray[np.uint8],
    sizes: dict[str, int],
) -> npt.NDArray[Any]:
    dtype, letters = kind
    if not isinstance(entry, dict):
        raise damaged(f"it has no array '{name}'")
    if entry.get("dtype") != dtype:
        raise damaged(f"array '{name}' is not of type {dtype}")
    shape, offset = entry.get("shape"), entry.get("offset")
    if not isinstance(shape, list) or len(shape) != len(letters):
        raise damaged(f"array '{name}' has not {len(letters)} dimension(s)")
    count = 1
    for letter, extent in zip(letters, shape, strict=True):
        if not _is_count(extent) or extent < 1 or sizes.setdefault(letter, extent) != extent:
            raise damaged(f"the shape of array '{name}' does not agree with the others")
        count *= extent
    end = count * np.dtype(dtype).itemsize
    if not _is_count(offset) or offset % ALIGN or offset + end > data.size:
        raise damaged(f"array '{name}' does not lie inside the file")
    return data[offset : offset + end].view(dtype).reshape(shape)


def _agree(header: TraceHeader, sizes: dict[str, int]) -> None:
    if header.vocab_size is not None and sizes.get("V", header.vocab_size) != header.vocab_size:
        raise damaged("the logits are not those of its vocabulary")


def _arrays_of(trace: Trace) -> Arrays:
    found: Arrays = {name: getattr(trace, name) for name in REQUIRED}
    kinds = dict(REQUIRED)
    if trace.top_ids is not None and trace.top_p is not None:
        found |= {"top_ids": trace.top_ids, "top_p": trace.top_p}
    if trace.logits is not None:
        kept = trace.logits
        parts = (kept.step, kept.position, kept.values)
        found |= dict(zip(LOGITS, parts, strict=True))
    if trace.header.prompt_ids:
        found["prompt_ids"] = np.array(trace.header.prompt_ids)
    kinds |= TOP | LOGITS | PROMPT
    return {
        name: np.ascontiguousarray(array, dtype=np.dtype(kinds[name][0]))
        for name, array in found.items()
    }


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _truncated(size: int) -> TraceError:
    return TraceError(
        "trace.truncated",
        f"The trace file ends after {size} bytes, before its own end.",
        "Copy or download it again: the part that is missing cannot be made up.",
    )
