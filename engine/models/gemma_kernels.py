"""A DiffusionGemma layer behind its attention, by kernels: norms, routing, experts and sums, with
no host synchronisation.

Knows which launches make up a layer and in which order they run. The maths is in `engine.kernels`
and, as plain torch, in `engine.models.diffusion_gemma_layers`; which layer gets which version is
`engine.models.accelerate`'s business. Needs Triton.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels.fragments import ExpertFragments, pack_experts
from engine.kernels.moe import grouped_experts
from engine.kernels.moe_dense import grouped_dense_experts
from engine.kernels.nvfp4 import PackedExperts
from engine.kernels.routing import RouteRule
from engine.kernels.sandwich import EnterWeights, LeaveWeights, enter, leave
from engine.kernels.softmax_route import softmax_route
from engine.models.diffusion_gemma_layers import DecoderLayer
from engine.models.diffusion_gemma_spec import DiffusionGemmaSpec
from engine.models.experts import Weights
from engine.models.layers import RMSNorm
from engine.models.mixture import TritonWeights, Workspace, Workspaces

if TYPE_CHECKING:  # needs cuda-bindings
    from engine.kernels.cuda_moe import CudaExperts

GemmaExperts = ExpertFragments | TritonWeights
CHUNKS = 2  # of the ring: groups of 8 tokens taken at once; a canvas brings an expert about 16


class GemmaMixture:
    """Routing and experts of one shape, all layers one after another. cuda: the CUDA C++ kernels
    (packed experts alone, bfloat16); None = Triton."""

    def __init__(
        self, spec: DiffusionGemmaSpec, dtype: torch.dtype, cuda: CudaExperts | None
    ) -> None:
        rule = RouteRule(spec.num_experts, spec.num_experts_per_tok)
        self.cuda = cuda
        self._spaces = Workspaces(rule, spec.hidden_size, spec.moe_intermediate_size, dtype)

    def take(self, gate: Weights, up: Weights, down: Weights) -> GemmaExperts:
        """One layer's experts in the form that is read."""
        if self.cuda is None:
            return TritonWeights(gate, up, down)
        assert isinstance(gate, PackedExperts)
        assert isinstance(up, PackedExperts)
        assert isinstance(down, PackedExperts)
        return pack_experts(gate, up, down)

    def __call__(
        self,
        x: Tensor,
        logits: Tensor,
        scale: Tensor,
        weights: GemmaExperts,
    ) -> Workspace:
        """x [T, H], router logits [T, E], scale [E]: each expert's own."""
        space = self._spaces.of(x)
        softmax_route(logits, scale, space.routing)
        buffers = (space.routing, space.act, space.by_pair)
        if isinstance(weights, ExpertFragments):
            assert self.cuda is not None
            self.cuda(weights, x, *buffers)
        elif isinstance(weights.gate, Tensor):
            assert isinstance(weights.up, Tensor)
            assert isinstance(weights.down, Tensor)
            parts = (weights.gate, weights.up, weights.down)
            grouped_dense_experts(x, *parts, *buffers, gelu=True)
        else:
            assert isinstance(weights.up, PackedExperts)
            assert isinstance(weights.down, PackedExperts)
            grouped_experts(x, weights.gate, weights.up, weights.down, *buffers, gelu=True)
        return space


class KernelLayer:
    """`DecoderLayer.compute`. weights: what `GemmaMixture.take` gave. side: a stream for the dense
    MLP, beside routing and experts, the same for all layers; None = one after another."""

    def __init__(
        self,
        layer: DecoderLayer,
        mixture: GemmaMixture,
        weights: GemmaExperts,
        side: torch.cuda.Stream | None,
    ) -> None:
        # In a tuple, so that this is no cycle of modules.
        self.parts = (layer.mlp, layer.router)
        self.norms = (
            layer.post_attention_layernorm,
            layer.pre_feedforward_layernorm,
            layer.pre_feedforward_layernorm_2,
            layer.post_feedforward_layernorm_1,
            layer.post_feedforward_layernorm_2,
            layer.post_feedforward_layernorm,
        )
        self.mixture, self.weights, self.side = mixture, weights, side

    def __call__(
        self, x: Tensor, attended: Tensor, scalar: Tensor, following: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        mlp, router = self.parts
        attended_by, before, before_experts, after, after_experts, after_both = (
            norm.weight for norm in self.norms
        )
        rows = x.reshape(-1, x.shape[-1])
        eps = following.eps
        into = EnterWeights(attended_by, before, before_experts, router.scale)
        entered = enter(attended.reshape(rows.shape), rows, into, eps)
        if self.side is None:
            dense = mlp(entered.dense)
        else:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                dense = mlp(entered.dense)
        logits = router.proj(entered.router)
        space = self.mixture(entered.experts, logits, router.per_expert_scale, self.weights)
        if self.side is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.side)
            dense.record_stream(current)
        out = LeaveWeights(after, after_experts, after_both)
        parts = (dense, space.by_pair, space.routing, entered.total)
        total, normed = leave(*parts, out, scalar, following.weight, eps)
        return total.view_as(x), normed.view_as(x)


# Loaded code stays with the driver until the process ends, so it is loaded once for each shape.
@lru_cache
def cuda_experts(hidden: int, inter: int, device: int) -> CudaExperts:
    """The CUDA C++ kernels. Raises RuntimeFailure or ValueError where they cannot be built."""
    from engine.kernels.cuda_moe import CudaExperts
    from engine.models.cuda_mixture import OPTIONS

    wanted = replace(OPTIONS, chunks=CHUNKS) if OPTIONS.ring else OPTIONS
    return CudaExperts(hidden, inter, wanted, gelu=True)
