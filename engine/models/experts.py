"""Routed experts: which experts a token takes (LLaDA2 router) and their weighted sum, in plain
torch.

Knows the maths of models.md 1.4. `sum_by_sorting` visits only experts that have tokens (needs the
counts on the host, so it is for CPU); `sum_all_experts` computes every expert for every token with
no host synchronisation (small expert counts, training, capture). Both give the same values up to
rounding; the packed GPU kernels are in `engine.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.nvfp4 import PackedExperts, dequantize
from engine.models.layers import Linear


def group_limited_choice(scores: Tensor, n_group: int, topk_group: int, top_k: int) -> Tensor:
    """int64 [N, top_k] expert ids from biased scores [N, E]: keep the `topk_group` groups whose two
    best scores sum highest, then the best `top_k` experts inside them."""
    grouped = scores.view(scores.shape[0], n_group, -1)
    strength = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
    kept = strength.topk(topk_group, dim=-1).indices
    allowed = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, kept, True)
    limited = grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).view_as(scores)
    return limited.topk(top_k, dim=-1).indices


def block_pool_choice(scores: Tensor, block_length: int, capacity: int, top_k: int) -> Tensor:
    """int64 [N, top_k] (LLaDA2.2): each block of `block_length` consecutive rows shares a pool of
    the `capacity` experts with the highest score over the block; each token takes its best `top_k`
    inside the pool.

    N must be a whole number of blocks, so that no routing window straddles two of them.
    """
    per_block = scores.view(-1, block_length, scores.shape[-1])
    pool = per_block.amax(dim=1).topk(min(capacity, scores.shape[-1]), dim=-1).indices
    allowed = torch.zeros(pool.shape[0], scores.shape[-1], dtype=torch.bool, device=scores.device)
    allowed.scatter_(1, pool, True)
    limited = per_block.masked_fill(~allowed.unsqueeze(1), float("-inf")).view_as(scores)
    return limited.topk(top_k, dim=-1).indices


class Router(nn.Module):
    """float32 sigmoid router with a selection-only bias (models.md 1.4).

    short: the weight is known to hold no more digits than bfloat16 does.
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        choose: Callable[[Tensor], Tensor],
        scale: float,
        normalise: bool,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.expert_bias: Tensor
        self.register_buffer("expert_bias", torch.zeros(num_experts, dtype=torch.float32))
        self.choose = choose
        self.scale = scale
        self.normalise = normalise
        self.short = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, H] -> expert ids int64 [N, K] and weights float32 [N, K] (bias changes the choice,
        not the weights)."""
        scores = torch.sigmoid(F.linear(x.float(), self.weight.float()))
        ids = self.choose(scores.detach() + self.expert_bias)
        weights = scores.gather(1, ids)
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * self.scale


Activation = Callable[[Tensor], Tensor]
Weights = Tensor | PackedExperts  # [E, out, in], dense or packed
ExpertSum = Callable[[Tensor, Tensor, Tensor, "Experts"], Tensor]


def _expert(weights: Weights, expert: int, dtype: torch.dtype) -> Tensor:
    """[out, in] of one expert, expanded if it is packed."""
    if isinstance(weights, Tensor):
        return weights[expert]
    return dequantize(weights.expert(expert), dtype)


def sum_by_sorting(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """sum_k w_k * E_k(x): x [N, H], ids int64 [N, K], weights float32 [N, K] -> [N, H].

    Each (token, expert) pair's result is summed in slot order, so the result does not depend on the
    sort.
    """
    top_k = ids.shape[1]
    order = ids.flatten().argsort(stable=True)
    counts = torch.bincount(ids.flatten(), minlength=experts.num_experts).tolist()
    gathered = x[order.div(top_k, rounding_mode="floor")]
    pieces: list[Tensor] = []
    first = 0
    for expert, count in enumerate(counts):
        if count:
            rows = gathered[first : first + count]
            gate = F.linear(rows, _expert(experts.gate, expert, x.dtype))
            up = F.linear(rows, _expert(experts.up, expert, x.dtype))
            pieces.append(
                F.linear(experts.activation(gate) * up, _expert(experts.down, expert, x.dtype))
            )
            first += count
    by_slot = torch.empty_like(gathered).index_copy(0, order, torch.cat(pieces))
    by_slot = by_slot.view(ids.shape[0], top_k, -1)
    return torch.bmm(weights.to(x.dtype).unsqueeze(1), by_slot).squeeze(1)


def sum_all_experts(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """Same contract, computing every expert for every token: no host synchronisation."""
    gate, up, down = (
        w if isinstance(w, Tensor) else dequantize(w, x.dtype)
        for w in (experts.gate, experts.up, experts.down)
    )
    share = torch.zeros(x.shape[0], experts.num_experts, dtype=x.dtype, device=x.device)
    share = share.scatter(1, ids, weights.to(x.dtype))
    inner = experts.activation(torch.matmul(x, gate.transpose(1, 2)))
    hidden = inner * torch.matmul(x, up.transpose(1, 2))
    return torch.matmul(hidden * share.t().unsqueeze(-1), down.transpose(1, 2)).sum(0)


class Experts(nn.Module):
    """Stacked expert weights: gate, up [E, I, H] and down [E, H, I], trainable when dense, frozen
    when packed. An expert is down(activation(gate x) * up x).

    compute: how the weighted sum is done; None chooses by device.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation = F.silu,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.activation = activation
        self.gate: Weights = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.up: Weights = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.down: Weights = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size))
        self.compute: ExpertSum | None = None

    def pack(self, gate: PackedExperts, up: PackedExperts, down: PackedExperts) -> None:
        """Replaces the dense weights by packed ones; the dense storage is freed."""
        del self.gate, self.up, self.down
        self.gate, self.up, self.down = gate, up, down

    def release(self) -> None:
        """Lets go of the weights, which a kernel now holds in an order of its own."""
        del self.gate, self.up, self.down

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        compute = self.compute or (sum_by_sorting if x.device.type == "cpu" else sum_all_experts)
        return compute(x, ids, weights, self)


class GatedMLP(nn.Module):
    """down(activation(gate x) * up x): the dense layer's MLP and the shared experts.

    compute: how activation(gate x) * up x is done where a kernel does it; None = plain torch.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: Activation = F.silu
    ) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)
        self.compute: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.compute is not None:
            return self.down_proj(self.compute(x))
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
