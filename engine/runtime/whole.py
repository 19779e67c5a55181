"""The step over a whole sequence: prompt and answer are one canvas that sees itself both ways.

Knows that there is no cache, where a row's canvas ends, and the shift of logits. A reply is one
block as long as the canvas; positions behind a row's own end are held, and nobody sees them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.decoding.judge import Judgement
from engine.decoding.rules import Rule
from engine.decoding.state import BlockState, RowSettings
from engine.decoding.steering import SteeringState
from engine.models.backbone import AnyBackbone
from engine.models.layers import MaskAttend
from engine.runtime.cache import KVCache
from engine.runtime.rows import Row
from engine.runtime.step import StepProgram

CANVAS_UNIT = 64  # canvases are made in multiples of this, so that few shapes are captured


def canvas_length(prompt: int, max_new_tokens: int, context: int) -> int:
    """Positions of the canvas that a request runs on."""
    units = -(-(prompt + max_new_tokens) // CANVAS_UNIT)
    return min(units * CANVAS_UNIT, context)


class WholeSequenceProgram(StepProgram):
    """shift: logits at i - 1 predict token i. filler: a token for the positions behind the end."""

    shares_commit = False
    looks_ahead = False
    prefills = False
    attends = "Attention over the whole sequence is PyTorch's own."

    def __init__(
        self,
        model: AnyBackbone,
        state: BlockState,
        rule: Rule,
        suppressed: int | None,
        *,
        shift: bool,
        filler: int,
    ) -> None:
        batch, length = state.tokens.shape
        device = state.tokens.device
        nothing = KVCache(0, batch, 0, length, 0, model.norm.weight.dtype, device)
        super().__init__(model, nothing, state, rule, suppressed)
        self.shift, self.filler = shift, filler
        self.ends = torch.full((batch, 1), length, dtype=torch.int64, device=device)

    def load(self, rows: Sequence[Row]) -> None:
        super().load(rows)
        ends = [[len(row.prompt) + row.max_new_tokens] for row in rows]
        self.ends.copy_(torch.tensor(ends, dtype=torch.int64))

    def commit(self, bound: int) -> None:
        """There is no cache to write. A reply is one block, so this never runs but in a capture."""

    def step(
        self,
        settings: RowSettings,
        bound: int,
        with_previous: bool,
        steering: SteeringState | None = None,
    ) -> Judgement:
        """See `StepProgram.step`; there is no block before, and nothing cached to scan."""
        state = self.state
        positions = state.positions
        inside = positions < self.ends
        state.prompt.logical_or_(~inside)
        state.tokens.copy_(torch.where(inside, state.tokens, self.filler))
        if steering is not None:
            steering.take_back(state, self.rule.mask_id, hold=not self.rule.moves)
        embeds = self._embeds(state.tokens)
        seen = inside[:, None, None, :]
        hidden = self.model(embeds, positions, MaskAttend(seen))
        if self.shift:
            hidden = torch.cat((hidden[:, :1], hidden[:, :-1]), dim=1)
        return self._judged(self.model.logits(hidden), settings, steering)
