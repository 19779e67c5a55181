"""The residual input: what a step adds to the embeddings from what the model said one step before.

Knows the maths (orl.md section 1, RCD: arXiv 2601.22954). When a residual is carried and dropped is
the runtime's business (`engine.runtime.carry`). Autograd works through it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.layers import Linear, RMSNorm
from engine.models.residual_spec import ResidualSpec


class ResidualInput(nn.Module):
    """`forward` gives the embeddings a step sees. kind and sizes: see `ResidualSpec`."""

    def __init__(self, spec: ResidualSpec, hidden: int, eps: float) -> None:
        super().__init__()
        self.spec = spec
        if spec.kind == "rcd":
            return
        self.norm = RMSNorm(hidden, eps)
        self.gate_proj = Linear(hidden, spec.adapter_size)
        self.up_proj = Linear(hidden, spec.adapter_size)
        self.down_proj = Linear(spec.adapter_size, hidden)
        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self, embeds: Tensor, expected: Tensor, doubt: Tensor) -> Tensor:
        """embeds [B, L, H]; expected [B, L, H]: the expected embedding z of the step before, 0
        where there is none; doubt float32 [B, L, 1]: its normalised entropy, 0 where there is none.

        rcd: (1 - doubt) e + doubt z. orl: e + alpha g(z), g = down(silu(gate n) * up n) with n =
        norm(z), its norm capped. With a zero down_proj the result equals `embeds` to the last bit.
        """
        if self.spec.kind == "rcd":
            share = doubt.to(embeds.dtype)
            return embeds + share * (expected - embeds)
        n = self.norm(expected)
        added = self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))
        limit = self.spec.norm_cap * embeds.float().norm(dim=-1, keepdim=True)
        length = added.float().norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return embeds + self.alpha * added * (limit / length).clamp_max(1.0).to(added.dtype)


def expected_embedding(
    scores: Tensor, log_norm: Tensor, weight: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """z [B, L, H] = sum over tokens of p(v) E[v], and its normalised entropy float32 [B, L, 1] (of
    the whole distribution, in shares of log V).

    scores float32 [B, L, V] may hold -inf; log_norm float32 [B, L]; weight [V, H]. top_k > 0: over
    the k most likely tokens only, p renormalised over them.
    """
    vocab = scores.shape[-1]
    logs = scores - log_norm.unsqueeze(-1)
    p = logs.exp()
    entropy = -torch.where(p > 0, p * logs, 0.0).sum(-1, keepdim=True)
    doubt = entropy.clamp_min(0.0) / math.log(vocab)
    if top_k == 0 or top_k >= vocab:
        return p.to(weight.dtype) @ weight, doubt
    best, ids = logs.topk(top_k, dim=-1)
    share = best.softmax(-1).to(weight.dtype)
    return torch.einsum("blk,blkh->blh", share, F.embedding(ids, weight)), doubt
