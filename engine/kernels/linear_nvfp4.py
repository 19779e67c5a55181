"""y = x W^T with W in NVFP4, expanded in registers (weight-only: activations keep their precision).

Knows `PackedWeight` in checkpoint order. Few rows read the packed weight once; many rows expand it
first and leave the product to cuBLAS, as dense weights always do. The reference is `dequantize`
followed by `F.linear`.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.moe import TRITON_DTYPE, dot, load_expanded
from engine.kernels.nvfp4 import PackedWeight, dequantize

FEW_ROWS = 128  # above this the product is compute-bound and expanding once is cheaper


@dataclass(frozen=True)
class LinearTiling:
    """Rows of x x rows of W x columns, warps and pipeline stages."""

    tokens: int = 32
    rows: int = 32
    columns: int = 128
    warps: int = 4
    stages: int = 4


def linear(
    x: Tensor,
    weight: PackedWeight,
    out: Tensor | None = None,
    tiling: LinearTiling = LinearTiling(),
) -> Tensor:
    """x [M, K] (float32, float16 or bfloat16) -> [M, N] in x's dtype; sums in float32, float32
    inputs in full."""
    rows, columns = x.shape
    size = weight.shape[0]
    if rows > FEW_ROWS:
        return torch.matmul(x, dequantize(weight, x.dtype).t(), out=out)
    if out is None:
        out = x.new_empty(rows, size)
    tokens = max(16, min(tiling.tokens, triton.next_power_of_2(rows)))
    _linear_kernel[(triton.cdiv(size, tiling.rows), triton.cdiv(rows, tokens))](
        x,
        weight.codes,
        weight.scales.view(torch.uint8),
        weight.global_scale,
        out,
        rows,
        size,
        WIDTH=columns,
        TOKENS=tokens,
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        DTYPE=TRITON_DTYPE[x.dtype],
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def linear_reference(x: Tensor, weight: PackedWeight) -> Tensor:
    """The same in plain torch."""
    return F.linear(x, dequantize(weight, x.dtype))


@triton.jit
def _linear_kernel(
    x,
    codes,
    scales,
    global_scale,
    out,
    tokens,
    size,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """One tile of the output."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token = (tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    live = token < tokens
    half = tl.arange(0, COLUMNS // 2)
    total = tl.zeros([TOKENS, ROWS], dtype=tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        column = first + 2 * half
        source = x + token[:, None] * WIDTH + column[None, :]
        inside = live[:, None] & (column < WIDTH)[None, :]
        even = tl.load(source, mask=inside, other=0.0)
        odd = tl.load(source + 1, mask=inside, other=0.0)
        low, high = load_expanded(codes, scales, row, first, size, WIDTH, COLUMNS)
        total = dot(even, low, total, DTYPE)
        total = dot(odd, high, total, DTYPE)
    total *= tl.load(global_scale)
    target = out + token[:, None] * size + row[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=live[:, None] & (row < size)[None, :])
