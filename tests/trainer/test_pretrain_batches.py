"""Packing: every example whole, in its place, once an epoch, in the same way every time."""

from __future__ import annotations

import numpy as np
import pytest
from pretrain_tiny import LENGTH, packer_of, random_examples

from trainer.batches import Packer, Plan, RowTable, Window

WINDOW = Window(windows=6, blocks=32, block_length=LENGTH, copies=2)


def _segments(plan: Plan) -> list[tuple[int, int]]:
    """(window, segment) of every packed example."""
    pairs = zip(*np.nonzero(plan.segment < WINDOW.blocks), strict=True)
    return sorted({(int(w), int(plan.segment[w, g])) for w, g in pairs})


def test_an_example_is_its_clean_blocks_and_copies_of_its_answer() -> None:
    examples = random_examples(60)
    first = examples.first_blocks()
    plan = packer_of(examples, WINDOW).next()
    assert len(_segments(plan)) == plan.examples
    for window, segment in _segments(plan):
        mine = plan.segment[window] == segment
        block, position, noisy = (t[window][mine] for t in (plan.block, plan.position, plan.noisy))
        row = int(np.searchsorted(first, block[0], side="right") - 1)
        count, answered = examples.blocks[row], examples.answer[row] // LENGTH
        assert block.tolist() == (first[row] + position).tolist()
        assert position[noisy == 0].tolist() == list(range(count - 1))
        assert position[noisy == 1].tolist() == list(range(answered, count)) * 2
        for g in np.nonzero(mine & (plan.noisy[window] == 1))[0]:
            start = plan.position[window, g] * LENGTH
            assert plan.answer[window, g] == np.clip(examples.answer[row] - start, 0, LENGTH)
            assert plan.stop[window, g] == np.clip(examples.stop[row] - start, 0, LENGTH)


def test_second_copies_point_to_the_first_copy_of_the_same_block() -> None:
    plan = packer_of(random_examples(60), WINDOW).next()
    flat = {name: getattr(plan, name).ravel() for name in ("block", "noisy", "mate", "segment")}
    own = np.arange(len(flat["mate"]))
    second = flat["mate"] != own
    assert second.sum() == flat["noisy"].sum() / 2
    mates = flat["mate"][second]
    assert (flat["block"][mates] == flat["block"][second]).all()
    assert (flat["segment"][mates] == flat["segment"][second]).all()
    assert (flat["noisy"][mates] == 1).all()


def test_padding_belongs_to_no_example_and_carries_no_answer() -> None:
    plan = packer_of(random_examples(60), WINDOW).next()
    padding = plan.segment >= WINDOW.blocks
    assert padding.any()
    assert not plan.noisy[padding].any()
    assert (plan.answer[padding] == LENGTH).all()
    for window in range(WINDOW.windows):
        segments = plan.segment[window][padding[window]]
        assert len(set(segments.tolist())) == len(segments)


def test_an_epoch_takes_every_example_once() -> None:
    examples = random_examples(150)
    packer = packer_of(examples, WINDOW)
    seen: list[int] = []
    while packer.epoch == 0:
        plan = packer.next()
        if packer.epoch == 0:
            for window, segment in _segments(plan):
                seen.append(int(plan.block[window][plan.segment[window] == segment][0]))
    assert len(seen) == len(set(seen))
    assert len(seen) > 90


def test_windows_are_well_filled() -> None:
    packer = packer_of(random_examples(2000), Window(64, 32, LENGTH, 2))
    filled = [float((packer.next().segment < 32).mean()) for _ in range(5)]
    assert min(filled) > 0.93


def test_a_restored_packer_goes_on_as_if_nothing_happened() -> None:
    examples = random_examples(150)
    packer = packer_of(examples, WINDOW)
    for _ in range(23):  # beyond the first epoch
        packer.next()
    assert packer.epoch >= 1
    other = packer_of(examples, WINDOW)
    other.restore(packer.state())
    for _ in range(25):
        assert np.array_equal(packer.next().tables(), other.next().tables())


def test_restoring_right_at_the_end_of_an_epoch_works() -> None:
    examples = random_examples(40)
    packer = packer_of(examples, WINDOW)
    packer.epoch, packer.offset = 1, 40
    assert packer.next().examples > 0
    assert packer.epoch >= 2


def test_epochs_after_the_first_are_shuffled_by_the_seed() -> None:
    examples = random_examples(150)

    def order(seed: int) -> list[int]:
        packer = packer_of(examples, WINDOW, seed)
        packer.epoch = 1
        return packer.next().block.ravel().tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_examples_longer_than_a_window_do_not_fit() -> None:
    examples = random_examples(50)
    narrow = Window(windows=6, blocks=8, block_length=LENGTH, copies=2)
    fits = narrow.fits(examples)
    assert fits.any()
    assert not fits.all()
    sizes = narrow.size(examples.blocks, examples.answer)
    assert (sizes[fits] <= 8).all()


def test_no_examples_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no examples"):
        Packer(RowTable(), WINDOW, 0).next()
