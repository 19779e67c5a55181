"""Does one unit: reads it from the source in pieces, converts, writes, and sums up errors and
checksums.

Memory holds one piece of a matrix at a time, whatever the matrix' size. Knows no plan and no
journal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from engine.checkpoint.folder import TensorFiles
from engine.checkpoint.quantiser.plan import Source, Unit
from engine.checkpoint.quantiser.rules import Rule
from engine.checkpoint.quantiser.state import Done, ModuleError
from engine.checkpoint.refusals import refuse
from engine.checkpoint.tensor_file import ITEM_SIZES, Bytes
from engine.checkpoint.tensor_writer import NewFile, NewTensor
from engine.kernels.nvfp4 import E2M1_MAX, E4M3_MAX, dequantize

PIECE = 1 << 20  # numbers worked on at once: some 40 MB with everything made of them
LARGEST = E2M1_MAX * E4M3_MAX  # a second-level scale of 1; readers take more for a mistake
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

Tick = Callable[[int], None]  # bytes of the source dealt with; raises to stop


def convert(unit: Unit, files: TensorFiles, out: NewFile, rule: Rule, tick: Tick) -> Done:
    """Writes a unit's tensors and flushes them. Raises CheckpointError `quantise.too_large_values`
    or `quantise.non_finite`; OSError for a disk that does not take it."""
    done = _pack(unit, files, out, rule, tick) if unit.packed else _copy(unit, files, out, tick)
    out.flush()
    return done


def verify(done: Done, unit: Unit, out: NewFile) -> bool:
    """Whether the file holds what the journal says that this unit wrote."""
    return len(done.checksums) == len(unit.outputs) and all(
        _checksum(tensor, out) == wanted
        for tensor, wanted in zip(unit.outputs, done.checksums, strict=True)
    )


class _Sink:
    """Writes one tensor from its beginning to its end."""

    def __init__(self, tensor: NewTensor, out: NewFile) -> None:
        self._tensor, self._out, self._position, self.checksum = tensor, out, 0, 0

    def put(self, data: Bytes) -> None:
        self._out.write(self._tensor.name, self._position, data)
        self._position += data.size
        self.checksum = zlib.crc32(data.data, self.checksum)


def _copy(unit: Unit, files: TensorFiles, out: NewFile, tick: Tick) -> Done:
    source, sink = unit.sources[0], _Sink(unit.outputs[0], out)
    for start, stop in _ranges(source.nbytes, 8 * PIECE):
        data = np.empty(stop - start, np.uint8)
        files.of(source.entry).pread(data, source.entry.start + source.begin + start)
        sink.put(data)
        tick(data.size)
    return Done(unit.name, (sink.checksum,), ())


def _pack(unit: Unit, files: TensorFiles, out: NewFile, rule: Rule, tick: Tick) -> Done:
    amax = torch.stack([_amax(source, files, tick) for source in unit.sources]).amax()
    stored = rule.global_of(amax)
    checksums: list[int] = []
    errors: list[ModuleError] = []
    for index, source in enumerate(unit.sources):
        codes, scales, global_scale = (
            _Sink(tensor, out) for tensor in unit.outputs[3 * index : 3 * index + 3]
        )
        error_square = weight_square = 0.0
        for rows in _pieces(source, files):
            packed = rule.quantise(rows, stored)
            codes.put(_raw(packed.codes))
            scales.put(_raw(packed.scales))
            weight = rows.float()
            error = dequantize(packed, torch.float32).sub_(weight)
            error_square += _square(error)
            weight_square += _square(weight)
            tick(rows.nbytes - rows.nbytes // 2)
        global_scale.put(_raw(stored.reshape(1)))
        checksums += [sink.checksum for sink in (codes, scales, global_scale)]
        rows_count, cols = source.shape
        errors.append(ModuleError(source.name, rows_count, cols, error_square, weight_square))
    return Done(unit.name, tuple(checksums), tuple(errors))


def _amax(source: Source, files: TensorFiles, tick: Tick) -> Tensor:
    """The largest magnitude, in the source's dtype. Half of a matrix' progress is this pass."""
    parts = []
    for rows in _pieces(source, files):
        parts.append(rows.abs().amax())
        tick(rows.nbytes // 2)
    amax = torch.stack(parts).amax()
    if not torch.isfinite(amax):
        raise refuse(
            "quantise.non_finite",
            f"{source.entry.file}: tensor {source.entry.name} changed while it was read: it holds"
            " a number that is not finite.",
            "Check the disk, or download the source again.",
            file=source.entry.file,
            item=source.entry.name,
        )
    if amax > LARGEST:
        raise refuse(
            "quantise.too_large_values",
            f"{source.entry.file}: {source.name} holds values up to {float(amax):g}; NVFP4 files"
            f" hold at most {LARGEST:g}.",
            f"Exclude this module (--exclude {source.name}).",
            file=source.entry.file,
            item=source.name,
        )
    return amax


def _pieces(source: Source, files: TensorFiles) -> Iterator[Tensor]:
    """Rows of a matrix in order, in the source's dtype: [n, in], some PIECE numbers at a time."""
    rows, cols = source.shape
    width = cols * ITEM_SIZES[source.entry.dtype]
    for start, stop in _ranges(rows, max(1, PIECE // cols)):
        piece = torch.empty((stop - start, cols), dtype=_DTYPES[source.entry.dtype])
        offset = source.entry.start + source.begin + start * width
        files.of(source.entry).pread(_raw(piece), offset)
        yield piece


def _ranges(count: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _square(values: Tensor) -> float:
    """Sum of squares, summed in float64 over rows."""
    return float(values.square().sum(-1).double().sum())


def _raw(values: Tensor) -> Bytes:
    """A contiguous tensor's own bytes."""
    return values.contiguous().reshape(-1).view(torch.uint8).numpy()


def _checksum(tensor: NewTensor, out: NewFile) -> int:
    checksum = 0
    for start, stop in _ranges(tensor.nbytes, 8 * PIECE):
        data = np.empty(stop - start, np.uint8)
        out.read(tensor.name, start, data)
        checksum = zlib.crc32(data.data, checksum)
    return checksum
