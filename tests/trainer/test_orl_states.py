"""Which states teach, and how they are packed: order, ends, weights, groups and the floor."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.orl.packing import Packed, pack
from trainer.orl.states import (
    NO_SLOT,
    NoisyState,
    Piece,
    Recorded,
    agreement_of,
    balance,
    fastest,
    reference_states,
    states_of,
)

L, MASK = 4, 99


def _recorded() -> Recorded:
    """Two rows over five turns: row 0 holds reply 0 (two blocks), then reply 2; row 1 reply 1."""
    canvas = np.full((5, 2, L), MASK, np.int32)
    canvas[1, 0] = [7, MASK, 8, MASK]
    start = np.array([[4, 4], [4, 4], [8, 4], [8, 8], [4, 8]], np.int32)
    step = np.zeros((5, 2), np.int32)
    active = np.array([[1, 1], [1, 0], [1, 0], [0, 1], [1, 0]], np.bool_)
    owner = np.array([[0, 1], [0, 1], [0, 1], [0, 1], [2, 1]], np.int32)
    return Recorded(canvas, start, step, active, owner)


def test_a_reply_keeps_its_own_states_in_order_wherever_it_ran() -> None:
    recorded = _recorded()
    mine = states_of(recorded, 0, 5, 10, MASK, 8)
    assert [(s.slot, s.row, s.block, s.follows) for s in mine] == [
        (0, 0, 1, False),
        (1, 0, 1, True),
        (2, 0, 2, False),
    ]
    assert [s.slot for s in states_of(recorded, 2, 5, 8, MASK, 8)] == [4]
    assert [s.slot for s in states_of(recorded, 1, 5, 12, MASK, 8)] == [0, 3]


def test_prompt_and_what_lies_behind_the_reply_carry_no_loss() -> None:
    first, second, third = states_of(_recorded(), 0, 5, 10, MASK, 8)
    assert first.wanted.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert second.wanted.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert third.open.tolist() == [True, True, False, False]


def test_at_most_so_many_states_of_a_block_are_kept() -> None:
    assert [s.slot for s in states_of(_recorded(), 0, 5, 10, MASK, 1)] == [0, 2]


def test_agreement_is_the_share_of_answers_of_the_same_length_that_agree() -> None:
    answers = [np.array(a, np.int32) for a in ([1, 2], [1, 3], [1, 2, 3])]
    assert agreement_of(answers, 0).tolist() == [1.0, 0.5]
    assert agreement_of(answers, 2).tolist() == [1.0, 1.0, 1.0]


def test_of_a_group_the_fastest_right_replies_teach() -> None:
    assert fastest([3, 2, 4, 2], [True, True, True, False]) == [False, True, False, False]
    assert fastest([3, 2], [False, False]) == [False, False]


def test_every_skill_weighs_the_same_and_the_mean_stays_one() -> None:
    pieces = [Piece(np.zeros(1, np.int32)) for _ in range(4)]
    pieces[3].taught = False
    balance(pieces, ["a", "a", "b", "b"])
    assert [p.weight for p in pieces] == [0.75, 0.75, 1.5, 1.0]


def test_a_reference_is_seen_as_a_block_is_at_first_and_part_way() -> None:
    tokens = np.arange(10, dtype=np.int32)
    states = reference_states(tokens, 5, L, MASK, np.random.default_rng(0))
    whole = [s for s in states if s.open.sum() == (3 if s.block == 1 else 2)]
    assert {s.block for s in whole} == {1, 2}
    first = whole[0]
    assert first.canvas.tolist() == [4, MASK, MASK, MASK]
    assert all(s.slot == NO_SLOT and not s.follows for s in states)
    last = next(s for s in states if s.block == 2)
    assert last.canvas[2:].tolist() == [MASK, MASK]
    assert not last.open[2:].any()


def _piece(blocks: int, states: int, weight: float = 1.0, taught: bool = True) -> Piece:
    tokens = np.arange(blocks * L, dtype=np.int32)
    opened = np.ones(L, np.bool_)
    canvas = np.full(L, MASK, np.int32)
    made = [
        NoisyState(blocks - 1, canvas, n, 0, opened, opened.astype(np.float32), n > 0)
        for n in range(states)
    ]
    return Piece(tokens, made, taught, weight)


def _placed(forwards: list[Packed]) -> list[tuple[int, int]]:
    """(clean, noisy) blocks of every segment."""
    found = []
    for packed in forwards:
        for window in range(len(packed.ids)):
            for segment in sorted(set(packed.segment[window][packed.position[window] >= 0])):
                inside = (packed.segment[window] == segment) & (packed.position[window] >= 0)
                noisy = int((inside & packed.noisy[window]).sum())
                found.append((int(inside.sum()) - noisy, noisy))
    return sorted(found)


def test_packing_keeps_every_state_with_the_clean_blocks_it_sees() -> None:
    pieces = [_piece(3, 2), _piece(2, 1), _piece(5, 3), _piece(1, 2)]
    forwards, lost = pack(pieces, 8, 2, L, MASK)
    assert lost == 0
    assert _placed(forwards) == [(0, 2), (1, 1), (2, 2), (4, 3)]
    clean = forwards[0].ids[~forwards[0].noisy & (forwards[0].position >= 0)]
    assert (clean[:, 0] % L == 0).all()


def test_losses_of_all_forwards_sum_to_the_mean_over_replies() -> None:
    pieces = [_piece(3, 2, 1.5), _piece(2, 1, 0.5), _piece(4, 2, taught=False)]
    forwards, _ = pack(pieces, 6, 1, L, MASK)
    assert len(forwards) > 1
    assert sum(float(p.wanted.sum()) for p in forwards) == pytest.approx(1.0)
    assert sum(float(p.anchored.sum()) for p in forwards) == pytest.approx(1.0)
    assert sum(float(p.pair_weight.sum()) for p in forwards) == pytest.approx(0.75)


def test_pairs_join_adjacent_states_of_one_block() -> None:
    (packed,), _ = pack([_piece(3, 3)], 8, 2, L, MASK)
    assert packed.slot.flatten()[packed.source].tolist() == [0, 1]
    assert packed.slot.flatten()[packed.next].tolist() == [1, 2]


def test_states_that_fit_no_window_are_counted() -> None:
    forwards, lost = pack([_piece(9, 2), _piece(2, 1)], 8, 2, L, MASK)
    assert lost == 2
    assert _placed(forwards) == [(1, 1)]
