"""Rules that fill a block window by window: the leftmost window with a mask is open, and nothing
behind it is touched.

`WindowRule` is LLaDA-8B, MDLM and Fast-dLLM v2 (models.md 3.3, 3.6, 4). A rule mutates a
`BlockState` in place, never reads the host, and never looks at a model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.rules import RuleOptions, choose, reply_complete, write
from engine.decoding.state import BlockState, RowSettings
from engine.types import DecodeSettings


class WindowRule:
    """All that is above the threshold in the open window, or at least the step's quota.

    The quota is an even share of the masks that the window had at its beginning over
    `settings.steps`, and never less than one; without `shares` it is always one. from_prompt:
    windows are counted from the first position that is not held (else from the block's own first
    position). `state.post` counts the steps of the open window, `state.initial_masks` its masks.
    """

    settles = False
    moves = False

    def __init__(
        self,
        name: str,
        mask_id: int,
        stop_ids: Tensor,
        options: RuleOptions,
        window: int,
        *,
        shares: bool,
        from_prompt: bool,
    ) -> None:
        self.name, self.mask_id, self.stop_ids, self.options = name, mask_id, stop_ids, options
        self.window, self.shares, self.from_prompt = window, shares, from_prompt

    def apply(self, state: BlockState, judgement: Judgement, settings: RowSettings) -> None:
        active = ~state.finished
        masked = (state.tokens == self.mask_id) & ~state.prompt
        index = self._windows(state.prompt)
        opened = index.masked_fill(~masked, index.shape[-1]).amin(-1, keepdim=True)
        masked = masked & (index == opened)
        over = masked & (judgement.confidence > settings.threshold)
        quota = self._quota(state, masked, settings)
        chosen = choose(masked, judgement.confidence, over, quota)
        tokens = torch.where(chosen, judgement.proposal, state.tokens)
        left = ((tokens == self.mask_id) & masked).any(-1, keepdim=True)
        done = ~((tokens == self.mask_id) & ~state.prompt).any(-1, keepdim=True)
        if self.options.stop_inside_block:
            done |= reply_complete(tokens, state.prompt, self.stop_ids, self.mask_id)
        state.post.copy_(torch.where(active, torch.where(left, state.post + 1, 0), state.post))
        write(state, judgement, tokens, torch.zeros_like(chosen), self.mask_id)
        state.finished.logical_or_(done)

    def _windows(self, held: Tensor) -> Tensor:
        """int64 [B, L]: the window each position lies in."""
        place = torch.arange(held.shape[-1], device=held.device).expand_as(held)
        if self.from_prompt:
            place = (place - (~held).to(torch.int64).argmax(-1, keepdim=True)).clamp_min(0)
        return place // self.window

    def _quota(self, state: BlockState, masked: Tensor, settings: RowSettings) -> Tensor:
        """int64 [B, 1]."""
        if not self.shares:
            return torch.ones_like(state.post)
        count = masked.sum(-1, keepdim=True)
        state.initial_masks.copy_(torch.where(state.post == 0, count, state.initial_masks))
        whole, steps = state.initial_masks, settings.steps
        quota = whole // steps + (state.post < whole % steps).to(torch.int64)
        return quota.clamp_min(1)

    def step_cap(self, settings: DecodeSettings, block_length: int) -> int:
        return block_length
