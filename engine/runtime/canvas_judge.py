"""A canvas's logits judged by kernels: scores, best and drawn tokens, entropies, and what the next
step is told.

Knows which launches these are and their buffers, made once while warming up; the maths is
`engine.kernels.noise_head` and `engine.kernels.sampler`, the reference `engine.decoding.judge`.
Needs Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.said import PLAN
from engine.decoding.state import BlockState, RowSettings
from engine.kernels.noise_head import rounded_softmax, temper
from engine.kernels.sampler import (
    RowInputs,
    SamplerWorkspace,
    judge_logits,
    make_sampler_workspace,
    make_verdict,
)


class CanvasJudge:
    """For one batch of canvases of a model. A probability that is shown is that of the scores, at
    this step's temperature but not a person's."""

    def __init__(self, batch: int, length: int, vocab: int, cap: float, weight: Tensor) -> None:
        """weight: the embedding [V, H], which says device and dtype."""
        self.shape, self.cap, self.weight = (batch, length, vocab), cap, weight
        device = weight.device
        self._verdict = make_verdict(batch * length, 0, device)
        self._banned = torch.full((batch, length, 1), -1, dtype=torch.int32, device=device)
        self._space: SamplerWorkspace | None = None

    def scores(self, raw: Tensor, temperature: Tensor) -> Tensor:
        """raw [B, L, V] as the head gives it, temperature float32 [B, 1] -> float32 [B, L, V]; the
        same memory at every step."""
        space = self._workspace()
        assert space.logits is not None
        out = space.logits.view(self.shape)
        temper(raw, temperature, self.cap, out)
        return out

    def judge(self, scores: Tensor, settings: RowSettings, state: BlockState) -> Judgement:
        """Of what `scores` gave."""
        batch, length, vocab = self.shape
        inputs = RowInputs(
            settings.temperature.view(-1),
            settings.seed.view(-1),
            state.start.view(-1),
            state.step.view(-1),
            state.tokens,
            self._banned,
        )
        verdict = self._verdict
        # Kept where they already are: every number is read before it is written back.
        judge_logits(scores.view(-1, vocab), inputs, verdict, self._workspace(), PLAN)
        broken = verdict.nonfinite.view(batch, length).sum(-1, keepdim=True)
        return Judgement(
            verdict.proposal.view(batch, length).long(),
            verdict.confidence.view(batch, length),
            verdict.entropy.view(batch, length),
            scores,
            verdict.log_norm.view(batch, length),
            broken == 0,
            verdict.greedy.view(batch, length).long(),
        )

    def share(self, scores: Tensor) -> Tensor:
        """[B, L, V] in the embedding's dtype: how likely the next step takes each token to be."""
        rows = scores.view(-1, self.shape[2])
        out = torch.empty(rows.shape, dtype=self.weight.dtype, device=rows.device)
        rounded_softmax(rows, out)
        return out.view(self.shape)

    def _workspace(self) -> SamplerWorkspace:
        batch, length, vocab = self.shape
        if self._space is None:
            self._space = make_sampler_workspace(
                batch * length, vocab, 0, True, PLAN, self.weight.device
            )
        return self._space
