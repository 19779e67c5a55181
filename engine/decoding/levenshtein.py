"""LLaDA2.2 decoding: unmasking, token edits, and the block edits DELETE and SPLIT (models.md 1.8).

Two vocabulary tokens act as edits on the block: DELETE removes its position, SPLIT makes room for
one more token before the token that stood there. Greedy only. The whole step is fixed-shape tensor
code without host reads. Deviations from the
published decoder, all deliberate: the mask is never emitted, the anti-loop guard redraws the least
confident changed position (not a random one), and a block at its step cap is filled instead of
being left with masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.rules import RuleOptions, choose, write
from engine.decoding.state import HISTORY, BlockState, RowSettings
from engine.types import DecodeSettings

STEP_CAP = 1000  # the reference's bound on forwards per block
ESCAPES = 5  # redraws the anti-loop guard tries per step


def apply_block_edits(
    written: Tensor,
    before: Tensor,
    original: Tensor,
    prompt: Tensor,
    mask_id: int,
    delete_id: int,
    split_id: int,
) -> tuple[Tensor, Tensor]:
    """Carries out DELETE and SPLIT left to right. All [B, L]; written, before int64, original,
    prompt bool.

    DELETE emits nothing; SPLIT emits [mask, the token that stood there before the write]; anything
    else emits itself. The result is cut to L or padded with masks. Returns the block and which of
    its positions are original masks. Prompt positions are never read as edits.
    """
    batch, length = written.shape
    deletes = (written == delete_id) & ~prompt
    splits = (written == split_id) & ~prompt
    width = torch.ones_like(written) - deletes.to(torch.int64) + splits.to(torch.int64)
    first = width.cumsum(-1) - width
    sink = 2 * length  # one slot past the longest result swallows what is not emitted
    tokens = written.new_full((batch, sink + 1), mask_id)
    marks = torch.zeros((batch, sink + 1), dtype=torch.bool, device=written.device)
    head = first.masked_fill(deletes, sink)
    tokens.scatter_(-1, head, written.masked_fill(splits, mask_id))
    marks.scatter_(-1, head, original & ~splits & ~prompt)
    tail = torch.where(splits, first + 1, sink)
    tokens.scatter_(-1, tail, before)
    marks.scatter_(-1, tail, original)
    # Slots past the emitted tokens keep the mask they were filled with, which is the padding.
    return tokens[:, :length], marks[:, :length]


class LevenshteinRule:
    """LLaDA2.2's joint rule over one block."""

    name = "llada2.2"
    settles = True
    moves = True

    def __init__(
        self,
        mask_id: int,
        delete_id: int,
        split_id: int,
        stop_ids: Tensor,
        options: RuleOptions,
    ) -> None:
        self.mask_id, self.delete_id, self.split_id = mask_id, delete_id, split_id
        self.stop_ids = stop_ids
        self.options = options

    def apply(self, state: BlockState, judgement: Judgement, settings: RowSettings) -> None:
        active = ~state.finished
        masked = (state.tokens == self.mask_id) & ~state.prompt
        had_masks = masked.any(-1, keepdim=True)
        waiting = masked & state.original
        post = torch.where(waiting.any(-1, keepdim=True), 0, state.post + 1)
        state.post.copy_(torch.where(active, post, state.post))

        chosen = self._unmask(state, judgement, settings, masked, waiting)
        edits = (
            ~masked
            & ~state.prompt
            & (judgement.confidence > settings.editing_threshold)
            & (judgement.proposal != state.tokens)
        )
        final = self._final_round(state, settings, waiting, chosen, post)
        chosen = torch.where(final, masked, chosen)
        plain = self._without_edit_tokens(judgement)
        proposal = torch.where(final, plain, judgement.proposal)
        edits &= proposal != state.tokens
        written = torch.where(chosen | edits, proposal, state.tokens)
        written = self._escape_loops(state, judgement, written, active & ~final)
        self._remember(state, written, active)
        edited, original = apply_block_edits(
            written,
            state.tokens,
            state.original,
            state.prompt,
            self.mask_id,
            self.delete_id,
            self.split_id,
        )
        unchanged = (edited == state.tokens).all(-1, keepdim=True)
        settled = ~had_masks & unchanged
        state.original.copy_(torch.where(active, original, state.original))
        state.settled.copy_(torch.where(active, settled, state.settled))
        state.converged.logical_and_(~(final & ~settled & active))
        replaced = ~masked & ~state.prompt & (edited != state.tokens)
        write(state, judgement, edited, replaced, self.mask_id)
        state.finished.logical_or_(settled | final)

    def _unmask(
        self,
        state: BlockState,
        judgement: Judgement,
        settings: RowSettings,
        masked: Tensor,
        waiting: Tensor,
    ) -> Tensor:
        """The schedule spreads the block's original masks over `steps`; masks made by edits are
        owed at once."""
        steps = settings.steps
        share = state.initial_masks // steps
        share = share + (state.step < state.initial_masks % steps).to(torch.int64)
        need = share + (masked & ~waiting).sum(-1, keepdim=True)
        over = masked & (judgement.confidence > settings.threshold)
        chosen = choose(masked, judgement.confidence, over, need)
        return torch.where(state.step >= steps, masked, chosen)

    def _final_round(
        self,
        state: BlockState,
        settings: RowSettings,
        waiting: Tensor,
        chosen: Tensor,
        post: Tensor,
    ) -> Tensor:
        """bool [B, 1]: the round that must leave the block whole."""
        limit = settings.max_post_steps
        clears = waiting.any(-1, keepdim=True) & ~(waiting & ~chosen).any(-1, keepdim=True)
        spent = torch.where(limit > 0, post >= limit, clears)
        return spent | (state.step >= STEP_CAP - 1)

    def _without_edit_tokens(self, judgement: Judgement) -> Tensor:
        """int64 [B, L]: the best token that is neither DELETE nor SPLIT."""
        scores = judgement.scores.clone()
        scores.select(-1, self.delete_id).fill_(float("-inf"))
        scores.select(-1, self.split_id).fill_(float("-inf"))
        return scores.argmax(-1)

    def _escape_loops(
        self, state: BlockState, judgement: Judgement, written: Tensor, allowed: Tensor
    ) -> Tensor:
        """While the block repeats one already seen, its least confident changed position takes its
        other best token."""
        second = judgement.scores.scatter(
            -1, judgement.proposal.unsqueeze(-1), float("-inf")
        ).argmax(-1)
        for _ in range(ESCAPES):
            live = torch.arange(HISTORY, device=written.device) < state.seen_count
            same = (state.seen == written.unsqueeze(1)).all(-1)
            changed = written != state.tokens
            redraw = (same & live).any(-1, keepdim=True) & allowed & changed.any(-1, keepdim=True)
            at = judgement.confidence.masked_fill(~changed, float("inf")).argmin(-1, keepdim=True)
            first = judgement.proposal.gather(-1, at)
            current = written.gather(-1, at)
            other = torch.where(current == first, second.gather(-1, at), first)
            written = written.scatter(-1, at, torch.where(redraw, other, current))
        return written

    @staticmethod
    def _remember(state: BlockState, written: Tensor, active: Tensor) -> None:
        """Keeps the block as written, before the edit scan; the oldest entry is overwritten when
        the history is full."""
        slot = (state.seen_count % HISTORY).unsqueeze(-1).expand(-1, 1, written.shape[-1])
        kept = torch.where(active.unsqueeze(-1), written.unsqueeze(1), state.seen.gather(1, slot))
        state.seen.scatter_(1, slot, kept)
        state.seen_count.add_(active.to(torch.int64))

    def step_cap(self, settings: DecodeSettings, block_length: int) -> int:
        return STEP_CAP
