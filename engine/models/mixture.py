"""A mixture-of-experts layer by kernels: routing, packed experts, shared expert and the weighted
sum, with no host synchronisation.

Knows which launches make up a layer, their workspaces and in which order they run. The maths is in
`engine.kernels` and, as plain torch, in `engine.models.experts`; which module gets which version is
`engine.models.accelerate`'s business. Needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.moe import combine, grouped_experts
from engine.kernels.moe_dense import grouped_dense_experts
from engine.kernels.nvfp4 import PackedExperts
from engine.kernels.routing import RouteRule, Routing, make_routing, route
from engine.models.experts import GatedMLP, Router, Weights


@dataclass(frozen=True, eq=False)
class Workspace:
    """Buffers of one number of tokens T, shared by all layers: they run one after another.

    act [T K, I] in the model's dtype, by_pair float32 [T K, H].
    """

    routing: Routing
    act: Tensor
    by_pair: Tensor


class MixtureKernels(Protocol):
    """Routing and experts of one shape. Returns the workspace that holds the result."""

    rule: RouteRule

    def __call__(self, x: Tensor, router: Router, weights: object) -> Workspace:
        """x [T, H]; weights: what `take` made of a layer's packed experts."""
        ...

    def choose(self, x: Tensor, router: Router, routing: Routing) -> None:
        """The call's own routing: which experts the tokens x [T, H] take."""
        ...

    def take(self, gate: Weights, up: Weights, down: Weights) -> object:
        """One layer's experts in the form this version reads. Raises TypeError for one it does not
        take."""
        ...


class Workspaces:
    """One workspace for each number of tokens that was met. Made while warming up, never inside a
    capture: their counters must be zero."""

    def __init__(self, rule: RouteRule, hidden: int, inter: int, dtype: torch.dtype) -> None:
        self.rule, self.hidden, self.inter, self.dtype = rule, hidden, inter, dtype
        self._kept: dict[int, Workspace] = {}

    def of(self, x: Tensor) -> Workspace:
        tokens = x.shape[0]
        if tokens not in self._kept:
            pairs = tokens * self.rule.top_k
            self._kept[tokens] = Workspace(
                make_routing(tokens, self.rule, x.device),
                torch.zeros(pairs, self.inter, dtype=self.dtype, device=x.device),
                torch.zeros(pairs, self.hidden, device=x.device),
            )
        return self._kept[tokens]


@dataclass(frozen=True, eq=False)
class TritonWeights:
    """One layer's experts in checkpoint order: all three packed, or all dense [E, out, in]."""

    gate: Weights
    up: Weights
    down: Weights


class TritonMixture:
    """Triton kernels over weights in checkpoint order, packed or dense; any float dtype."""

    def __init__(self, rule: RouteRule, hidden: int, inter: int, dtype: torch.dtype) -> None:
        self.rule = rule
        self._spaces = Workspaces(rule, hidden, inter, dtype)

    def take(self, gate: Weights, up: Weights, down: Weights) -> TritonWeights:
        return TritonWeights(gate, up, down)

    def __call__(self, x: Tensor, router: Router, weights: object) -> Workspace:
        space = self._spaces.of(x)
        self.choose(x, router, space.routing)
        assert isinstance(weights, TritonWeights)
        gate, up, down = weights.gate, weights.up, weights.down
        buffers = (space.routing, space.act, space.by_pair)
        if isinstance(gate, Tensor):
            assert isinstance(up, Tensor)
            assert isinstance(down, Tensor)
            grouped_dense_experts(x, gate, up, down, *buffers)
        else:
            assert isinstance(up, PackedExperts)
            assert isinstance(down, PackedExperts)
            grouped_experts(x, gate, up, down, *buffers)
        return space

    def choose(self, x: Tensor, router: Router, routing: Routing) -> None:
        logits = F.linear(x.float(), router.weight.float())
        route(logits, router.expert_bias, self.rule, routing)


class KernelMixture:
    """`SparseMLP.compute` of one layer.

    side: a stream for the shared expert, beside routing and experts, the same for all layers; None
    = one after another.
    """

    def __init__(
        self,
        kernels: MixtureKernels,
        router: Router,
        weights: object,
        shared: GatedMLP | None,
        side: torch.cuda.Stream | None,
    ) -> None:
        self.kernels, self.router, self.weights = kernels, router, weights
        self.shared, self.side = shared, side

    def __call__(self, x: Tensor) -> PendingMixture:
        """x [..., H]."""
        rows = x.reshape(-1, x.shape[-1])
        if self.shared is None or self.side is None:
            shared = None if self.shared is None else self.shared(rows)
            return PendingMixture(self.kernels(rows, self.router, self.weights), shared, None)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            shared = self.shared(rows)
        space = self.kernels(rows, self.router, self.weights)
        return PendingMixture(space, shared, self.side)


@dataclass(frozen=True, eq=False)
class PendingMixture:
    """`engine.models.layers.Pending`: pairs and shared expert, summed by the next norm's launch.
    To be used before the next mixture runs, which shares the workspace."""

    space: Workspace
    shared: Tensor | None
    side: torch.cuda.Stream | None

    def add_norm(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if self.side is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.side)
            if self.shared is not None:
                self.shared.record_stream(current)
        rows = x.reshape(-1, x.shape[-1])
        total, normed = torch.empty_like(rows), torch.empty_like(rows)
        space = self.space
        combine(space.by_pair, space.routing, self.shared, rows, total, weight, normed, eps)
        return total.view_as(x), normed.view_as(x)
