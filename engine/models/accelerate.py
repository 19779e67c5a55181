"""Gives a loaded model its kernels: which module is computed by which, and why some are not.

Knows shapes, dtypes and devices; changes no maths (every kernel has its module's plain torch as
reference) and no weights, but for the order their bytes lie in. Whatever does not fit keeps plain
torch, and the report says so. Needs Triton.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from engine.errors import RuntimeFailure
from engine.kernels.gelu import gelu_mul
from engine.kernels.linear_nvfp4 import linear
from engine.kernels.moe import silu_mul
from engine.kernels.nvfp4 import PackedExperts, PackedWeight
from engine.kernels.rmsnorm import add_rmsnorm
from engine.kernels.routing import RouteRule, why_not_routed
from engine.kernels.streams import stream
from engine.models.backbone import AnyBackbone
from engine.models.dense import Attention
from engine.models.diffusion_gemma_layers import Attention as GemmaAttention
from engine.models.diffusion_gemma_layers import DecoderLayer as GemmaLayer
from engine.models.diffusion_gemma_layers import gelu_tanh
from engine.models.diffusion_gemma_spec import DiffusionGemmaSpec
from engine.models.experts import GatedMLP, Router, Weights
from engine.models.gemma_kernels import (
    GemmaExperts,
    GemmaMixture,
    KernelLayer,
    cuda_experts,
)
from engine.models.kernel_report import KernelReport
from engine.models.layers import Linear, RMSNorm
from engine.models.llada2 import LLaDA2, SparseMLP
from engine.models.llada2_spec import LLaDA2Spec
from engine.models.mixture import KernelMixture, MixtureKernels, TritonMixture

if TYPE_CHECKING:  # needs cuda-bindings
    from engine.kernels.cuda_moe import CudaExperts

ONLY_BFLOAT16 = "Kernels compute in bfloat16; other numbers run as plain PyTorch operations."
_HEAD_NORMS = ("query_layernorm", "key_layernorm", "q_norm", "k_norm")
SMALLEST_CAPABILITY = (8, 0)  # of the CUDA C++ kernels: bfloat16 tensor cores and async copies


def use_kernels(model: AnyBackbone, *, interpret: bool = False) -> KernelReport:
    """Puts kernels behind the modules of a model that is in place on its device.

    interpret: on a CPU through Triton's interpreter, for tests.
    """
    placer = KernelPlacer(model, model.norm.weight.device, model.norm.weight.dtype, interpret)
    for module in model.modules():
        placer.place(module)
    return placer.finish()


class KernelPlacer:
    """Gives a model its kernels while it is being loaded: routed experts layer by layer as soon as
    they are in place (so that re-ordering them overlaps reading the next), the rest at the end."""

    def __init__(
        self, model: AnyBackbone, device: torch.device, dtype: torch.dtype, interpret: bool = False
    ) -> None:
        self.model, self.device, self.dtype, self.interpret = model, device, dtype, interpret
        self.wanted = interpret or dtype == torch.bfloat16
        self._portable: MixtureKernels | None = None
        self._cuda: MixtureKernels | None = None
        self._why = "the interpreter runs Triton" if interpret else ""
        self._placed: list[Literal["cuda", "triton", "dense"]] = []
        self._plain = ""  # why routed experts keep plain torch
        self._gemma: dict[bool, GemmaMixture] = {}

    def place(self, owner: nn.Module) -> None:
        """A module whose routed experts are in place, or any other, which is left alone."""
        if isinstance(owner, SparseMLP):
            self.mixture(owner)
        elif isinstance(owner, GemmaLayer) and self.wanted:
            self._gemma_layer(owner)

    def mixture(self, mlp: SparseMLP) -> None:
        """One layer whose router and routed experts are in place. Packed weights are re-ordered;
        the checkpoint's order is dropped. The shared expert may come later."""
        if not self.wanted:
            return
        experts = mlp.experts
        parts = (experts.gate, experts.up, experts.down)
        packed = all(isinstance(part, PackedExperts) for part in parts)
        kernels = self._cuda_kernels(mlp) if packed else None
        self._plain = why_not_routed(self._shape()[0]) if kernels is None else ""
        if self._plain:
            return
        self._placed.append("dense" if not packed else "triton" if kernels is None else "cuda")
        if kernels is None:
            kernels = self._portable = self._portable or TritonMixture(*self._shape(), self.dtype)
        else:
            mlp.gate.weight.data = mlp.gate.weight.data.to(torch.bfloat16)
        side = stream(self.device, "beside") if self.device.type == "cuda" else None
        weights = self._take(kernels, parts, side)
        experts.release()
        mlp.compute = KernelMixture(kernels, mlp.gate, weights, mlp.shared_experts, side)

    def finish(self) -> KernelReport:
        """Everything else. Every weight is in place now."""
        if not self.wanted:
            return KernelReport(False, "torch", (ONLY_BFLOAT16,))
        if self.device.type == "cuda":
            torch.cuda.current_stream().wait_stream(stream(self.device, "beside"))
        for norm in _residual_norms(self.model):
            norm.compute = _add_norm
        for module in self.model.modules():
            if isinstance(module, GatedMLP):
                _fuse_gate_and_up(module)
            elif isinstance(module, Attention | GemmaAttention):
                _join_projections(module)
        sentences = ["Norms and sums run as kernels."]
        if _multiply_packed(self.model):
            sentences.append("Other NVFP4 layers are expanded inside a Triton kernel.")
        placed = self._placed
        if "cuda" in placed:
            sentences.append("NVFP4 experts are expanded inside CUDA kernels.")
        if "triton" in placed:
            count = "" if "cuda" not in placed else f" ({placed.count('triton')} layers)"
            sentences.append(
                f"NVFP4 experts are expanded inside Triton kernels{count}: {self._why}."
            )
        if "dense" in placed:
            sentences.append("Experts in bfloat16 are multiplied by Triton kernels.")
        if self._plain:
            sentences.append(f"Routed experts run as plain PyTorch operations: {self._plain}.")
        how = "cuda" if "cuda" in placed else "triton" if placed else "torch"
        return KernelReport(True, how, tuple(sentences))

    def _gemma_layer(self, layer: GemmaLayer) -> None:
        """Its router and norms may come later."""
        experts = layer.experts
        parts = (experts.gate, experts.up, experts.down)
        packed = all(isinstance(part, PackedExperts) for part in parts)
        by_cuda = packed and not self.interpret and self._gemma_cuda() is not None
        self._placed.append("dense" if not packed else "cuda" if by_cuda else "triton")
        if by_cuda not in self._gemma:
            spec = cast(DiffusionGemmaSpec, self.model.spec)
            cuda = self._gemma_cuda() if by_cuda else None
            self._gemma[by_cuda] = GemmaMixture(spec, self.dtype, cuda)
        side = stream(self.device, "beside") if self.device.type == "cuda" else None
        mixture = self._gemma[by_cuda]
        weights = cast(GemmaExperts, self._take(mixture, parts, side))
        experts.release()
        layer.compute = KernelLayer(layer, mixture, weights, side)

    def _gemma_cuda(self) -> CudaExperts | None:
        """The CUDA C++ kernels, or None and `_why` they cannot be used."""
        spec = cast(DiffusionGemmaSpec, self.model.spec)
        why, found = _why_no_cuda_kernels(), None
        if not why:
            shape = (spec.hidden_size, spec.moe_intermediate_size)
            try:
                found = cuda_experts(*shape, torch.cuda.current_device())
            except ValueError as error:
                why = str(error)
            except RuntimeFailure as failure:
                why = failure.message.rstrip(".")
        self._why = why or self._why
        return found

    def _take(
        self,
        kernels: MixtureKernels | GemmaMixture,
        parts: tuple[Weights, Weights, Weights],
        side: torch.cuda.Stream | None,
    ) -> object:
        """On a stream of its own, so that the next layer's bytes do not wait for it."""
        if side is None:
            return kernels.take(*parts)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            weights = kernels.take(*parts)
        for part in parts:
            for tensor in (part,) if isinstance(part, Tensor) else part.tensors:
                tensor.record_stream(side)
        return weights

    def _cuda_kernels(self, mlp: SparseMLP) -> MixtureKernels | None:
        """The CUDA C++ kernels, or None and `_why` they cannot be used for this layer."""
        if self.interpret:
            return None
        why = _why_no_cuda(mlp)
        if not why and self._cuda is None:
            self._cuda, why = _cuda_mixture(*self._shape())
        self._why = why or self._why
        return None if why else self._cuda

    def _shape(self) -> tuple[RouteRule, int, int]:
        assert isinstance(self.model, LLaDA2)
        spec = self.model.spec
        return _route_rule(spec), spec.hidden_size, spec.moe_intermediate_size


def _add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`RMSNorm.compute` in one launch."""
    rows = x.reshape(-1, x.shape[-1])
    normed = torch.empty_like(rows)
    if delta is None:
        add_rmsnorm(rows, None, weight, eps, rows, normed)
        return x, normed.view_as(x)
    total = torch.empty_like(rows)
    add_rmsnorm(delta.reshape(rows.shape), rows, weight, eps, total, normed)
    return total.view_as(x), normed.view_as(x)


def _residual_norms(model: AnyBackbone) -> Iterator[RMSNorm]:
    """Every norm but those of heads (`Heads.q_norm`, `k_norm`); others than LLaDA2's round
    otherwise."""
    for name, module in model.named_modules():
        if type(module) is RMSNorm and not name.endswith(_HEAD_NORMS):
            yield module


def _join_projections(attention: Attention | GemmaAttention) -> None:
    """One product for query, key and value. Packed weights keep their own products."""
    parts = attention.projections
    if any(part.packed is not None or part.compute is not None for part in parts):
        return
    weight = torch.cat([part.weight.detach() for part in parts])
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    bias = torch.cat(biases) if biases else None
    first = 0
    for part in parts:
        rows = part.weight.shape[0]
        part.weight = nn.Parameter(weight[first : first + rows], requires_grad=False)
        first += rows
    attention.compute = lambda x: torch.nn.functional.linear(x, weight, bias)


def _multiply_packed(model: AnyBackbone) -> int:
    """Gives every packed linear layer the kernel that expands it in registers; how many."""
    count = 0
    for module in model.modules():
        if isinstance(module, Linear) and module.packed is not None and module.compute is None:
            module.compute = partial(_packed_product, module.packed)
            count += 1
    return count


def _packed_product(packed: PackedWeight, x: Tensor) -> Tensor:
    """x W^T: [..., in] -> [..., out]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    return linear(rows, packed).view(*x.shape[:-1], packed.shape[0])


def _fuse_gate_and_up(mlp: GatedMLP) -> None:
    """One product for both matrices, and activation(gate) * up in one launch. Packed weights and
    biases keep their own products."""
    multiply = {torch.nn.functional.silu: silu_mul, gelu_tanh: gelu_mul}[mlp.activation]
    gate, up = mlp.gate_proj, mlp.up_proj
    if any(p.packed is not None or p.bias is not None or p.compute is not None for p in (gate, up)):
        return
    both = torch.cat((gate.weight.detach(), up.weight.detach()))
    gate.weight = nn.Parameter(both[: gate.weight.shape[0]], requires_grad=False)
    up.weight = nn.Parameter(both[gate.weight.shape[0] :], requires_grad=False)

    def inner(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = rows.new_empty(rows.shape[0], both.shape[0] // 2)
        multiply(torch.nn.functional.linear(rows, both), out)
        return out.view(*x.shape[:-1], -1)

    mlp.compute = inner


def _cuda_mixture(rule: RouteRule, hidden: int, inter: int) -> tuple[MixtureKernels | None, str]:
    """The CUDA C++ kernels, or None and why they cannot be built for this shape."""
    from engine.models.cuda_mixture import CudaMixture

    try:
        return CudaMixture(rule, hidden, inter), ""
    except ValueError as error:
        return None, str(error)
    except RuntimeFailure as failure:
        return None, failure.message.rstrip(".")


def _why_no_cuda(mlp: SparseMLP) -> str:
    """Why the CUDA C++ kernels cannot be used for a layer, "" where they can."""
    return _why_no_cuda_kernels() or _why_not_short(mlp.gate)


def _why_not_short(router: Router) -> str:
    """Why a router cannot be kept in bfloat16, "" where it can. Looks at the weight, which waits
    for the device, only where the files did not say."""
    weight = router.weight
    if router.short or torch.equal(weight.to(torch.bfloat16).to(weight.dtype), weight):
        return ""
    return "the router's weights have more digits than bfloat16 holds"


def _why_no_cuda_kernels() -> str:
    """Why no CUDA C++ kernel can be used here, "" where they can."""
    if importlib.util.find_spec("cuda.bindings") is None:
        return "the Python package cuda-bindings is not installed"
    if torch.cuda.get_device_capability() < SMALLEST_CAPABILITY:
        return "this GPU has no bfloat16 tensor cores"
    return ""


def _route_rule(spec: LLaDA2Spec) -> RouteRule:
    return RouteRule(
        experts=spec.num_experts,
        top_k=spec.num_experts_per_tok,
        n_group=1 if spec.expert_capacity else spec.n_group,
        topk_group=1 if spec.expert_capacity else spec.topk_group,
        capacity=spec.expert_capacity,
        block_length=spec.block_length,
        normalise=spec.norm_topk_prob,
        scale=spec.routed_scaling_factor,
    )
