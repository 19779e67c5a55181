"""LLaDA2 routing without the host: which experts a token takes, and its (token, expert) pairs
sorted by expert.

Knows models.md 1.4: sigmoid scores, a bias that changes the choice and not the weights,
group-limited top-k (2.0, 2.1) or a pool of experts per block (2.2). Torch reference and Triton
kernels; `cuda_moe.py` holds the one-launch CUDA version. Equal scores fall to the lower expert, and
sorting is stable, so every list is reproducible.
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


@dataclass(frozen=True)
class RouteRule:
    """How experts are chosen. capacity > 0: the pool rule of 2.2 with its block_length; groups are
    then ignored."""

    experts: int
    top_k: int
    n_group: int = 1
    topk_group: int = 1
    capacity: int = 0
    block_length: int = 32
    normalise: bool = True
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Routing:
    """Static buffers of one routing, written on the device; T tokens, K experts each, P = T * K
    pairs, E experts.

    logits float32 [T, E]. ids int32 and weights float32 [T, K]. slots int32 [E, 4]: expert, first
    pair, pair count, 0 for each expert that has tokens, in order; active int32 [1]: how many.
    pair_token int32 [P]: token of each sorted pair. pair_place int32 [T, K]: where the token's k-th
    pair went. finished int32 [E] and ticket int32 [1]: counters of the CUDA kernels (0 between
    launches).
    """

    logits: Tensor
    ids: Tensor
    weights: Tensor
    slots: Tensor
    active: Tensor
    pair_token: Tensor
    pair_place: Tensor
    finished: Tensor
    ticket: Tensor

    @property
    def max_slots(self) -> int:
        """Most experts that can have tokens."""
        return min(self.slots.shape[0], self.pair_token.shape[0])


def make_routing(tokens: int, rule: RouteRule, device: torch.device | str) -> Routing:
    """Zeroed buffers for `tokens` tokens."""

    def ints(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    def floats(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=device)

    return Routing(
        logits=floats(tokens, rule.experts),
        ids=ints(tokens, rule.top_k),
        weights=floats(tokens, rule.top_k),
        slots=ints(rule.experts, 4),
        active=ints(1),
        pair_token=ints(tokens * rule.top_k),
        pair_place=ints(tokens, rule.top_k),
        finished=ints(rule.experts),
        ticket=ints(1),
    )


# ---- reference ----


def route_reference(logits: Tensor, bias: Tensor, rule: RouteRule) -> tuple[Tensor, Tensor]:
    """logits float32 [T, E], bias float32 [E] -> ids int64 [T, K] and weights float32 [T, K], best
    first."""
    scores = torch.sigmoid(logits)
    biased = scores + bias
    tokens, experts = biased.shape
    if rule.capacity:
        parts = biased.split(rule.block_length)
        strength = torch.stack([part.amax(0) for part in parts])
        kept = _best(strength, min(rule.capacity, experts))
        allowed = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, kept, True)
        allowed = allowed.repeat_interleave(rule.block_length, 0)[:tokens]
    else:
        grouped = biased.view(tokens, rule.n_group, -1)
        strength = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
        kept = _best(strength, rule.topk_group)
        allowed = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, kept, True)
        allowed = allowed.repeat_interleave(experts // rule.n_group, 1)
    ids = _best(biased.masked_fill(~allowed, float("-inf")), rule.top_k)
    weights = scores.gather(1, ids)
    if rule.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * rule.scale


def _best(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of each row, ties to the lower index."""
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def sort_reference(ids: Tensor, routing: Routing) -> None:
    """Fills slots, active, pair_token and pair_place from ids [T, K] (reads the host: a reference
    only)."""
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=routing.slots.shape[0])
    firsts = counts.cumsum(0) - counts
    routing.pair_token.copy_(order // ids.shape[1])
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    routing.pair_place.copy_(place.view_as(ids))
    present = counts.nonzero().flatten()
    table = torch.stack(
        (present, firsts[present], counts[present], torch.zeros_like(present)), dim=1
    )
    routing.slots.zero_()
    routing.slots[: len(present)] = table.int()
    routing.active.fill_(len(present))


# ---- Triton ----


def why_not_routed(rule: RouteRule) -> str:
    """Why `route` does not take a rule, "" where it does."""
    group = rule.experts // rule.n_group
    if rule.experts & (rule.experts - 1) or group & (group - 1):
        return f"routing needs powers of two, not {rule.experts} experts in {rule.n_group}"
    return ""


def route(logits: Tensor, bias: Tensor, rule: RouteRule, routing: Routing) -> None:
    """Chooses and sorts on the device into `routing`; logits float32 [T, E], contiguous.

    E and the experts of a group must be powers of two (`RouteRule` of every released model);
    ValueError otherwise.
    """
    tokens, experts = logits.shape
    if why := why_not_routed(rule):
        raise ValueError(why)
    blocks = triton.cdiv(tokens, rule.block_length)
    pools = logits  # unused without a pool
    if rule.capacity:
        pools = torch.empty((blocks, experts), dtype=torch.int8, device=logits.device)
        _pool_kernel[(blocks,)](
            logits,
            bias,
            pools,
            tokens,
            EXPERTS=experts,
            CAPACITY=rule.capacity,
            LENGTH=rule.block_length,
            LENGTH_2=triton.next_power_of_2(rule.block_length),
        )
    _choose_kernel[(tokens,)](
        logits,
        bias,
        pools,
        routing.ids,
        routing.weights,
        rule.scale,
        EXPERTS=experts,
        TOP_K=rule.top_k,
        TOP_K_2=triton.next_power_of_2(rule.top_k),
        N_GROUP=1 if rule.capacity else rule.n_group,
        TOPK_GROUP=1 if rule.capacity else rule.topk_group,
        POOL_LENGTH=rule.block_length if rule.capacity else 0,
        NORMALISE=rule.normalise,
        num_warps=1,
    )
    sort_pairs(routing)


def sort_pairs(routing: Routing) -> None:
    """Fills slots, active, pair_token and pair_place from `routing.ids`; the number of experts is a
    power of two."""
    tokens, top_k = routing.ids.shape
    experts = routing.slots.shape[0]
    _sort_kernel[(experts,)](
        routing.ids,
        routing.slots,
        routing.active,
        routing.pair_token,
        routing.pair_place,
        tokens * top_k,
        EXPERTS=experts,
        BINS=triton.next_power_of_2(experts + 1),
        TOP_K=top_k,
        CHUNK=min(1024, triton.next_power_of_2(tokens * top_k)),
    )


@triton.jit
def _pool_kernel(
    logits,
    bias,
    pools,
    tokens,
    EXPERTS: tl.constexpr,
    CAPACITY: tl.constexpr,
    LENGTH: tl.constexpr,
    LENGTH_2: tl.constexpr,
):
    """One block of tokens: which experts its pool holds (int8 [blocks, EXPERTS])."""
    block = tl.program_id(0)
    e = tl.arange(0, EXPERTS)
    t = tl.arange(0, LENGTH_2)
    row = block * LENGTH + t
    live = (t < LENGTH) & (row < tokens)
    z = tl.load(logits + row[:, None] * EXPERTS + e[None, :], mask=live[:, None], other=0.0)
    scores = tl.sigmoid(z) + tl.load(bias + e)[None, :]
    strength = tl.max(tl.where(live[:, None], scores, float("-inf")), axis=0)
    order = strength[:, None]  # a rank compares the vector with itself, 32 others at a time
    ahead = tl.zeros([EXPERTS], dtype=tl.int32)
    for first in tl.static_range(0, EXPERTS, 32):
        others = first + tl.arange(0, 32)
        picked = tl.sum(tl.where(e[:, None] == others[None, :], order, 0.0), axis=0)
        better = (picked[None, :] > order) | (
            (picked[None, :] == order) & (others[None, :] < e[:, None])
        )
        ahead += tl.sum(better.to(tl.int32), axis=1)
    tl.store(pools + block * EXPERTS + e, (ahead < CAPACITY).to(tl.int8))


@triton.jit
def _choose_kernel(
    logits,
    bias,
    pools,
    ids,
    weights,
    scale,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_K_2: tl.constexpr,
    N_GROUP: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    POOL_LENGTH: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """One token: its TOP_K experts, best first, and their weights."""
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, EXPERTS)
    scores = tl.sigmoid(tl.load(logits + token * EXPERTS + e))
    biased = scores + tl.load(bias + e)
    if POOL_LENGTH > 0:
        allowed = tl.load(pools + (token // POOL_LENGTH) * EXPERTS + e)
        biased = tl.where(allowed != 0, biased, float("-inf"))
    if TOPK_GROUP < N_GROUP:
        SIZE: tl.constexpr = EXPERTS // N_GROUP
        grouped = tl.reshape(biased, [N_GROUP, SIZE])
        inside = tl.arange(0, SIZE)[None, :]
        top = tl.max(grouped, axis=1)
        holder = tl.min(tl.where(grouped == top[:, None], inside, SIZE), axis=1)
        strength = top
        if SIZE > 1:
            strength += tl.max(tl.where(inside == holder[:, None], float("-inf"), grouped), axis=1)
        k = tl.arange(0, N_GROUP)
        ahead = tl.zeros([N_GROUP], dtype=tl.int32)
        for o in tl.static_range(N_GROUP):
            other = tl.sum(tl.where(k == o, strength, 0.0), axis=0)
            ahead += ((other > strength) | ((other == strength) & (o < k))).to(tl.int32)
        grouped = tl.where((ahead < TOPK_GROUP)[:, None], grouped, float("-inf"))
        biased = tl.reshape(grouped, [EXPERTS])
    slot = tl.arange(0, TOP_K_2)
    chosen = tl.zeros([TOP_K_2], dtype=tl.int32)
    share = tl.zeros([TOP_K_2], dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        best = tl.max(biased, axis=0)
        winner = tl.min(tl.where(biased == best, e, EXPERTS - 1), axis=0)
        value = tl.sum(tl.where(e == winner, scores, 0.0), axis=0)
        biased = tl.where(e == winner, float("-inf"), biased)
        chosen = tl.where(slot == k, winner, chosen)
        share = tl.where(slot == k, value, share)
    if NORMALISE:
        share = share / (tl.sum(share, axis=0) + 1e-20)
    tl.store(ids + token * TOP_K + slot, chosen, mask=slot < TOP_K)
    tl.store(weights + token * TOP_K + slot, share * scale, mask=slot < TOP_K)


@triton.jit
def _sort_kernel(
    ids,
    slots,
    active,
    pair_token,
    pair_place,
    pairs,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    TOP_K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One expert: counts the pairs of all experts, and places its own. No program needs another's
    result."""
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    lane = tl.arange(0, CHUNK)
    counts = tl.zeros([BINS], dtype=tl.int32)
    for first in range(0, pairs, CHUNK):
        live = first + lane < pairs
        counts += tl.histogram(tl.load(ids + first + lane, mask=live, other=EXPERTS), BINS)
    mine = tl.sum(tl.where(bins == expert, counts, 0), axis=0)
    begin = tl.sum(tl.where(bins < expert, counts, 0), axis=0)
    rank = tl.sum(((bins < expert) & (counts > 0)).to(tl.int32), axis=0)
    if expert == EXPERTS - 1:
        tl.store(active, rank + (mine > 0).to(tl.int32))
    if mine > 0:
        entry = slots + rank * 4
        tl.store(entry, expert)
        tl.store(entry + 1, begin)
        tl.store(entry + 2, mine)
        for first in range(0, pairs, CHUNK):
            pair = first + lane
            here = tl.load(ids + pair, mask=pair < pairs, other=EXPERTS) == expert
            place = begin + tl.cumsum(here.to(tl.int32), axis=0) - 1
            tl.store(pair_token + place, pair // TOP_K, mask=here)
            tl.store(pair_place + pair, place, mask=here)
            begin += tl.sum(here.to(tl.int32), axis=0)
