"""Two kernels that only the benchmark needs: one that reads memory and does nothing else, and a
matrix times one vector, without which the autoregressive arm would not be a fair one.

Knows shapes and tilings; the reference of the product is `F.linear`.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

STEPS, WIDTH = 16, 2048  # of words that one program reads


def read_all(data: Tensor, sums: Tensor) -> None:
    """data int32 [n * STEPS * WIDTH] -> sums int32 [n]."""
    _read_kernel[(sums.numel(),)](data, sums, STEPS=STEPS, WIDTH=WIDTH, num_warps=8)


@triton.jit
def _read_kernel(data, sums, STEPS: tl.constexpr, WIDTH: tl.constexpr):
    base = data + tl.program_id(0).to(tl.int64) * (STEPS * WIDTH)
    lane = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.int32)
    for step in range(STEPS):
        total += tl.load(base + step * WIDTH + lane)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


@dataclass(frozen=True)
class VectorTiling:
    """Rows of the matrix a program takes, columns it loads at once, warps."""

    rows: int
    columns: int
    warps: int


TILINGS = (
    VectorTiling(2, 1024, 4),
    VectorTiling(4, 512, 4),
    VectorTiling(8, 512, 8),
    VectorTiling(1, 2048, 4),
)


def times_vector(x: Tensor, weight: Tensor, tiling: VectorTiling) -> Tensor:
    """x [1, K] and weight [N, K], contiguous, of one dtype -> x W^T [1, N]; sums in float32."""
    rows, columns = weight.shape
    out = torch.empty(1, rows, dtype=x.dtype, device=x.device)
    _vector_kernel[(triton.cdiv(rows, tiling.rows),)](
        x,
        weight,
        out,
        rows,
        SIZE=columns,
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        num_warps=tiling.warps,
    )
    return out


@triton.jit
def _vector_kernel(
    x, weight, out, rows, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    live = (row < rows)[:, None]
    lane = tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for first in range(0, SIZE, COLUMNS):
        inside = first + lane < SIZE
        part = tl.load(x + first + lane, mask=inside, other=0.0).to(tl.float32)
        at = weight + row[:, None] * SIZE + (first + lane)[None, :]
        total += tl.load(at, mask=live & inside[None, :], other=0.0).to(tl.float32) * part[None, :]
    result = tl.sum(total, axis=1)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=row < rows)
