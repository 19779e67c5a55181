"""Decoding rules of the LLaDA2 family without block edits: what a forward's judgement changes on
the canvas.

`QuotaRule` is LLaDA2.0 (models.md 1.6), `EditingRule` LLaDA2.1 (1.7). A rule mutates a `BlockState`
in place, never reads the host, and never looks at a model. LLaDA2.2's block edits are in
`engine.decoding.levenshtein`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.state import EDITING_OFF, BlockState, RowSettings
from engine.types import DecodeSettings


@dataclass(frozen=True)
class RuleOptions:
    """What the app fixes and only parity tests change.

    suppress_mask: the mask id is never emitted. stop_inside_block: a row ends as soon as a stop
    token is on the canvas with nothing masked before it (rules that may still edit wait for the
    block's end). stop_after_block: a stop token in a finished block ends the reply.
    """

    suppress_mask: bool = True
    stop_inside_block: bool = True
    stop_after_block: bool = True


class Rule(Protocol):
    """One decoding rule. `apply` is called after every forward and sets `state.finished` when a
    row's block is done. settles: a block may end with a step that changes nothing
    (`state.settled`). moves: tokens may change their place in a block, so that none can be held."""

    name: str
    mask_id: int
    settles: bool
    moves: bool

    def apply(self, state: BlockState, judgement: Judgement, settings: RowSettings) -> None: ...

    def step_cap(self, settings: DecodeSettings, block_length: int) -> int:
        """A bound on forwards per block that no correct run reaches; the runtime stops there
        whatever happens."""
        ...


def choose(masked: Tensor, confidence: Tensor, accepted: Tensor, need: Tensor) -> Tensor:
    """bool [B, L]: `accepted` if it has at least `need` [B, 1] members, else the `need` most
    confident masked positions (ties fall to the left)."""
    order = confidence.masked_fill(~masked, float("-inf")).argsort(
        dim=-1, descending=True, stable=True
    )
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )
    enough = accepted.sum(-1, keepdim=True) >= need
    return torch.where(enough, accepted, masked & (rank < need))


def reply_complete(tokens: Tensor, prompt: Tensor, stop_ids: Tensor, mask_id: int) -> Tensor:
    """bool [B, 1]: a stop token stands on a generated position and no generated position before it
    is masked."""
    stops = (tokens.unsqueeze(-1) == stop_ids).any(-1) & ~prompt
    after_stop = stops.cumsum(-1) > 0
    open_before = ((tokens == mask_id) & ~prompt & ~after_stop).any(-1, keepdim=True)
    return stops.any(-1, keepdim=True) & ~open_before


def write(
    state: BlockState, judgement: Judgement, tokens: Tensor, edits: Tensor, mask_id: int
) -> None:
    """Puts the new canvas and this step's record into the state, for rows that are not finished."""
    active = ~state.finished
    edits = edits & active
    state.replaced.copy_(torch.where(edits, state.tokens, -1))
    state.changed.copy_((tokens != state.tokens) & active)
    state.tokens.copy_(torch.where(active, tokens, state.tokens))
    state.edited.logical_or_(edits)
    state.proposal.copy_(torch.where(active, judgement.proposal, state.proposal))
    shown = torch.where(state.tokens == mask_id, judgement.proposal, state.tokens)
    state.confidence.copy_(torch.where(active, judgement.probability(shown), state.confidence))
    state.entropy.copy_(torch.where(active, judgement.entropy, state.entropy))
    state.nonfinite.logical_or_(~judgement.finite & active)
    state.step.add_(active.to(torch.int64))


class QuotaRule:
    """LLaDA2.0: everything above the threshold, or at least an even share of the block per step."""

    name = "llada2.0"
    settles = False
    moves = False

    def __init__(self, mask_id: int, stop_ids: Tensor, options: RuleOptions) -> None:
        self.mask_id = mask_id
        self.stop_ids = stop_ids
        self.options = options

    def apply(self, state: BlockState, judgement: Judgement, settings: RowSettings) -> None:
        length = state.tokens.shape[-1]
        masked = (state.tokens == self.mask_id) & ~state.prompt
        quota = length // settings.steps + (state.step < length % settings.steps).to(torch.int64)
        over = masked & (judgement.confidence > settings.threshold)
        chosen = choose(masked, judgement.confidence, over, quota)
        tokens = torch.where(chosen, judgement.proposal, state.tokens)
        open_after = ((tokens == self.mask_id) & ~state.prompt).any(-1, keepdim=True)
        done = ~open_after | (state.step + 1 >= settings.steps)
        if self.options.stop_inside_block:
            done |= reply_complete(tokens, state.prompt, self.stop_ids, self.mask_id)
        write(state, judgement, tokens, torch.zeros_like(chosen), self.mask_id)
        state.finished.logical_or_(done)

    def step_cap(self, settings: DecodeSettings, block_length: int) -> int:
        return settings.steps


class EditingRule:
    """LLaDA2.1: unmask above the threshold (at least `min_transfer`), and edit accepted tokens the
    model now rejects."""

    name = "llada2.1"
    settles = True
    moves = False

    def __init__(self, mask_id: int, stop_ids: Tensor, options: RuleOptions) -> None:
        self.mask_id = mask_id
        self.stop_ids = stop_ids
        self.options = options

    def apply(self, state: BlockState, judgement: Judgement, settings: RowSettings) -> None:
        active = ~state.finished
        masked = (state.tokens == self.mask_id) & ~state.prompt
        open_before = masked.any(-1, keepdim=True)
        state.post.add_((~open_before & active).to(torch.int64))
        over = masked & (judgement.confidence > settings.threshold)
        chosen = choose(masked, judgement.confidence, over, settings.min_transfer)
        edits = (
            ~masked
            & ~state.prompt
            & (judgement.confidence > settings.editing_threshold)
            & (judgement.proposal != state.tokens)
        )
        tokens = torch.where(chosen | edits, judgement.proposal, state.tokens)
        open_after = ((tokens == self.mask_id) & ~state.prompt).any(-1, keepdim=True)
        settled = ~open_before & ~edits.any(-1, keepdim=True)
        out_of_steps = ~open_after & (state.post + 1 > settings.max_post_steps)
        done = settled | out_of_steps
        # With editing off nothing can change once it is written: no further forward is owed to it.
        fixed = settings.editing_threshold == EDITING_OFF
        if self.options.stop_inside_block:
            ended = reply_complete(tokens, state.prompt, self.stop_ids, self.mask_id)
            done |= fixed & (ended | ~open_after)
        state.settled.copy_(torch.where(active, settled, state.settled))
        unsettled = out_of_steps & edits.any(-1, keepdim=True)
        state.converged.logical_and_(~(unsettled & active))
        write(state, judgement, tokens, edits, self.mask_id)
        state.finished.logical_or_(done)

    def step_cap(self, settings: DecodeSettings, block_length: int) -> int:
        return block_length + settings.max_post_steps + 1
