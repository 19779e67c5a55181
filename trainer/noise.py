"""Noise for block diffusion: which answer tokens are masked, which are replaced by wrong ones, and
what each position's loss weighs.

Knows one batch of blocks as tensors. Knows no model. Every draw comes from one generator, so that
a step's noise follows from (seed, step). Masking as in block diffusion with a noise level for each
block; the wrong tokens are LLaDA2.1's editing noise (the model must learn to correct tokens that
are already on the canvas).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.batches import Plan

NO_GUESS = -1


@dataclass(frozen=True)
class NoiseSettings:
    """full: share of blocks that are masked whole, as at the first step of decoding; the others
    draw their level uniformly. edited_blocks: share of blocks with wrong tokens; edit_rate: the
    largest share of their visible tokens that is wrong (uniform below it). guesses: share of wrong
    tokens that are the model's own earlier mistakes, where it made one. kept_rate: share of right
    visible tokens that carry loss, so that the model learns to leave them; kept_weight, edit_weight
    and after_stop are weights of the loss beside a masked token's 1.
    """

    full: float = 0.15
    edited_blocks: float = 0.4
    edit_rate: float = 0.25
    guesses: float = 0.7
    kept_rate: float = 0.1
    kept_weight: float = 0.3
    edit_weight: float = 1.0
    after_stop: float = 0.1


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """A `Plan` on the device, flat over blocks: int64 [N] each; noisy bool [N]."""

    block: Tensor
    position: Tensor
    segment: Tensor
    noisy: Tensor
    mate: Tensor
    answer: Tensor
    stop: Tensor

    @classmethod
    def of(cls, plan: Plan, device: torch.device) -> DevicePlan:
        tables = torch.from_numpy(plan.tables()).flatten(1)
        if device.type == "cuda":
            tables = tables.pin_memory().to(device, non_blocking=True)
        block, position, segment, noisy, mate, answer, stop = tables.long().unbind(0)
        return cls(block, position, segment, noisy.bool(), mate, answer, stop)


@dataclass(frozen=True, eq=False)
class NoisyBatch:
    """ids int64 [N, L]: what the model reads. weight float32 [N, L]: weight of the loss against the
    clean token, 0 where there is none. masked bool [N, L]."""

    ids: Tensor
    weight: Tensor
    masked: Tensor


def add_noise(
    clean: Tensor,
    plan: DevicePlan,
    guess: Tensor | None,
    mask_id: int,
    settings: NoiseSettings,
    generator: torch.Generator,
) -> NoisyBatch:
    """clean int64 [N, L]: tokens of every block of the batch. guess int64 [N, L]: a wrong token the
    model once preferred there, `NO_GUESS` where there is none; None: no guesses at all.

    Prompt tokens and clean blocks are never touched and carry no loss.
    """
    s = settings
    count, length = clean.shape
    device = clean.device

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    column = torch.arange(length, device=device)
    answer = plan.noisy.unsqueeze(1) & (column >= plan.answer.unsqueeze(1))
    level, place, whole = draw(count, 1), draw(count, length), draw(count, 1) < s.full
    first = (plan.mate == torch.arange(count, device=device)).unsqueeze(1)
    below = place[plan.mate] < level[plan.mate]
    masked = answer & (whole | torch.where(first, below, ~below))

    wrong = _wrong_tokens(clean, guess, s.guesses, draw(count, length), generator)
    rate = draw(count, 1) * s.edit_rate * (draw(count, 1) < s.edited_blocks)
    visible = answer & ~masked
    edited = visible & (draw(count, length) < rate) & (wrong != clean) & (wrong != mask_id)
    kept = visible & ~edited & (draw(count, length) < s.kept_rate)

    ids = torch.where(masked, mask_id, torch.where(edited, wrong, clean))
    weight = masked + s.edit_weight * edited + s.kept_weight * kept
    weight = weight * torch.where(column >= plan.stop.unsqueeze(1), s.after_stop, 1.0)
    return NoisyBatch(ids, weight, masked)


def _wrong_tokens(
    clean: Tensor, guess: Tensor | None, share: float, roll: Tensor, generator: torch.Generator
) -> Tensor:
    """A candidate to put in place of each token: the model's old guess, or a token from elsewhere
    in the batch (which keeps the frequencies of tokens)."""
    total = clean.numel()
    source = torch.randint(total, clean.shape, generator=generator, device=clean.device)
    other = clean.flatten()[source]
    if guess is None:
        return other
    return torch.where((guess != NO_GUESS) & (roll < share), guess, other)
