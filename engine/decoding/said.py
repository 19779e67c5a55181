"""What a rule needs of a forward, in buffers a kernel can fill: the short form of a `Judgement`.

Knows shapes and the judging kernel's launch; accepts nothing. Probabilities of other ids than the
one that stood on the canvas are not kept, so only rules that ask for no others can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.decoding.judge import Judgement, judge
from engine.decoding.state import RowSettings
from engine.decoding.steering import SteeringState
from engine.kernels.sampler import (
    HeadPlan,
    RowInputs,
    SamplerWorkspace,
    Verdict,
    judge_logits,
    make_sampler_workspace,
    make_verdict,
)

PLAN = HeadPlan(vocab=2048)  # ids of the vocabulary a program judges: bench/LADDER.md


@dataclass(frozen=True, eq=False)
class Said:
    """[B, L] each: proposal int32 or int64, confidence float32 of it, asked float32: probability of
    the token on the canvas, entropy float32 in nats, nonfinite int32 (count of logits). log_norm
    float32 of the plain softmax; None = not known."""

    proposal: Tensor
    confidence: Tensor
    asked: Tensor
    entropy: Tensor
    nonfinite: Tensor
    log_norm: Tensor | None = None

    @classmethod
    def of(cls, judgement: Judgement, canvas: Tensor) -> Said:
        """From the torch reference."""
        bad = (~judgement.finite).to(torch.int32).expand_as(canvas).contiguous()
        return cls(
            judgement.proposal,
            judgement.confidence,
            judgement.probability(canvas),
            judgement.entropy,
            bad,
        )


class Judge(Protocol):
    """Logits float32 [B, L, V] of positions start .. start + L - 1, canvas int64 [B, L]: what
    stands there, step int64 [B, 1]. ahead: this is the next block, judged beside the current one,
    and what is said of it must outlive what is said of that."""

    def __call__(
        self,
        logits: Tensor,
        settings: RowSettings,
        start: Tensor,
        step: Tensor,
        canvas: Tensor,
        steering: SteeringState | None,
        ahead: bool = False,
    ) -> Said: ...


class KernelJudge:
    """`Judge` in two launches: one pass over the logits. Filters take the torch reference, which a
    step that needs them is captured with."""

    def __init__(
        self, batch: int, length: int, suppressed: int | None, device: torch.device
    ) -> None:
        self.suppressed = suppressed
        rows = batch * length
        none = -1 if suppressed is None else suppressed
        self._banned = torch.full((batch, length, 1), none, dtype=torch.int32, device=device)
        self._verdicts = [make_verdict(rows, 0, device) for _ in range(2)]
        self._workspaces: dict[tuple[int, bool], SamplerWorkspace] = {}

    def __call__(
        self,
        logits: Tensor,
        settings: RowSettings,
        start: Tensor,
        step: Tensor,
        canvas: Tensor,
        steering: SteeringState | None,
        ahead: bool = False,
    ) -> Said:
        batch, length, vocab = logits.shape
        positions = start + torch.arange(length, device=logits.device)
        if settings.filtered:
            said = judge(logits, settings, positions, step, self.suppressed, steering)
            return Said.of(said, canvas)
        banned = self._banned
        if steering is not None:
            more = steering.banned_at(positions, step).to(torch.int32)
            banned = torch.cat((banned, more), dim=-1)
        verdict = self._verdicts[ahead]
        inputs = RowInputs(
            settings.temperature.view(-1),
            settings.seed.view(-1),
            start.view(-1),
            step.view(-1),
            canvas,
            banned,
        )
        rows = logits.reshape(-1, vocab)
        workspace = self._workspace(rows, settings.sampled)
        judge_logits(rows, inputs, verdict, workspace, PLAN)
        return _said(verdict, batch, length)

    def _workspace(self, rows: Tensor, sampled: bool) -> SamplerWorkspace:
        """Made while warming up; kept for both judgements of a step, which run one by one."""
        key = (rows.shape[1], sampled)
        if key not in self._workspaces:
            count, vocab = rows.shape
            self._workspaces[key] = make_sampler_workspace(
                count, vocab, 0, sampled, PLAN, rows.device
            )
        return self._workspaces[key]


def _said(verdict: Verdict, batch: int, length: int) -> Said:
    parts = (verdict.proposal, verdict.confidence, verdict.asked, verdict.entropy)
    shaped = [part.view(batch, length) for part in (*parts, verdict.nonfinite, verdict.log_norm)]
    return Said(*shaped)
