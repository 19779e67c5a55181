"""DiffusionGemma's norms around a layer's two halves, each half in one launch.

Knows the order of additions, norms and roundings of models.md 2.4: a norm's weight multiplies
before the one rounding, unlike LLaDA2's (`rmsnorm.py`). Torch references beside the kernels.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.routing import Routing


def norm_reference(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm of [..., H], rounded once."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide if weight is None else wide * weight.float()).to(x.dtype)


# ---- behind attention ----


@dataclass(frozen=True, eq=False)
class EnterWeights:
    """Norms [H] of one layer: after attention, before the dense MLP, before the experts; router:
    the router's scale, which multiplies a norm without a weight."""

    attention: Tensor
    dense: Tensor
    experts: Tensor
    router: Tensor


@dataclass(frozen=True, eq=False)
class Entered:
    """[T, H] each: the residual stream, and what the dense MLP, the experts and the router see."""

    total: Tensor
    dense: Tensor
    experts: Tensor
    router: Tensor


def enter_reference(attended: Tensor, x: Tensor, weights: EnterWeights, eps: float) -> Entered:
    """attended, x [T, H]: what attention gave, and the residual stream before it."""
    total = x + norm_reference(attended, weights.attention, eps)
    root = x.shape[-1] ** -0.5
    return Entered(
        total,
        norm_reference(total, weights.dense, eps),
        norm_reference(total, weights.experts, eps),
        norm_reference(total, None, eps) * weights.router * root,
    )


def enter(attended: Tensor, x: Tensor, weights: EnterWeights, eps: float) -> Entered:
    """`enter_reference` in one launch; both inputs contiguous."""
    rows, hidden = x.shape
    out = Entered(*(torch.empty_like(x) for _ in range(4)))
    _enter_kernel[(rows,)](
        attended,
        x,
        weights.attention,
        weights.dense,
        weights.experts,
        weights.router,
        out.total,
        out.dense,
        out.experts,
        out.router,
        eps,
        hidden**-0.5,
        HIDDEN=hidden,
        HIDDEN_2=triton.next_power_of_2(hidden),
        num_warps=8 if hidden >= 2048 else 4,
    )
    return out


@triton.jit
def _unit(x, eps, HIDDEN: tl.constexpr):
    """float32 [HIDDEN_2], zeros behind HIDDEN."""
    return x / tl.sqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)


@triton.jit
def _enter_kernel(
    attended,
    x,
    attention_weight,
    dense_weight,
    experts_weight,
    router_scale,
    total,
    dense,
    experts,
    router,
    eps,
    root,
    HIDDEN: tl.constexpr,
    HIDDEN_2: tl.constexpr,
):
    """One token."""
    column = tl.arange(0, HIDDEN_2)
    live = column < HIDDEN
    at = tl.program_id(0).to(tl.int64) * HIDDEN + column
    kind = total.dtype.element_ty
    given = tl.load(attended + at, mask=live, other=0.0).to(tl.float32)
    weight = tl.load(attention_weight + column, mask=live, other=0.0).to(tl.float32)
    normed = (_unit(given, eps, HIDDEN) * weight).to(kind).to(tl.float32)
    value = (tl.load(x + at, mask=live, other=0.0).to(tl.float32) + normed).to(kind)
    tl.store(total + at, value, mask=live)
    unit = _unit(value.to(tl.float32), eps, HIDDEN)
    weight = tl.load(dense_weight + column, mask=live, other=0.0).to(tl.float32)
    tl.store(dense + at, (unit * weight).to(kind), mask=live)
    weight = tl.load(experts_weight + column, mask=live, other=0.0).to(tl.float32)
    tl.store(experts + at, (unit * weight).to(kind), mask=live)
    scale = tl.load(router_scale + column, mask=live, other=0.0).to(tl.float32)
    scaled = (unit.to(kind).to(tl.float32) * scale).to(kind).to(tl.float32)
    tl.store(router + at, (scaled * root).to(kind), mask=live)


# ---- behind the experts ----


@dataclass(frozen=True, eq=False)
class LeaveWeights:
    """Norms [H] of one layer: after the dense MLP, after the experts, after both."""

    dense: Tensor
    experts: Tensor
    both: Tensor


def leave_reference(
    dense: Tensor,
    routed: Tensor,
    total: Tensor,
    weights: LeaveWeights,
    scalar: Tensor,
    following: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """dense, routed [T, H]: the outputs of both branches; total: `Entered.total`; scalar [1];
    following [H]: the next norm's weight. Returns the residual stream and its norm."""
    both = norm_reference(dense, weights.dense, eps)
    both = both + norm_reference(routed, weights.experts, eps)
    out = (total + norm_reference(both, weights.both, eps)) * scalar
    return out, norm_reference(out, following, eps)


def leave(
    dense: Tensor,
    by_pair: Tensor,
    routing: Routing,
    total: Tensor,
    weights: LeaveWeights,
    scalar: Tensor,
    following: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """`leave_reference` in one launch, the experts' weighted sum included (by_pair float32 [P, H],
    summed in slot order)."""
    tokens, hidden = total.shape
    out, normed = torch.empty_like(total), torch.empty_like(total)
    _leave_kernel[(tokens,)](
        dense,
        by_pair,
        routing.pair_place,
        routing.weights,
        total,
        weights.dense,
        weights.experts,
        weights.both,
        scalar,
        following,
        out,
        normed,
        eps,
        TOP_K=routing.ids.shape[1],
        HIDDEN=hidden,
        HIDDEN_2=triton.next_power_of_2(hidden),
        num_warps=8,
    )
    return out, normed


@triton.jit
def _leave_kernel(
    dense,
    by_pair,
    pair_place,
    pair_weights,
    total,
    dense_weight,
    experts_weight,
    both_weight,
    scalar,
    following,
    out,
    normed,
    eps,
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    HIDDEN_2: tl.constexpr,
):
    """One token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HIDDEN_2)
    live = column < HIDDEN
    at = token * HIDDEN + column
    kind = out.dtype.element_ty
    routed = tl.zeros([HIDDEN_2], dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        place = tl.load(pair_place + token * TOP_K + k).to(tl.int64)
        share = tl.load(pair_weights + token * TOP_K + k)
        routed += share * tl.load(by_pair + place * HIDDEN + column, mask=live, other=0.0)
    routed = routed.to(kind).to(tl.float32)
    given = tl.load(dense + at, mask=live, other=0.0).to(tl.float32)
    weight = tl.load(dense_weight + column, mask=live, other=0.0).to(tl.float32)
    first = (_unit(given, eps, HIDDEN) * weight).to(kind).to(tl.float32)
    weight = tl.load(experts_weight + column, mask=live, other=0.0).to(tl.float32)
    second = (_unit(routed, eps, HIDDEN) * weight).to(kind).to(tl.float32)
    both = (first + second).to(kind).to(tl.float32)
    weight = tl.load(both_weight + column, mask=live, other=0.0).to(tl.float32)
    added = (_unit(both, eps, HIDDEN) * weight).to(kind).to(tl.float32)
    value = (tl.load(total + at, mask=live, other=0.0).to(tl.float32) + added).to(kind)
    value = (value.to(tl.float32) * tl.load(scalar).to(tl.float32)).to(kind)
    tl.store(out + at, value, mask=live)
    weight = tl.load(following + column, mask=live, other=0.0).to(tl.float32)
    tl.store(normed + at, (_unit(value.to(tl.float32), eps, HIDDEN) * weight).to(kind), mask=live)
