"""Checks the values of every tensor once, in one pass over the files and in bounded memory.

Knows what each role demands: weights finite, scales finite and positive, global scales on the right
side of one. Works on raw bits, so that nothing is converted. Knows nothing of model families.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from engine.checkpoint.folder import TensorFiles
from engine.checkpoint.inventory import Inventory, Role, StoredMatrix
from engine.checkpoint.refusals import OTHER_CHECKPOINT, refuse
from engine.checkpoint.tensor_file import Bytes, TensorEntry, TensorFile
from engine.errors import CheckpointError, RuntimeFailure

Progress = Callable[[int, int], None]  # bytes done, bytes in all

# dtype -> (numpy type, mask that drops the sign, smallest bit pattern that is infinite or NaN)
_FLOAT_BITS = {
    "BF16": (np.dtype("<u2"), 0x7FFF, 0x7F80),
    "F16": (np.dtype("<u2"), 0x7FFF, 0x7C00),
    "F32": (np.dtype("<u4"), 0x7FFFFFFF, 0x7F800000),
}
_E4M3_NAN = 0x7F
_REPORT_EVERY = 64 << 20  # bytes
JOB_BYTES = 128 << 20
CHECKERS = min(8, os.cpu_count() or 1)  # numpy gives up the GIL, so threads do help


def check_values(
    files: TensorFiles,
    inventory: Inventory,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> frozenset[str]:
    """Reads every tensor that will be used. Returns the modules that are all-zero in ModelOpt's
    spelling.

    ModelOpt writes an all-zero matrix as codes 0, weight_scale_2 = 0 and NaN block scales; exactly
    that is accepted, since a zero-filled hole in a file has zero block scales instead. Raises
    CheckpointError naming file, tensor and element; RuntimeFailure `load.stopped` when `stop` is
    set.
    """
    zero_modules = _zero_matrices(files, inventory)
    skip = {
        f"{module}{end}" for module in zero_modules for end in (".weight_scale", ".weight_scale_2")
    }
    jobs = _jobs(files, inventory, skip)
    tally = _Tally(sum(entry.nbytes for _, entries in jobs for entry in entries), progress)
    ended = threading.Event()  # a fault in one job ends the others

    def check(file: TensorFile, entries: list[TensorEntry]) -> None:
        for entry, offset, piece in file.scan(entries):
            if ended.is_set() or (stop is not None and stop.is_set()):
                raise RuntimeFailure(
                    "load.stopped", f"Stopped while checking {file.name}.", "Load the model again."
                )
            _check_piece(entry, inventory.roles[entry.name], offset, piece)
            tally.add(piece.size)

    with ThreadPoolExecutor(CHECKERS, thread_name_prefix="check") as pool:
        futures = [pool.submit(check, file, entries) for file, entries in jobs]
        faults = []
        for future in futures:
            fault = future.exception()
            if fault is not None:
                ended.set()
                faults.append(fault)
    # A fault that ended the others comes before what they then said.
    faults.sort(key=lambda fault: getattr(fault, "code", "") == "load.stopped")
    if faults:
        raise faults[0]
    tally.finish()
    return zero_modules


def _jobs(
    files: TensorFiles, inventory: Inventory, skip: set[str]
) -> list[tuple[TensorFile, list[TensorEntry]]]:
    """What is to be checked, cut into runs of neighbours of about the same size. Codes are not:
    every byte is two valid ones, so they are not even read."""
    jobs: list[tuple[TensorFile, list[TensorEntry]]] = []
    for file in files.files.values():
        run, size = list[TensorEntry](), 0
        for entry in sorted(file.entries.values(), key=lambda item: item.start):
            role = inventory.roles.get(entry.name)
            if role is None or role == "codes" or entry.name in skip:
                continue
            run.append(entry)
            size += entry.nbytes
            if size >= JOB_BYTES:
                jobs.append((file, run))
                run, size = [], 0
        if run:
            jobs.append((file, run))
    return jobs


class _Tally:
    """Counts bytes over threads and reports them now and then."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.progress = total, progress
        self._lock = threading.Lock()
        self._done, self._reported = 0, 0

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self.progress is not None and self._done - self._reported >= _REPORT_EVERY:
                self._reported = self._done
                self.progress(self._done, self.total)

    def finish(self) -> None:
        if self.progress is not None:
            self.progress(self.total, self.total)


def _check_piece(entry: TensorEntry, role: Role, offset: int, piece: Bytes) -> None:
    if role == "block_scale":
        _check_block_scales(entry, offset, piece)
        return
    kind, mask, limit = _FLOAT_BITS[entry.dtype]
    magnitude = piece.view(kind) & kind.type(mask)
    if magnitude.max() >= limit:
        index = int(np.argmax(magnitude >= limit))
        what = "infinite" if magnitude[index] == limit else "NaN"
        raise _bad_value(entry, offset // kind.itemsize + index, what)
    if role == "float":
        return
    value = float(piece.view("<f4")[0])
    if value <= 0:
        raise _bad_value(entry, 0, f"{value:g}; a scale must be above 0")
    multiply = value if role == "scale_multiply" else 1 / value if role == "scale_divide" else 0.0
    if multiply > 1:  # the matrix would reach beyond 2688: the reciprocal was missed
        side = "at most" if role == "scale_multiply" else "at least"
        raise _bad_value(entry, 0, f"{value:g}; this scale must be {side} 1")


def _check_block_scales(entry: TensorEntry, offset: int, piece: Bytes) -> None:
    # Positive finite E4M3 is 0x01..0x7E. One subtraction sends 0x00 to 0xFF, so that one comparison
    # does it.
    shifted = piece - np.uint8(1)
    if shifted.max() < _E4M3_NAN - 1:
        return
    index = int(np.argmax(shifted >= _E4M3_NAN - 1))
    byte = int(piece[index])
    what = "NaN" if byte & 0x7F == _E4M3_NAN else "0" if byte in (0, 0x80) else "negative"
    raise _bad_value(entry, offset + index, f"{what}; a scale must be finite and above 0")


def _zero_matrices(files: TensorFiles, inventory: Inventory) -> frozenset[str]:
    """Modules in ModelOpt's form whose second scale is 0 and whose every other byte says "all
    zero".
    """
    return frozenset(
        module
        for module, stored in inventory.matrices.items()
        if stored.form == "modelopt" and _is_zero_matrix(files, stored)
    )


def _is_zero_matrix(files: TensorFiles, stored: StoredMatrix) -> bool:
    assert stored.scale is not None
    assert stored.global_scale is not None
    if _read(files, stored.global_scale).any():
        return False
    scales = _read(files, stored.scale)
    return bool(((scales & 0x7F) == _E4M3_NAN).all()) and not _read(files, stored.weight).any()


def _read(files: TensorFiles, entry: TensorEntry) -> Bytes:
    out = np.empty(entry.nbytes, np.uint8)
    files.of(entry).pread(out, entry.start)  # a mapping for each of many small ones is slow
    return out


def _bad_value(entry: TensorEntry, flat: int, problem: str) -> CheckpointError:
    where = _position(flat, entry.shape)
    code = "checkpoint.non_finite" if problem in ("NaN", "infinite") else "checkpoint.bad_scale"
    return refuse(
        code,
        f"{entry.file}: tensor {entry.name}{where} is {problem}.",
        OTHER_CHECKPOINT,
        file=entry.file,
        item=entry.name,
    )


def _position(flat: int, shape: tuple[int, ...]) -> str:
    if not shape or shape == (1,):
        return ""
    index = [int(part) for part in np.unravel_index(flat, shape)]
    return f", element {index[0] if len(index) == 1 else index}"
