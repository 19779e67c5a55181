"""The renoising sampler: a step keeps the positions whose summed entropy stays within a bound, and
draws all others anew as noise (models.md 2.5).

A canvas without masks: a position that is not decided holds `UNDECIDED`, and the step puts a fresh
random token there before its forward. A rule mutates a `BlockState` in place, never reads the host,
and never looks at a model.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.rules import write
from engine.decoding.state import BlockState, RowSettings
from engine.kernels.philox import uniform
from engine.types import DecodeSettings

UNDECIDED = -1  # no token has this id
NOISE = 2  # the stream of draws that noise comes from


class EntropyBoundRule:
    """Positions are ranked by entropy, and kept while the entropies ranked before them sum to no
    more than the bound; nothing that was kept is kept for good. The block is finished when the best
    token of every position was the same for `stability` steps more and the mean entropy is below
    `confidence` (both as in `NoiseCanvas`), or after `settings.steps` steps; then the best tokens
    are what stays.

    `state.seen[:, 0]` holds the best tokens of the step before, `state.post` counts the steps they
    have not changed for.
    """

    name = "entropy-bound"
    mask_id = UNDECIDED
    settles = False
    moves = False

    def apply(self, state: BlockState, judgement: Judgement, settings: RowSettings) -> None:
        active = ~state.finished
        best = judgement.best
        same = ((best == state.seen[:, 0]) | state.prompt).all(-1, keepdim=True) & (state.step > 0)
        stable = torch.where(same, state.post + 1, 0)
        state.post.copy_(torch.where(active, stable, state.post))
        state.seen[:, 0].copy_(torch.where(active, best, state.seen[:, 0]))

        mean = judgement.entropy.masked_fill(state.prompt, 0.0).sum(-1, keepdim=True)
        mean = mean / (~state.prompt).sum(-1, keepdim=True).clamp_min(1)
        done = (stable >= settings.stability) & (mean < settings.mean_entropy)
        done |= state.step + 1 >= settings.steps
        kept = within_bound(judgement.entropy, ~state.prompt, settings.entropy_bound)
        tokens = torch.where(kept, judgement.proposal, UNDECIDED)
        tokens = torch.where(done, best, tokens)
        tokens = torch.where(state.prompt, state.tokens, tokens)
        shown = replace(judgement, proposal=best)
        write(state, shown, tokens, torch.zeros_like(kept), UNDECIDED)
        state.finished.logical_or_(done)

    def step_cap(self, settings: DecodeSettings, block_length: int) -> int:
        return settings.steps


def within_bound(entropy: Tensor, open_: Tensor, bound: Tensor) -> Tensor:
    """bool [B, L]: open positions, the surest first, as long as the entropies before them sum to at
    most `bound` [B, 1] nats; the surest is always among them."""
    ranked, order = entropy.masked_fill(~open_, float("inf")).sort(dim=-1, stable=True)
    before = ranked.cumsum(-1) - ranked
    kept = (before <= bound) & ranked.isfinite()
    return torch.zeros_like(open_).scatter_(-1, order, kept)


def noise(settings: RowSettings, state: BlockState, vocab_size: int) -> Tensor:
    """int64 [B, L]: tokens drawn evenly from the vocabulary, anew at every step."""
    draw = uniform(settings.seed, state.positions, state.step, NOISE)
    return (draw.to(torch.float64) * vocab_size).to(torch.int64)


def schedule(settings: RowSettings, state: BlockState) -> Tensor:
    """float32 [B, 1]: the temperature of this step, falling from t_max to near t_min as fewer of
    `settings.steps` remain."""
    left = (settings.steps - state.step).clamp_min(0).to(torch.float32)
    return settings.t_min + (settings.t_max - settings.t_min) * (left / settings.steps)
