"""Routed experts for training on a GPU: the same maths as `engine.models.experts`, without host
synchronisation and with static shapes.

Two ways, which a trial compares: `GroupedExperts` sorts (token, expert) pairs and runs one grouped
matrix product; `WideExperts` computes every expert as one wide MLP whose hidden units are scaled by
the router (more arithmetic, fewer steps). Both count each expert's load. Knows no router and no
balancing rule.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.experts import Experts

ALIGN = 8  # rows; every expert's group is padded to it and has at least one padding row


def choose_by_rank(scores: Tensor, n_group: int, topk_group: int, top_k: int) -> Tensor:
    """Same choice as `engine.models.experts.group_limited_choice`, by counting who beats whom.

    For few experts this is pointwise work that fuses, where topk over tens of thousands of short
    rows does not. On equal scores the lower index wins.
    """
    grouped = scores.view(scores.shape[0], n_group, -1)
    best = _ranks(grouped) < 2
    strength = grouped.masked_fill(~best, 0.0).sum(-1)
    allowed = (_ranks(strength) < topk_group).unsqueeze(-1)
    limited = grouped.masked_fill(~allowed, float("-inf")).flatten(1)
    rank = _ranks(limited)
    index = torch.arange(scores.shape[1], device=scores.device)
    places = torch.arange(top_k, device=scores.device).view(1, -1, 1)
    return ((rank.unsqueeze(1) == places) * index).sum(-1)


def _ranks(values: Tensor) -> Tensor:
    """int64 [..., n]: how many entries of the last dimension come before each one."""
    mine, other = values.unsqueeze(-1), values.unsqueeze(-2)
    index = torch.arange(values.shape[-1], device=values.device)
    earlier = index.unsqueeze(0) < index.unsqueeze(1)  # [mine, other]: other's index is lower
    return ((other > mine) | ((other == mine) & earlier)).sum(-1)


class CountedExperts(nn.Module):
    """Base: `load` float32 [E] holds how many tokens each expert got in the last forward."""

    load: Tensor

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.register_buffer("load", torch.zeros(experts), persistent=False)

    def _count(self, ids: Tensor) -> Tensor:
        """int64 [E] tokens per expert, also kept in `load`."""
        experts = torch.arange(self.load.shape[0], device=ids.device)
        counts = (ids.reshape(-1, 1) == experts).sum(0)
        self.load.copy_(counts)
        return counts


def _dense(experts: Experts) -> tuple[Tensor, Tensor, Tensor]:
    gate, up, down = experts.gate, experts.up, experts.down
    if not (isinstance(gate, Tensor) and isinstance(up, Tensor) and isinstance(down, Tensor)):
        raise TypeError("packed experts are frozen and cannot be pretrained")
    return gate, up, down


class WideExperts(CountedExperts):
    """All experts as one MLP of width E * I; units of experts not chosen are scaled by 0."""

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        self._count(ids)
        gate, up, down = _dense(experts)
        index = torch.arange(experts.num_experts, device=ids.device)
        chosen = ids.unsqueeze(-1) == index  # [N, K, E]
        share = (chosen * weights.unsqueeze(-1)).sum(1).to(x.dtype)
        units = F.silu(F.linear(x, gate.flatten(0, 1))) * F.linear(x, up.flatten(0, 1))
        units = units.unflatten(1, (experts.num_experts, -1)) * share.unsqueeze(-1)
        return F.linear(units.flatten(1), down.permute(1, 0, 2).flatten(1))


class GroupedExperts(CountedExperts):
    """Only the chosen experts: pairs sorted by expert, one grouped product up, one down."""

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        source, place, ends = grouped_layout(ids, self._count(ids))
        gate, up, down = _dense(experts)
        both = torch.cat((gate, up), dim=1).transpose(1, 2)
        rows = dispatch(x, source, place)
        left, right = F.grouped_mm(rows, both, offs=ends).chunk(2, dim=-1)
        out = F.grouped_mm(F.silu(left) * right, down.transpose(1, 2), offs=ends)
        return combine(out, weights.to(x.dtype), source, place)


def grouped_layout(ids: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where each (token, slot) pair lies when pairs are sorted by expert in padded groups.

    ids int64 [N, K]; counts [E]. Returns source int64 [M]: the pair (token * K + slot) of a row, N
    * K for padding; place int64 [N, K]: the row of a pair; ends int32 [E]: where groups end. M = N
    * K + ALIGN * E.
    """
    pairs, experts = ids.numel(), counts.shape[0]
    total = pairs + ALIGN * experts
    sorted_ids, order = ids.flatten().to(torch.uint8).sort(stable=True)
    padded = (counts // ALIGN + 1) * ALIGN
    ends = padded.cumsum(0)
    shift = (ends - padded) - (counts.cumsum(0) - counts)  # row = index in sorted order + shift
    rows = torch.arange(pairs, device=ids.device) + shift[sorted_ids.long()]
    source = torch.full((total,), pairs, dtype=torch.int64, device=ids.device)
    source = source.scatter(0, rows, order)
    place = torch.empty(pairs, dtype=torch.int64, device=ids.device).scatter(0, order, rows)
    last = torch.arange(experts, device=ids.device) == experts - 1
    return source, place.view_as(ids), torch.where(last, total, ends).int()


class _Dispatch(torch.autograd.Function):
    """x [N, H] -> its rows in grouped order [M, H], zeros for padding. The gradient is gathered,
    not scattered, so that it is deterministic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        token = source // place.shape[1]
        real = token < x.shape[0]
        return x[token.clamp(max=x.shape[0] - 1)] * real.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grads[0][place].sum(1), None, None


class _Combine(torch.autograd.Function):
    """y[n] = sum_k w[n, k] * rows[place[n, k]]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, source, place)
        return (rows[place] * weights.unsqueeze(-1)).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, weights, source, place = ctx.saved_tensors
        grad = grads[0]
        pairs = weights.numel()
        real = source < pairs
        pair = source.clamp(max=pairs - 1)
        scale = weights.flatten()[pair] * real
        grad_rows = grad[pair // weights.shape[1]] * scale.unsqueeze(1)
        grad_weights = (rows[place].float() * grad.float().unsqueeze(1)).sum(-1)
        return grad_rows, grad_weights.to(weights.dtype), None, None


def dispatch(x: Tensor, source: Tensor, place: Tensor) -> Tensor:
    """See `_Dispatch`."""
    return _Dispatch.apply(x, source, place)


def combine(rows: Tensor, weights: Tensor, source: Tensor, place: Tensor) -> Tensor:
    """See `_Combine`."""
    return _Combine.apply(rows, weights, source, place)


KINDS: dict[str, type[CountedExperts]] = {"grouped": GroupedExperts, "wide": WideExperts}
