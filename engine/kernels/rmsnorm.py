"""RMSNorm fused with the residual addition before it.

Knows LLaDA2's order: the sum is rounded to the model's dtype, normalised in float32, rounded again,
and only then multiplied by the weight (models.md 1.4). The reference is
`engine.models.layers.RMSNorm` after a plain addition.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def add_rmsnorm_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(residual + x, its RMSNorm); x, residual [..., H], weight [H]."""
    total = x if residual is None else residual + x
    wide = total.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return total, scaled.to(x.dtype) * weight


def add_rmsnorm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    total: Tensor,
    normed: Tensor,
) -> None:
    """total = residual + x and normed = RMSNorm(total) * weight, all [rows, H] contiguous; total
    may be residual or x.

    Without a residual, total is not written.
    """
    rows, hidden = x.shape
    _add_rmsnorm_kernel[(rows,)](
        x,
        x if residual is None else residual,
        weight,
        total,
        normed,
        eps,
        HIDDEN=hidden,
        HIDDEN_2=triton.next_power_of_2(hidden),
        RESIDUAL=residual is not None,
        num_warps=8 if hidden >= 2048 else 4,
    )


@triton.jit
def _add_rmsnorm_kernel(
    x,
    residual,
    weight,
    total,
    normed,
    eps,
    HIDDEN: tl.constexpr,
    HIDDEN_2: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """One row."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    column = tl.arange(0, HIDDEN_2)
    live = column < HIDDEN
    value = tl.load(x + row + column, mask=live, other=0.0)
    if RESIDUAL:
        before = tl.load(residual + row + column, mask=live, other=0.0)
        value = (value.to(tl.float32) + before.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + row + column, value, mask=live)
    wide = value.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / HIDDEN + eps)
    scaled = (wide * inverse).to(x.dtype.element_ty)
    tl.store(
        normed + row + column, scaled * tl.load(weight + column, mask=live, other=0.0), mask=live
    )
