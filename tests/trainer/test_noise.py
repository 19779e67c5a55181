"""Noise: what may be masked or replaced, what carries loss, and how often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pretrain_tiny import LENGTH, packer_of, random_examples

from trainer.batches import Window
from trainer.noise import NO_GUESS, DevicePlan, NoiseSettings, NoisyBatch, add_noise
from trainer.shards import Examples

MASK = 252
WINDOW = Window(windows=24, blocks=32, block_length=LENGTH, copies=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def examples() -> Examples:
    return random_examples(400)


@pytest.fixture(scope="module")
def plan(examples: Examples) -> DevicePlan:
    return DevicePlan.of(packer_of(examples, WINDOW).next(), CPU)


@pytest.fixture(scope="module")
def clean(examples: Examples, plan: DevicePlan) -> torch.Tensor:
    return torch.from_numpy(examples.tokens)[plan.block].long()


def _noise(
    clean: torch.Tensor,
    plan: DevicePlan,
    settings: NoiseSettings | None = None,
    guess: torch.Tensor | None = None,
    seed: int = 0,
) -> NoisyBatch:
    generator = torch.Generator().manual_seed(seed)
    return add_noise(clean, plan, guess, MASK, settings or NoiseSettings(), generator)


def _answer(plan: DevicePlan) -> torch.Tensor:
    column = torch.arange(LENGTH)
    return plan.noisy.unsqueeze(1) & (column >= plan.answer.unsqueeze(1))


def test_prompts_and_clean_copies_are_never_touched(clean: torch.Tensor, plan: DevicePlan) -> None:
    batch = _noise(clean, plan)
    outside = ~_answer(plan)
    assert outside.any()
    assert torch.equal(batch.ids[outside], clean[outside])
    assert not batch.weight[outside].any()
    assert not batch.masked[outside].any()


def test_every_noised_token_carries_loss(clean: torch.Tensor, plan: DevicePlan) -> None:
    batch = _noise(clean, plan)
    changed = batch.ids != clean
    assert torch.equal(batch.masked, batch.ids == MASK)
    assert (batch.weight[changed] > 0).all()
    assert (changed & ~batch.masked).sum() > 50  # there are wrong tokens, not only masks


def test_a_second_copy_masks_what_the_first_one_shows(
    clean: torch.Tensor, plan: DevicePlan
) -> None:
    batch = _noise(clean, plan, NoiseSettings(full=0.0, edited_blocks=0.0))
    second = plan.mate != torch.arange(len(plan.mate))
    assert second.sum() > 50
    ours, theirs = batch.masked[second], batch.masked[plan.mate[second]]
    answer = _answer(plan)[second]
    assert torch.equal(ours ^ theirs, answer)


def test_levels_are_uniform_and_some_blocks_are_masked_whole(
    clean: torch.Tensor, plan: DevicePlan
) -> None:
    answer = _answer(plan)
    blocks = answer.all(1)  # only blocks that are all answer, so that shares are comparable
    shares = torch.cat(
        [_noise(clean, plan, seed=s).masked[blocks].float().mean(1) for s in range(30)]
    )
    whole = (shares == 1.0).float().mean()
    rest = shares[shares < 1.0]
    assert float(whole) == pytest.approx(0.15 + 0.85 / 33, abs=0.03)
    assert float(rest.mean()) == pytest.approx(0.5, abs=0.03)
    assert float((rest < 0.25).float().mean()) == pytest.approx(0.25, abs=0.04)


def test_positions_after_the_stop_token_weigh_little(clean: torch.Tensor, plan: DevicePlan) -> None:
    batch = _noise(clean, plan, NoiseSettings(kept_rate=0.0, edited_blocks=0.0))
    after = torch.arange(LENGTH) >= plan.stop.unsqueeze(1)
    assert (batch.masked & after).any()
    torch.testing.assert_close(
        batch.weight[batch.masked & after], torch.full_like(batch.weight, 0.1)[batch.masked & after]
    )
    assert (batch.weight[batch.masked & ~after] == 1.0).all()


def test_the_models_own_mistakes_are_used_where_there_are_any(
    clean: torch.Tensor, plan: DevicePlan
) -> None:
    settings = NoiseSettings(full=0.0, edited_blocks=1.0, edit_rate=1.0, guesses=1.0)
    guess = torch.where(torch.rand(clean.shape) < 0.5, (clean + 1) % 250, NO_GUESS)
    batch = _noise(clean, plan, settings, guess)
    edited = (batch.ids != clean) & ~batch.masked
    known = edited & (guess != NO_GUESS)
    assert known.sum() > 100
    assert torch.equal(batch.ids[known], guess[known])
    assert (edited & (guess == NO_GUESS)).sum() > 100


def test_right_visible_tokens_carry_loss_at_their_rate(
    clean: torch.Tensor, plan: DevicePlan
) -> None:
    settings = NoiseSettings(edited_blocks=0.0, kept_rate=0.5, kept_weight=0.3, after_stop=1.0)
    batch = _noise(clean, plan, settings)
    visible = _answer(plan) & ~batch.masked
    kept = batch.weight[visible] > 0
    assert float(kept.float().mean()) == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(batch.weight[visible][kept], torch.full((int(kept.sum()),), 0.3))


def test_the_same_generator_gives_the_same_noise(clean: torch.Tensor, plan: DevicePlan) -> None:
    first, again, other = (_noise(clean, plan, seed=s) for s in (5, 5, 6))
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.ids, other.ids)


def test_no_editing_noise_means_only_masks(clean: torch.Tensor, plan: DevicePlan) -> None:
    settings = replace(NoiseSettings(), edited_blocks=0.0)
    batch = _noise(clean, plan, settings)
    assert torch.equal(batch.ids[~batch.masked], clean[~batch.masked])
    assert np.isclose(float(batch.masked.float().mean() / _answer(plan).float().mean()), 0.57, 0.1)
