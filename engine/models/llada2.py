"""The LLaDA2 mixture-of-experts backbone (LLaDA2.0, 2.1, 2.2), as models.md 1.2-1.4 gives it.

Knows the transformer's maths from input embeddings to logits. Who sees whom is the `attend`
argument's business, what is done with the logits is decoding's, where weights come from is the
loader's. Parameter names mirror the checkpoint's, but for the experts, which are stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.backbone import Backbone
from engine.models.experts import (
    Experts,
    GatedMLP,
    Router,
    block_pool_choice,
    group_limited_choice,
)
from engine.models.layers import Attend, Delta, Heads, Linear, RMSNorm, rotary_tables
from engine.models.llada2_spec import LLaDA2Spec
from engine.models.residual import ResidualInput


def _qk_norm(spec: LLaDA2Spec) -> RMSNorm | None:
    return RMSNorm(spec.head_dim, spec.rms_norm_eps) if spec.use_qk_norm else None


class Attention(nn.Module):
    def __init__(self, spec: LLaDA2Spec, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_kv_heads = spec.num_kv_heads
        self.head_dim = spec.head_dim
        rows = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self.query_key_value = Linear(spec.hidden_size, rows, bias=spec.use_qkv_bias)
        self.dense = Linear(spec.num_heads * spec.head_dim, spec.hidden_size, bias=spec.use_bias)
        self.query_layernorm = _qk_norm(spec)
        self.key_layernorm = _qk_norm(spec)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        heads = Heads(
            self.query_key_value(x),
            self.num_kv_heads,
            self.head_dim,
            self.query_layernorm,
            self.key_layernorm,
            rotary,
        )
        out = attend(self.layer, heads)
        return self.dense(out.reshape(*x.shape[:-1], -1))


class SparseMLP(nn.Module):
    """Routed experts plus the ungated shared expert.

    compute: how the whole of it is done where kernels do it; None = plain torch.
    """

    def __init__(self, spec: LLaDA2Spec) -> None:
        super().__init__()
        if spec.expert_capacity > 0:
            choose = partial(
                block_pool_choice,
                block_length=spec.block_length,
                capacity=spec.expert_capacity,
                top_k=spec.num_experts_per_tok,
            )
        else:
            choose = partial(
                group_limited_choice,
                n_group=spec.n_group,
                topk_group=spec.topk_group,
                top_k=spec.num_experts_per_tok,
            )
        self.gate = Router(
            spec.hidden_size,
            spec.num_experts,
            choose,
            spec.routed_scaling_factor,
            spec.norm_topk_prob,
        )
        self.experts = Experts(spec.num_experts, spec.hidden_size, spec.moe_intermediate_size)
        self.shared_experts = (
            GatedMLP(spec.hidden_size, spec.moe_intermediate_size * spec.num_shared_experts)
            if spec.num_shared_experts
            else None
        )
        self.compute: Callable[[Tensor], Delta] | None = None

    def forward(self, x: Tensor) -> Delta:
        if self.compute is not None:
            return self.compute(x)
        rows = x.reshape(-1, x.shape[-1])
        ids, weights = self.gate(rows)
        out = self.experts(rows, ids, weights).view_as(x)
        return out if self.shared_experts is None else out + self.shared_experts(x)


class DecoderLayer(nn.Module):
    def __init__(self, spec: LLaDA2Spec, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.attention = Attention(spec, layer)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        dense = layer < spec.first_k_dense_replace
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size) if dense else SparseMLP(spec)

    def forward(
        self,
        x: Tensor,
        delta: Delta | None,
        rotary: tuple[Tensor, Tensor] | None,
        attend: Attend,
    ) -> tuple[Tensor, Delta]:
        """The residual stream and what the last sublayer adds to it, in and out: the addition is
        the next norm's, so that a kernel can do both at once."""
        x, h = self.input_layernorm.add(x, delta)
        x, h = self.post_attention_layernorm.add(x, self.attention(h, rotary, attend))
        return x, self.mlp(h)


class LLaDA2(Backbone[LLaDA2Spec]):
    """The whole transformer of a checkpoint."""

    def __init__(self, spec: LLaDA2Spec) -> None:
        super().__init__()
        self.spec = spec
        # Not nn.Embedding(v, h): its random initialisation costs seconds of imports, for weights
        # that are replaced.
        empty = torch.empty(spec.vocab_size, spec.hidden_size)
        self.word_embeddings = nn.Embedding.from_pretrained(empty, freeze=False)
        self.layers = nn.ModuleList(DecoderLayer(spec, n) for n in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        tied = spec.tie_word_embeddings
        self.lm_head = None if tied else Linear(spec.hidden_size, spec.vocab_size)
        if spec.residual is not None:
            self.residual = ResidualInput(spec.residual, spec.hidden_size, spec.rms_norm_eps)

    @property
    def embedding(self) -> Tensor:
        return self.word_embeddings.weight

    def embed(self, ids: Tensor) -> Tensor:
        """ids int64 [B, T] -> [B, T, H]."""
        return self.word_embeddings(ids)

    def forward(self, embeds: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """embeds [B, T, H], absolute positions int64 [B, T] -> hidden states after the final norm
        [B, T, H].

        With `expert_capacity` (2.2 routing) T must be a whole number of blocks starting at a block
        boundary.
        """
        spec = self.spec
        rotary = None
        if not attend.rotates:
            rotary = rotary_tables(positions, spec.rotary_dim, spec.rope_theta, embeds.dtype)
        x: Tensor = embeds
        delta: Delta | None = None
        for layer in self.layers:
            x, delta = layer(x, delta, rotary, attend)
        return self.norm.add(x, delta)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> float32 [..., V]; position i predicts token i (no shift)."""
        if self.lm_head is None:
            return F.linear(hidden, self.word_embeddings.weight).float()
        return self.lm_head(hidden).float()
