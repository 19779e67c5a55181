"""The DiffusionGemma backbone: one stack of layers that reads finished tokens (encoder pass) and
denoises a canvas (decoder pass), as models.md 2.4 gives it.

Knows the transformer's maths from token ids to logits. Who sees whom is the `attend` argument's
business, what is done with the logits is decoding's, where weights come from is the loader's.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.backbone import Backbone
from engine.models.diffusion_gemma_layers import (
    DecoderLayer,
    Norm,
    Rotary,
    SelfConditioning,
    rotary_of,
)
from engine.models.diffusion_gemma_spec import DiffusionGemmaSpec
from engine.models.layers import Attend


class DiffusionGemma(Backbone[DiffusionGemmaSpec]):
    """The text part of a checkpoint. Both passes share every weight but a scalar a layer."""

    def __init__(self, spec: DiffusionGemmaSpec) -> None:
        super().__init__()
        self.spec = spec
        # Not nn.Embedding(v, h): its random initialisation costs seconds, for weights that are
        # replaced.
        empty = torch.empty(spec.vocab_size, spec.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(empty, freeze=False)
        self.self_conditioning = SelfConditioning(spec)
        self.layers = nn.ModuleList(DecoderLayer(spec, n) for n in range(spec.num_layers))
        self.norm = Norm(spec.hidden_size, spec.rms_norm_eps)

    @property
    def embedding(self) -> Tensor:
        return self.embed_tokens.weight

    def embed(self, ids: Tensor) -> Tensor:
        return self._scaled(self.embed_tokens(ids))

    def expected(self, scores: Tensor) -> Tensor:
        """What a step says of its canvas, as embeddings: scores float32 [..., V] -> [..., H].
        Scores are rounded to the embedding's dtype first, as they are where they are kept."""
        dtype = self.embed_tokens.weight.dtype
        return self.mixed(scores.to(dtype).softmax(-1, dtype=torch.float32).to(dtype))

    def mixed(self, share: Tensor) -> Tensor:
        """Embeddings of all tokens by their shares [..., V] -> [..., H]."""
        return self._scaled(share @ self.embed_tokens.weight)

    def condition(self, embeds: Tensor, soft: Tensor) -> Tensor:
        """What the decoder pass begins with; soft: `expected` of the step before, zeros in a
        canvas's first step. All [B, L, H]."""
        return self.self_conditioning.combine(embeds, soft)

    def forward(self, embeds: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The decoder pass over conditioned embeddings; see `Backbone.forward`."""
        return self._run(embeds, positions, attend, encoding=False)

    def encode(self, embeds: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The encoder pass over embeddings of finished tokens: for the keys and values that
        `attend` keeps."""
        return self._run(embeds, positions, attend, encoding=True)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.raw_logits(hidden).float()
        cap = self.spec.softcap
        return (logits / cap).tanh().mul(cap)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V] in the model's dtype, before the soft cap."""
        return F.linear(hidden, self.embed_tokens.weight)

    def _run(self, embeds: Tensor, positions: Tensor, attend: Attend, *, encoding: bool) -> Tensor:
        spec = self.spec
        rotary: Rotary | None = None
        if not attend.rotates:
            kinds = (spec.sliding, spec.full)
            rotary = {kind: rotary_of(kind, positions, embeds.dtype) for kind in kinds}
        first, *others = (cast(Norm, layer.input_layernorm) for layer in self.layers)
        norms = (*others, self.norm)
        x, normed = embeds, first(embeds)
        for layer, following in zip(self.layers, norms, strict=True):
            x, normed = layer(x, normed, rotary, attend, following, encoding=encoding)
        return normed

    def _scaled(self, embeds: Tensor) -> Tensor:
        """By sqrt(H), rounded to the embedding's dtype."""
        scale = torch.full((), self.spec.hidden_size**0.5, dtype=embeds.dtype, device=embeds.device)
        return embeds * scale
