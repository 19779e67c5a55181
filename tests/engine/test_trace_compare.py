"""Two traces: where they part, what is compared when blocks do not line up, why one is slower."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from engine.trace import Change, Trace, TraceParent
from engine.trace.compare import Difference, compare
from engine.trace.compare_json import comparison_json
from engine.trace.drag import drag_of
from engine.trace.why import divergence_sentence, quoted, why_slower
from engine.types import TokenState
from trace_pairs import hesitant, quick


def rows(trace: Trace, keep: slice) -> Trace:
    """Only some steps of a trace."""
    names = ("block", "step", "block_start", "forwards", "seconds", "ids", "edited_from", "state")
    parts = {name: getattr(trace, name)[keep] for name in (*names, "confidence", "entropy")}
    return replace(trace, **parts)


def test_a_trace_is_the_same_as_itself() -> None:
    found = compare(hesitant(), hesitant())
    assert found.raster is not None
    assert not found.raster.cells.any()
    assert found.diverged is None
    assert found.first_token is None
    assert found.slower is None
    assert not found.final.different.any()
    assert divergence_sentence(hesitant(), hesitant(), found).startswith("They never part")
    assert "Neither" in why_slower(hesitant(), hesitant(), found)[0]


def test_the_first_divergence_names_step_position_and_both_sides() -> None:
    a, b = quick(), hesitant()
    found = compare(a, b)
    at = found.diverged
    assert at is not None
    assert (at.block_start, at.step, at.position) == (8, 0, 11)
    assert at.kind is Difference.GUESS
    assert (at.token_a, at.token_b) == (5, 0)
    assert (at.state_a, at.state_b) == (TokenState.COMMITTED, TokenState.MASKED)
    assert at.confidence_a == pytest.approx(0.8)
    assert at.confidence_b is None
    sentence = divergence_sentence(a, b, found)
    assert "in step 1 of the block at 8, position 11" in sentence
    assert "A has “ sat” (accepted at 0.800)" in sentence


def test_final_tokens_are_compared_with_the_forward_that_settled_them() -> None:
    found = compare(quick(), hesitant())
    final = found.final
    assert final.position.tolist() == [9, 10, 11, 12, 13, 14]
    assert final.a.tolist() == [2, 3, 5, 6, 7, 1]
    assert final.b.tolist() == [2, 3, 5, 6, -1, 1]  # 13 was never accepted
    assert final.forward_a.tolist() == [1, 2, 1, 3, 3, 3]
    assert final.forward_b.tolist() == [1, 4, 2, 5, -1, 5]  # " cat" returned in forward 4
    assert final.open_a.tolist() == [0, 1, 0, 0, 0, 0]
    assert final.open_b.tolist() == [0, 1, 1, 0, 2, 0]
    assert final.different.tolist() == [False, False, False, False, True, False]
    assert found.first_token == 13


def test_the_raster_tells_a_state_a_guess_a_token_and_what_one_alone_has() -> None:
    a = hesitant()
    ids, state = a.ids.copy(), a.state.copy()
    ids[1, 1] = 4  # another accepted token
    state[1, 3] = TokenState.DRAFT  # the same token, still open
    b = rows(replace(a, ids=ids, state=state), slice(0, 2))
    raster = compare(a, b).raster
    assert raster is not None
    assert raster.cells[1].tolist() == [
        Difference.SAME,
        Difference.TOKEN,
        Difference.SAME,
        Difference.STATE,
    ]
    assert (raster.cells[2:] == Difference.ONLY_A).all()
    assert raster.row_b.tolist() == [0, 1, -1, -1, -1, -1]
    assert np.isnan(raster.confidence[2:]).all()
    assert raster.confidence[1, 1] == 0
    flipped = compare(b, a).raster
    assert flipped is not None
    assert (flipped.cells[2:] == Difference.ONLY_B).all()


def test_masked_cells_are_the_same_whatever_their_id_says() -> None:
    a = hesitant()
    ids = a.ids.copy()
    ids[0, 3] = 8
    assert compare(a, replace(a, ids=ids)).diverged is None


def test_why_slower_names_positions_edits_caps_and_steps() -> None:
    a, b = quick(), hesitant()
    found = compare(a, b)
    assert found.slower == "b"
    text = " ".join(why_slower(a, b, found))
    assert "B is slower: 1.00 tokens per forward" in text
    assert "2 blocks took more steps, 3 in all: 4 steps instead of 2 at 8" in text
    assert "1 block ran out of steps, at 12." in text
    assert "position 13, 2 of its block's 2 steps (never accepted; 2 guesses" in text
    assert "“ cat” gave way to “ dog” and returned" in text
    assert "position 10, 1 of" not in text, "the quick one had it open as long"
    assert "It edited 2 tokens, the other 0." in text
    mirrored = compare(b, a)
    assert mirrored.slower == "a"
    assert why_slower(b, a, mirrored)[0].startswith("A is slower")


def test_edits_that_undo_each_other_are_found_with_their_steps() -> None:
    drag = drag_of(hesitant())
    (undone,) = drag.undone
    assert (undone.position, undone.step, undone.undone_step) == (10, 2, 3)
    assert (undone.before, undone.between) == (3, 4)
    assert drag.undone_steps == 2
    assert drag.idle_steps == 1  # the last: nothing was accepted
    assert drag_of(quick()).undone == ()


def test_an_edit_that_stays_is_not_called_undone() -> None:
    trace = rows(hesitant(), slice(0, 3))
    drag = drag_of(trace)
    assert drag.undone == ()
    assert drag.undone_steps == 0


def test_positions_behind_the_stop_token_are_not_called_stubborn() -> None:
    assert [one.position for one in drag_of(quick()).stubborn] == [10]
    assert [one.position for one in drag_of(hesitant()).stubborn] == [13, 10, 11]
    (longest, *_) = drag_of(hesitant()).stubborn
    assert longest.open_at_end
    assert longest.entropy == pytest.approx(2.0)


def test_blocks_in_other_places_are_compared_by_final_tokens_alone() -> None:
    a = quick()
    b = replace(a, block_start=a.block_start - 2)
    found = compare(a, b)
    assert found.raster is None
    assert found.diverged is None
    assert found.blocks == ()
    assert any("cannot be compared cell by cell" in note for note in found.notes)
    assert found.first_token is not None
    assert str(found.first_token) in divergence_sentence(a, b, found)


def test_another_vocabulary_is_compared_by_text() -> None:
    a = quick()
    moved = {token + 20: text for token, text in a.header.pieces.items()}
    header = replace(a.header, pieces=moved, vocab_size=40, mask_id=20, stop_ids=(21,))
    found = compare(a, replace(a, ids=a.ids + 20, header=header))
    assert found.first_token is None
    assert found.diverged is None
    assert any("by their text" in note for note in found.notes)


def test_traces_of_other_prompts_and_without_an_end_say_so() -> None:
    a = quick()
    b = replace(a, header=replace(a.header, prompt_ids=(1, 2), stats=None))
    found = compare(a, b)
    assert any("prompts differ" in note for note in found.notes)
    assert any("B does not hold the end" in note for note in found.notes)
    assert found.slower is None
    assert "not known" in why_slower(a, b, found)[0]


def test_a_fork_says_so_from_either_side() -> None:
    a = quick()
    parent = TraceParent(a.header.trace_id, 1, 8, 1, Change())
    header = replace(a.header, trace_id="ab" * 16, ancestry=(parent,))
    fork = replace(a, header=header)
    assert "B is a fork of A, from its step 2 on." in compare(a, fork).notes
    assert "A is a fork of B, from its step 2 on." in compare(fork, a).notes
    assert not any("fork" in note for note in compare(fork, fork).notes)


def test_the_comparison_is_json_without_numbers_that_are_none() -> None:
    a, b = quick(), hesitant()
    b = replace(b, header=replace(b.header, stats=None))
    data = json.loads(json.dumps(comparison_json(a, b, compare(a, b)), allow_nan=False))
    assert data["b"]["figures"]["tpf"]["value"] is None
    assert data["b"]["figures"]["tpf"]["missing"]
    assert data["final_tokens"]["different"][0]["text_b"] is None
    assert data["diverged"]["kind"] == "guess"
    assert data["cells"]["only_b"] == 3 * 4
    assert data["a"]["undone_edits"] == []
    assert data["b"]["undone_edits"][0]["before_text"] == " cat"


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="without steps"):
        compare(quick(), rows(quick(), slice(0, 0)))


def test_what_cannot_be_seen_of_a_token_is_written_out() -> None:
    trace = quick()
    assert quoted(trace, 6) == "“\\n”"
    assert quoted(trace, -1) == "nothing"
    assert quoted(trace, 77) == "“#77”"
    hidden = replace(trace, header=replace(trace.header, pieces={5: "\u202e\x1b"}))
    assert quoted(hidden, 5) == "“\\u202e\\u001b”"
