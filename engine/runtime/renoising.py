"""The step over a canvas of noise, and the cache of a model whose finished tokens see only what is
before them.

Knows where noise enters (in place of undecided positions), the temperature a step is judged at, and
who sees whom in a forward of finished tokens and a canvas together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.renoise import UNDECIDED, noise, schedule
from engine.decoding.rules import Rule
from engine.decoding.state import BlockState, RowSettings
from engine.decoding.steering import SteeringState
from engine.models.backbone import AnyBackbone
from engine.models.layers import Attend
from engine.runtime.cache import CachedAttend, KVCache
from engine.runtime.step import StepProgram


class CausalCommitAttend(CachedAttend):
    """Finished tokens see what is before them, and themselves; the last `canvas` positions see
    their whole block. Keys and values go to the cache as ever."""

    def __init__(
        self, cache: KVCache, positions: Tensor, bound: int, block_length: int, canvas: int
    ) -> None:
        self.canvas = canvas
        super().__init__(cache, positions, bound, block_length)

    def _mask(self) -> Tensor:
        keys = torch.arange(self.bound, device=self.positions.device)
        length, finished = self.block_length, self.positions.shape[1] - self.canvas
        ends = self.positions // length * length + length - 1
        last = torch.cat((self.positions[:, :finished], ends[:, finished:]), dim=1)
        return (keys <= last.unsqueeze(-1)).unsqueeze(1)


class RenoisingProgram(StepProgram):
    """causal: finished tokens see only what is before them (else their whole block)."""

    looks_ahead = False

    def __init__(
        self,
        model: AnyBackbone,
        cache: KVCache,
        state: BlockState,
        rule: Rule,
        *,
        causal: bool,
    ) -> None:
        super().__init__(model, cache, state, rule, None)
        self.causal = causal

    def prefill(self, ids: Tensor, positions: Tensor, bound: int) -> None:
        """See `StepProgram.prefill`. What is undecided belongs to no row's prompt: any token."""
        super().prefill(ids.clamp_min(0), positions, bound)

    def step(
        self,
        settings: RowSettings,
        bound: int,
        with_previous: bool,
        steering: SteeringState | None = None,
    ) -> Judgement:
        """See `StepProgram.step`."""
        state = self.state
        if steering is not None:
            steering.take_back(state, UNDECIDED)
        fresh = noise(settings, state, self.model.spec.vocab_size)
        ids = torch.where(state.tokens == UNDECIDED, fresh, state.tokens)
        where = state.positions
        if with_previous:
            ids = torch.cat((state.previous.clamp_min(0), ids), dim=1)
            where = torch.cat((self._previous_positions(), where), dim=1)
        attend = self._attend(where, bound, self.block_length)
        hidden = self.model(self._embeds(ids), where, attend)
        logits = self._scores(hidden[:, -self.block_length :], schedule(settings, state))
        return self._judged(logits, settings, steering)

    def _scores(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Logits float32 [B, L, V] of the canvas at a step's temperature [B, 1]."""
        return self.model.logits(hidden) / temperature.unsqueeze(-1)

    def _attend(self, where: Tensor, bound: int, canvas: int) -> Attend:
        if not self.causal:
            return super()._attend(where, bound, canvas)
        return CausalCommitAttend(self.cache, where, bound, self.block_length, canvas)
