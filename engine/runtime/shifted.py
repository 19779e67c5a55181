"""The step over blocks whose logits predict the next position's token (Fast-dLLM v2).

Knows that the first token of a block is what the clean forward over the tokens before it says, and
is never denoised: it is kept when that forward runs, and stands on the canvas from the block's
first step on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.rules import Rule
from engine.decoding.state import BlockState, RowSettings
from engine.decoding.steering import SteeringState
from engine.models.backbone import AnyBackbone
from engine.runtime.cache import KVCache
from engine.runtime.rows import Row
from engine.runtime.step import StepProgram


class ShiftedBlockProgram(StepProgram):
    """foreseen int64 [B, 1]: the token that follows the last clean position. The first step of a
    block needs it, so a commit takes a forward of its own."""

    shares_commit = False
    looks_ahead = False
    foresees = True

    def __init__(
        self,
        model: AnyBackbone,
        cache: KVCache,
        state: BlockState,
        rule: Rule,
        suppressed: int | None,
    ) -> None:
        super().__init__(model, cache, state, rule, suppressed)
        self.foreseen = torch.zeros_like(state.start)
        self.prompt_ends = torch.zeros_like(state.start)

    @property
    def written(self) -> tuple[Tensor, ...]:
        return (*super().written, self.foreseen)

    def load(self, rows: Sequence[Row]) -> None:
        super().load(rows)
        ends = [[len(row.prompt)] for row in rows]
        self.prompt_ends.copy_(torch.tensor(ends, dtype=torch.int64))

    def prefill(self, ids: Tensor, positions: Tensor, bound: int) -> None:
        """See `StepProgram.prefill`. A prompt that ends with a block's end also gives the token
        after it."""
        hidden = self.model(self.model.embed(ids), positions, self._attend(positions, bound, 0))
        place = self.prompt_ends - 1 - positions[:, :1]
        here = (place >= 0) & (place < ids.shape[1])
        self._foresee(hidden, place.clamp(0, ids.shape[1] - 1), here)

    def commit(self, bound: int) -> None:
        """Also says the first token of the block that begins."""
        positions = self._previous_positions()
        ids = self.state.previous
        hidden = self.model(self.model.embed(ids), positions, self._attend(positions, bound, 0))
        last = torch.full_like(self.foreseen, ids.shape[1] - 1)
        self._foresee(hidden, last, torch.ones_like(self.state.finished))

    def step(
        self,
        settings: RowSettings,
        bound: int,
        with_previous: bool,
        steering: SteeringState | None = None,
    ) -> Judgement:
        """See `StepProgram.step`. with_previous is never asked for: commits are not shared."""
        state = self.state
        if steering is not None:
            steering.take_back(state, self.rule.mask_id, hold=not self.rule.moves)
        first = state.tokens[:, :1]
        open_first = (first == self.rule.mask_id) & (state.start > 0)
        first.copy_(torch.where(open_first & ~state.finished, self.foreseen, first))
        positions = state.positions
        attend = self._attend(positions, bound, self.block_length)
        hidden = self.model(self._embeds(state.tokens), positions, attend)
        hidden = torch.cat((hidden[:, :1], hidden[:, :-1]), dim=1)
        return self._judged(self.model.logits(hidden), settings, steering)

    def _foresee(self, hidden: Tensor, place: Tensor, here: Tensor) -> None:
        """Keeps what hidden [B, T, H] says at place [B, 1], in rows where `here`."""
        index = place.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        logits = self.model.logits(hidden.gather(1, index))
        if self.suppressed is not None:
            logits.select(-1, self.suppressed).fill_(float("-inf"))
        self.foreseen.copy_(torch.where(here, logits.argmax(-1), self.foreseen))
