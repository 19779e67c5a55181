"""Carries a residual from one step of a block to the next, in static buffers.

Knows when a residual counts: from the second step of a block on, at positions that are still
undecided. The maths is `engine.models.residual`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.state import BlockState
from engine.models.residual import ResidualInput, expected_embedding


class Carry:
    """expected [B, L, H] in the model's dtype and doubt float32 [B, L, 1]: what the last step
    expected at undecided positions, 0 elsewhere."""

    def __init__(self, residual: ResidualInput, embedding: Tensor, batch: int, length: int) -> None:
        self.residual, self.embedding = residual, embedding
        shape = (batch, length, embedding.shape[1])
        self.expected = torch.zeros(shape, dtype=embedding.dtype, device=embedding.device)
        self.doubt = torch.zeros(batch, length, 1, dtype=torch.float32, device=embedding.device)

    def add_to(self, embeds: Tensor, state: BlockState) -> Tensor:
        """embeds [B, L, H] of the block as it stands, with what is carried. Nothing is, in a
        block's first step: the buffers then hold what another block left."""
        begun = (state.step > 0).unsqueeze(-1)
        expected = torch.where(begun, self.expected, torch.zeros_like(self.expected))
        return self.residual(embeds, expected, torch.where(begun, self.doubt, 0.0))

    def keep(self, judgement: Judgement, undecided: Tensor, taking: Tensor) -> None:
        """After the rule: undecided bool [B, L], the positions whose residual counts; taking bool
        [B, 1], the rows that took this step: the others keep theirs."""
        scores, log_norm = judgement.scores, judgement.log_norm
        top_k = self.residual.spec.top_k
        expected, doubt = expected_embedding(scores, log_norm, self.embedding, top_k)
        kept, rows = undecided.unsqueeze(-1), taking.unsqueeze(-1)
        expected = torch.where(kept, expected.to(self.expected.dtype), 0.0)
        self.expected.copy_(torch.where(rows, expected, self.expected))
        self.doubt.copy_(torch.where(rows, torch.where(kept, doubt, 0.0), self.doubt))
