"""The dense backbone: Qwen3 (SDAR, TraDo, BD3LM, MDLM), Qwen2.5 (Fast-dLLM v2, Dream) and LLaDA-8B
are the same layers, with or without QK-norm and biases.

Knows the transformer's maths from input embeddings to logits. Who sees whom is the `attend`
argument's business, what is done with the logits is decoding's, where weights come from is the
loader's. Parameter names are those of the Hugging Face Qwen3 layout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.backbone import Backbone
from engine.models.dense_spec import DenseSpec
from engine.models.experts import GatedMLP
from engine.models.layers import Attend, Delta, Heads, Linear, RMSNorm, rotary_tables
from engine.models.residual import ResidualInput


class Attention(nn.Module):
    """Query, key and value projections stay apart, as they are stored: packed ones have scales of
    their own. compute: how the three are done at once where their weights lie together; None = one
    by one."""

    def __init__(self, spec: DenseSpec, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_kv_heads, self.head_dim = spec.num_kv_heads, spec.head_dim
        hidden, rows = spec.hidden_size, spec.num_heads * spec.head_dim
        kv_rows = spec.num_kv_heads * spec.head_dim
        self.q_proj = Linear(hidden, rows, bias=spec.qkv_bias)
        self.k_proj = Linear(hidden, kv_rows, bias=spec.qkv_bias)
        self.v_proj = Linear(hidden, kv_rows, bias=spec.qkv_bias)
        self.o_proj = Linear(rows, hidden)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps) if spec.qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps) if spec.qk_norm else None
        self.compute: Callable[[Tensor], Tensor] | None = None

    @property
    def projections(self) -> tuple[Linear, ...]:
        """In the order of their rows in `Heads.qkv`."""
        return self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        if self.compute is not None:
            qkv = self.compute(x)
        else:
            qkv = torch.cat([part(x) for part in self.projections], dim=-1)
        norms = (self.q_norm, self.k_norm)
        out = attend(self.layer, Heads(qkv, self.num_kv_heads, self.head_dim, *norms, rotary))
        return self.o_proj(out.reshape(*x.shape[:-1], -1))


class DecoderLayer(nn.Module):
    def __init__(self, spec: DenseSpec, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = Attention(spec, layer)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size)

    def forward(
        self,
        x: Tensor,
        delta: Delta | None,
        rotary: tuple[Tensor, Tensor] | None,
        attend: Attend,
    ) -> tuple[Tensor, Delta]:
        """The residual stream and what the last sublayer adds to it, in and out: the addition is
        the next norm's."""
        x, h = self.input_layernorm.add(x, delta)
        x, h = self.post_attention_layernorm.add(x, self.self_attn(h, rotary, attend))
        return x, self.mlp(h)


class Dense(Backbone[DenseSpec]):
    """The whole transformer of a checkpoint."""

    def __init__(self, spec: DenseSpec) -> None:
        super().__init__()
        self.spec = spec
        # Not nn.Embedding(v, h): its random initialisation costs seconds, for weights that are
        # replaced.
        empty = torch.empty(spec.vocab_size, spec.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(empty, freeze=False)
        self.layers = nn.ModuleList(DecoderLayer(spec, n) for n in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        tied = spec.tie_word_embeddings
        self.lm_head = None if tied else Linear(spec.hidden_size, spec.vocab_size)
        if spec.residual is not None:
            self.residual = ResidualInput(spec.residual, spec.hidden_size, spec.rms_norm_eps)

    @property
    def embedding(self) -> Tensor:
        return self.embed_tokens.weight

    def embed(self, ids: Tensor) -> Tensor:
        return self.embed_tokens(ids)

    def forward(self, embeds: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        spec = self.spec
        rotary = None
        if not attend.rotates:
            rotary = rotary_tables(positions, spec.head_dim, spec.rope_theta, embeds.dtype)
        x: Tensor = embeds
        delta: Delta | None = None
        for layer in self.layers:
            x, delta = layer(x, delta, rotary, attend)
        return self.norm.add(x, delta)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        if self.lm_head is None:
            return F.linear(hidden, self.embed_tokens.weight).float()
        return self.lm_head(hidden).float()
