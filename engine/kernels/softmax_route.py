"""DiffusionGemma's choice of experts, on the device: a softmax over all of them, the best
renormalised, each with a scale of its own (models.md 2.4).

Sorting the pairs by expert is `routing.py`'s. Equal logits fall to the lower expert.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.routing import Routing, sort_pairs


def softmax_route_reference(logits: Tensor, scale: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """logits [T, E], scale [E] -> ids int64 [T, K] and weights float32 [T, K], best first."""
    share = logits.softmax(-1, dtype=torch.float32)
    ids = share.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    share = share.gather(1, ids)
    return ids, share / share.sum(-1, keepdim=True) * scale[ids].float()


def softmax_route(logits: Tensor, scale: Tensor, routing: Routing) -> None:
    """Chooses and sorts into `routing`, in two launches, and clears what the CUDA kernels count.
    logits [T, E] of any float dtype, contiguous. ValueError where E is no power of two."""
    tokens, experts = logits.shape
    top_k = routing.ids.shape[1]
    if experts & (experts - 1):
        raise ValueError(f"routing needs a power of two, not {experts} experts")
    _choose_kernel[(tokens,)](
        logits,
        scale,
        routing.ids,
        routing.weights,
        routing.finished,
        EXPERTS=experts,
        TOP_K=top_k,
        TOP_K_2=triton.next_power_of_2(top_k),
        num_warps=1,
    )
    sort_pairs(routing)


@triton.jit
def _choose_kernel(
    logits,
    scale,
    ids,
    weights,
    finished,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_K_2: tl.constexpr,
):
    """One token: its TOP_K experts, best first. A softmax over the chosen ones is one over all,
    renormalised."""
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, EXPERTS)
    left = tl.load(logits + token * EXPERTS + e).to(tl.float32)
    if token == 0:
        tl.store(finished + e, tl.zeros([EXPERTS], dtype=tl.int32))
    slot = tl.arange(0, TOP_K_2)
    chosen = tl.zeros([TOP_K_2], dtype=tl.int32)
    score = tl.full([TOP_K_2], float("-inf"), dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        best = tl.max(left, axis=0)
        winner = tl.min(tl.where(left == best, e, EXPERTS - 1), axis=0)
        left = tl.where(e == winner, float("-inf"), left)
        chosen = tl.where(slot == k, winner, chosen)
        score = tl.where(slot == k, best, score)
    share = tl.exp(score - tl.max(score, axis=0))
    share = share / tl.sum(share, axis=0)
    share *= tl.load(scale + chosen).to(tl.float32)
    tl.store(ids + token * TOP_K + slot, chosen, mask=slot < TOP_K)
    tl.store(weights + token * TOP_K + slot, share, mask=slot < TOP_K)
