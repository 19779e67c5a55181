"""The step over a canvas of noise whose model is told what it said a step before, after finished
tokens were read by a causal pass of its own (DiffusionGemma).

Knows which pass a forward is, and what a canvas carries from step to step. The sampler is
`engine.decoding.renoise`; who sees whom is `engine.runtime.canvas_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.rules import Rule
from engine.decoding.state import BlockState, RowSettings
from engine.decoding.steering import SteeringState
from engine.models.diffusion_gemma import DiffusionGemma
from engine.models.layers import Attend
from engine.runtime.canvas_cache import CanvasAttend, CanvasCache
from engine.runtime.renoising import RenoisingProgram
from engine.runtime.rows import Row

if TYPE_CHECKING:  # needs Triton
    from engine.runtime.canvas_judge import CanvasJudge


class SelfConditionedProgram(RenoisingProgram):
    """soft [B, L, H] in the model's dtype: what the last step expected of the canvas. A finished
    canvas is read by a pass of its own, which no step can share. judge: how logits are judged where
    kernels do it, but for filters and a person's bans; None = plain torch."""

    shares_commit = False

    def __init__(
        self,
        model: DiffusionGemma,
        cache: CanvasCache,
        state: BlockState,
        rule: Rule,
    ) -> None:
        super().__init__(model, cache, state, rule, causal=True)
        self.backbone, self.canvas_cache = model, cache
        shape = (*state.tokens.shape, model.spec.hidden_size)
        weight = model.embedding
        self.soft = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.judge: CanvasJudge | None = None
        self.prompt_ends = torch.zeros_like(state.start)

    @property
    def remembers(self) -> bool:
        return True

    @property
    def written(self) -> tuple[Tensor, ...]:
        return (*super().written, self.soft)

    def load(self, rows: Sequence[Row]) -> None:
        super().load(rows)
        ends = [[len(row.prompt)] for row in rows]
        self.prompt_ends.copy_(torch.tensor(ends, dtype=torch.int64))

    def prefill(self, ids: Tensor, positions: Tensor, bound: int) -> None:
        """See `StepProgram.prefill`: the encoder pass."""
        self._encode(ids, positions, bound, self.prompt_ends)

    def commit(self, bound: int) -> None:
        self._encode(self.state.previous, self._previous_positions(), bound, self.state.start)

    def _encode(self, ids: Tensor, positions: Tensor, bound: int, ends: Tensor) -> None:
        """In as many forwards as the cache's rings ask for."""
        chunk = self.canvas_cache.chunk
        parts = (ids.clamp_min(0).split(chunk, dim=1), positions.split(chunk, dim=1))
        for tokens, where in zip(*parts, strict=True):
            attend = CanvasAttend(self.canvas_cache, where, bound, ends)
            self.backbone.encode(self.backbone.embed(tokens), where, attend)

    def _embeds(self, ids: Tensor) -> Tensor:
        """Nothing is expected in a canvas's first step: the buffer then holds another's."""
        begun = (self.state.step > 0).unsqueeze(-1)
        soft = torch.where(begun, self.soft, torch.zeros_like(self.soft))
        return self.backbone.condition(self.backbone.embed(ids), soft)

    def _judged(
        self, logits: Tensor, settings: RowSettings, steering: SteeringState | None
    ) -> Judgement:
        """Also keeps what the next step is told: the logits at this step's temperature, without
        what a person may have banned."""
        plain = self.judge is None or settings.filtered or steering is not None
        if plain or self.judge is None:
            judgement = super()._judged(logits, settings, steering)
            self.soft.copy_(self.backbone.expected(logits))
            return judgement
        if self.watch is not None:
            self.watch.note(logits)  # before judging scales them where they are
        judgement = self.judge.judge(logits, settings, self.state)
        self.rule.apply(self.state, judgement, settings)
        self.soft.copy_(self.backbone.mixed(self.judge.share(logits)))
        return judgement

    def _scores(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        if self.judge is None:
            return super()._scores(hidden, temperature)
        return self.judge.scores(self.backbone.raw_logits(hidden), temperature)

    def _attend(self, where: Tensor, bound: int, canvas: int) -> Attend:
        return CanvasAttend(self.canvas_cache, where, bound, None)
