"""What DiffusionGemma does to a canvas's logits before they are judged, and to what it is told of
them a step later, in one pass each.

Knows the soft cap and a step's temperature, and the softmax of scores that were rounded to the
embedding's numbers (models.md 2.4, 2.5). Judging is `sampler.py`'s. Torch references beside the
kernels.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 4096  # columns a program, or a step of one, works on


def temper_reference(raw: Tensor, temperature: Tensor, cap: float) -> Tensor:
    """raw [B, L, V] as the head gives it, temperature float32 [B, 1] -> float32 [B, L, V]."""
    return (raw.float() / cap).tanh() * cap / temperature.unsqueeze(-1)


def temper(raw: Tensor, temperature: Tensor, cap: float, out: Tensor) -> None:
    """`temper_reference` into out; raw and out contiguous."""
    batch, length, vocab = raw.shape
    _temper_kernel[(batch * length, triton.cdiv(vocab, WIDTH))](
        raw, temperature, out, length, vocab, cap, WIDTH=WIDTH, num_warps=8
    )


@triton.jit
def _temper_kernel(raw, temperature, out, length, vocab, cap, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    live = column < vocab
    x = tl.load(raw + row * vocab + column, mask=live, other=0.0).to(tl.float32) / cap
    # tanh through an exponential of what is not above 0, so that nothing overflows; NaN stays NaN.
    fall = tl.exp(-2.0 * tl.abs(x))
    squashed = (1.0 - fall) / (1.0 + fall)
    squashed = tl.where(x < 0, -squashed, squashed)
    heat = tl.load(temperature + row // length)
    tl.store(out + row * vocab + column, squashed * cap / heat, mask=live)


def rounded_softmax_reference(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """scores float32 [R, V] rounded to `dtype`, their softmax in float32, rounded again."""
    return scores.to(dtype).softmax(-1, dtype=torch.float32).to(dtype)


def rounded_softmax(scores: Tensor, out: Tensor) -> None:
    """`rounded_softmax_reference` into out [R, V], whose dtype says how it is rounded; both
    contiguous. scores may hold -inf, but not in every place of a row."""
    rows, vocab = scores.shape
    _softmax_kernel[(rows,)](scores, out, vocab, WIDTH=WIDTH, num_warps=8)


@triton.jit
def _softmax_kernel(scores, out, vocab, WIDTH: tl.constexpr):
    """One row, read twice."""
    row = tl.program_id(0).to(tl.int64) * vocab
    kind = out.dtype.element_ty
    top = tl.full([WIDTH], float("-inf"), dtype=tl.float32)
    total = tl.zeros([WIDTH], dtype=tl.float32)
    for first in range(0, vocab, WIDTH):
        column = first + tl.arange(0, WIDTH)
        x = tl.load(scores + row + column, mask=column < vocab, other=float("-inf"))
        x = x.to(kind).to(tl.float32)
        higher = tl.maximum(top, x)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - safe) + tl.exp(x - safe)
        top = higher
    peak = tl.max(top, axis=0)
    mass = tl.sum(total * tl.exp(top - peak), axis=0)
    for first in range(0, vocab, WIDTH):
        column = first + tl.arange(0, WIDTH)
        x = tl.load(scores + row + column, mask=column < vocab, other=float("-inf"))
        share = tl.exp(x.to(kind).to(tl.float32) - peak) / mass
        tl.store(out + row + column, share.to(kind), mask=column < vocab)
