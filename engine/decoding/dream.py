"""Dream-7B's rule: a step reveals so many masked positions of the whole canvas as its schedule
says, chosen by one of four measures (models.md 3.4).

A rule mutates a `BlockState` in place, never reads the host, and never looks at a model.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.rules import RuleOptions, choose, reply_complete, write
from engine.decoding.state import BlockState, RowSettings
from engine.kernels.philox import uniform
from engine.types import DecodeSettings

Measure = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]
EPSILON = 1e-3  # where the schedule of noise ends: 1 at the first step
POSITIONS = 1  # the stream of draws that choose positions; tokens are drawn from stream 0


class DreamRule:
    """The schedule t = 1 .. EPSILON in `steps` equal parts reveals a share 1 - s/t of the masks at
    the step from t to s, rounded down, and the rest at the last step.

    measure "maskgit_plus": the highest probability; "topk_margin": the largest lead of the best
    token over the second; "entropy": the lowest entropy; "origin": every position by lot, with that
    share for its odds. A canvas with fewer masks than steps takes as many steps as it has masks
    (the reference takes steps that reveal nothing).
    """

    settles = False
    moves = False

    def __init__(
        self, measure: Measure, mask_id: int, stop_ids: Tensor, options: RuleOptions
    ) -> None:
        self.name, self.measure = f"dream.{measure}", measure
        self.mask_id, self.stop_ids, self.options = mask_id, stop_ids, options

    def apply(self, state: BlockState, judgement: Judgement, settings: RowSettings) -> None:
        masked = (state.tokens == self.mask_id) & ~state.prompt
        count = masked.sum(-1, keepdim=True)
        # Held positions are known only now: the first step counts what it has to fill.
        first = torch.where(state.step == 0, count, state.initial_masks)
        state.initial_masks.copy_(torch.where(state.finished, state.initial_masks, first))
        steps = torch.minimum(settings.steps, state.initial_masks.clamp_min(1))
        last = state.step + 1 >= steps
        share = _share(state.step, steps)
        if self.measure == "origin":
            lot = uniform(settings.seed, state.positions, state.step, POSITIONS)
            chosen = masked & ((lot < share) | last)
        else:
            need = (count * share).floor().to(torch.int64)
            none = torch.zeros_like(masked)
            best = choose(masked, self._measured(judgement), none, need.clamp_min(1))
            chosen = torch.where(last, masked, best & (need > 0))
        tokens = torch.where(chosen, judgement.proposal, state.tokens)
        done = ~((tokens == self.mask_id) & ~state.prompt).any(-1, keepdim=True) | last
        if self.options.stop_inside_block:
            done |= reply_complete(tokens, state.prompt, self.stop_ids, self.mask_id)
        write(state, judgement, tokens, torch.zeros_like(chosen), self.mask_id)
        state.finished.logical_or_(done)

    def _measured(self, judgement: Judgement) -> Tensor:
        """float32 [B, L], of the distribution after temperature and filters."""
        if self.measure == "maskgit_plus":
            return judgement.confidence
        logs = judgement.scores - judgement.log_norm.unsqueeze(-1)
        if self.measure == "topk_margin":
            best = logs.topk(2, dim=-1).values.exp()
            return best[..., 0] - best[..., 1]
        p = logs.exp()
        return torch.where(p > 0, p * logs, 0.0).sum(-1)

    def step_cap(self, settings: DecodeSettings, block_length: int) -> int:
        return min(settings.steps, block_length)


def _share(step: Tensor, steps: Tensor) -> Tensor:
    """float64 [B, 1]: 1 - s/t of the schedule's step."""
    unit = (1.0 - EPSILON) / steps.to(torch.float64)
    return unit / (1.0 - unit * step.to(torch.float64))
