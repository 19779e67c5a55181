"""DiffusionGemma's layers: sandwich norms, heads of two kinds, a router over the raw residual, and
self-conditioning (models.md 2.4).

Knows tensor maths only, in plain torch; autograd works through all of it. Who sees whom is the
`attend` argument's business. Parameter names mirror the checkpoint's, but for the experts, which
are stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.diffusion_gemma_spec import DiffusionGemmaSpec, LayerKind
from engine.models.experts import Experts, GatedMLP
from engine.models.layers import Attend, Heads, Linear, RMSNorm, apply_rotary

Rotary = dict[LayerKind, tuple[Tensor, Tensor]]  # cos and sin [B, T, 1, D]


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class Norm(RMSNorm):
    """y = cast(x_fp32 * rsqrt(mean(x^2) + eps) * w): the weight multiplies before the cast back."""

    def forward(self, x: Tensor) -> Tensor:
        return (_unit(x, self.eps) * self.weight.float()).to(x.dtype)


def _unit(x: Tensor, eps: float) -> Tensor:
    h = x.float()
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)


def unit_norm(x: Tensor, eps: float) -> Tensor:
    """RMSNorm without a weight, [..., N] in x's dtype."""
    return _unit(x, eps).to(x.dtype)


def inverse_of(kind: LayerKind, device: torch.device) -> Tensor:
    """float32 [head_dim / 2]: how far a pair of dimensions turns per position, 0 for most pairs of
    a head that is turned in part."""
    exponent = torch.arange(0, 2 * kind.angles, 2, device=device, dtype=torch.float32)
    inverse = 1.0 / (kind.theta ** (exponent / kind.head_dim))
    return F.pad(inverse, (0, kind.head_dim // 2 - kind.angles))


def rotary_of(kind: LayerKind, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, 1, head_dim] of absolute positions [B, T], computed in float32."""
    inverse = inverse_of(kind, positions.device)
    angles = positions.to(torch.float32).unsqueeze(-1) * inverse
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@dataclass(frozen=True, eq=False)
class GemmaHeads(Heads):
    """`Heads` whose values are normalised without a weight, for attention of scale 1.

    shared: the values are the keys as projected, so qkv is [B, T, (Hq + Hkv) D].
    """

    eps: float
    shared: bool

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        assert self.rotary is not None
        assert self.q_norm is not None
        assert self.k_norm is not None
        batch, length, _ = self.qkv.shape
        heads = self.qkv.view(batch, length, -1, self.head_dim)
        kv = self.kv_heads
        first = heads.shape[2] - (1 if self.shared else 2) * kv
        q, k, v = heads[:, :, :first], heads[:, :, first : first + kv], heads[:, :, -kv:]
        q, k = self.q_norm(q), self.k_norm(k)
        rotary = self.rotary
        return apply_rotary(q, *rotary), apply_rotary(k, *rotary), unit_norm(v, self.eps)


class Attention(nn.Module):
    """compute: how the projections are done at once where their weights lie together; None = one by
    one."""

    def __init__(self, spec: DiffusionGemmaSpec, layer: int) -> None:
        super().__init__()
        kind = spec.kind_of(layer)
        self.layer, self.kind, self.eps = layer, kind, spec.rms_norm_eps
        hidden, rows = spec.hidden_size, spec.num_heads * kind.head_dim
        kv_rows = kind.kv_heads * kind.head_dim
        self.q_proj = Linear(hidden, rows)
        self.k_proj = Linear(hidden, kv_rows)
        self.v_proj = None if kind.window is None else Linear(hidden, kv_rows)
        self.o_proj = Linear(rows, hidden)
        self.q_norm = Norm(kind.head_dim, spec.rms_norm_eps)
        self.k_norm = Norm(kind.head_dim, spec.rms_norm_eps)
        self.compute: Callable[[Tensor], Tensor] | None = None

    @property
    def projections(self) -> tuple[Linear, ...]:
        """In the order of their rows in `Heads.qkv`."""
        parts = (self.q_proj, self.k_proj)
        return parts if self.v_proj is None else (*parts, self.v_proj)

    def forward(self, x: Tensor, rotary: Rotary | None, attend: Attend) -> Tensor:
        if self.compute is not None:
            qkv = self.compute(x)
        else:
            qkv = torch.cat([part(x) for part in self.projections], dim=-1)
        kind = self.kind
        heads = GemmaHeads(
            qkv,
            kind.kv_heads,
            kind.head_dim,
            self.q_norm,
            self.k_norm,
            None if rotary is None else rotary[kind],
            self.eps,
            kind.window is None,
        )
        return self.o_proj(attend(self.layer, heads).reshape(*x.shape[:-1], -1))


class ScaledRouter(nn.Module):
    """Softmax over all experts, the best of them renormalised, each with a scale of its own."""

    def __init__(self, spec: DiffusionGemmaSpec) -> None:
        super().__init__()
        self.eps, self.top_k = spec.rms_norm_eps, spec.num_experts_per_tok
        self.proj = Linear(spec.hidden_size, spec.num_experts)
        self.scale = nn.Parameter(torch.ones(spec.hidden_size))
        self.per_expert_scale = nn.Parameter(torch.ones(spec.num_experts))

    def prepare(self, x: Tensor) -> Tensor:
        """The residual stream [..., H] as `proj` sees it."""
        return unit_norm(x, self.eps) * self.scale * x.shape[-1] ** -0.5

    def choose(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """[N, H] -> expert ids int64 [N, K] and weights float32 [N, K]."""
        share, ids = self.proj(prepared).softmax(-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        share = share / share.sum(-1, keepdim=True)
        return ids, share * self.per_expert_scale[ids].float()


class OwnScalar(nn.Module):
    """What the encoder pass has for itself in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_scalar = nn.Parameter(torch.ones(1))


class LayerCompute(Protocol):
    """A layer behind its attention where kernels do it."""

    def __call__(
        self, x: Tensor, attended: Tensor, scalar: Tensor, following: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        """The residual stream x [B, T, H] and what attention gave, to the stream after the layer
        and its `following` norm."""
        ...


class DecoderLayer(nn.Module):
    """compute: how all but the attention is done where kernels do it; None = plain torch."""

    def __init__(self, spec: DiffusionGemmaSpec, layer: int) -> None:
        super().__init__()

        def norm() -> Norm:
            return Norm(spec.hidden_size, spec.rms_norm_eps)

        self.input_layernorm = norm()
        self.self_attn = Attention(spec, layer)
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size, gelu_tanh)
        self.post_feedforward_layernorm_1 = norm()
        self.router = ScaledRouter(spec)
        self.pre_feedforward_layernorm_2 = norm()
        sizes = (spec.num_experts, spec.hidden_size, spec.moe_intermediate_size)
        self.experts = Experts(*sizes, gelu_tanh)
        self.post_feedforward_layernorm_2 = norm()
        self.post_feedforward_layernorm = norm()
        self.layer_scalar = nn.Parameter(torch.ones(1))
        self.encoder = OwnScalar()
        self.compute: LayerCompute | None = None

    def forward(
        self,
        x: Tensor,
        normed: Tensor,
        rotary: Rotary | None,
        attend: Attend,
        following: RMSNorm,
        *,
        encoding: bool,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream and its norm for this layer, to those for the next: `following` is
        the next layer's norm, or the last one."""
        attended = self.self_attn(normed, rotary, attend)
        scalar = self.encoder.layer_scalar if encoding else self.layer_scalar
        if self.compute is not None:
            return self.compute(x, attended, scalar, following)
        x = x + self.post_attention_layernorm(attended)
        dense = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(x)))
        rows = x.reshape(-1, x.shape[-1])
        ids, weights = self.router.choose(self.router.prepare(rows))  # of the raw residual
        routed = self.experts(self.pre_feedforward_layernorm_2(rows), ids, weights).view_as(x)
        both = dense + self.post_feedforward_layernorm_2(routed)
        x = (x + self.post_feedforward_layernorm(both)) * scalar
        return x, following(x)


class SelfConditioning(GatedMLP):
    """What the decoder begins with: embeddings, and what the step before expected."""

    def __init__(self, spec: DiffusionGemmaSpec) -> None:
        super().__init__(spec.hidden_size, spec.intermediate_size, gelu_tanh)
        self.pre_norm = Norm(spec.hidden_size, spec.rms_norm_eps)

    def combine(self, embeds: Tensor, soft: Tensor) -> Tensor:
        """Both [B, L, H]. soft: zeros in a canvas's first step, when the norm runs all the same."""
        return unit_norm(embeds + self(self.pre_norm(soft)), self.pre_norm.eps)
