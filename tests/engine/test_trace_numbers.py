"""The figures of a trace: counted by hand on small ones, and never 0 where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.trace.numbers import numbers_of
from engine.trace.reading import end_of, spans_of
from trace_pairs import hesitant, quick


def test_the_figures_of_a_reply_are_those_counted_by_hand() -> None:
    numbers = numbers_of(quick())
    assert numbers["tpf"].value == 2.0
    assert numbers["ceiling"].value == 3.0
    assert numbers["steps"].value == 3
    assert numbers["steps_per_block"].value == 1.5
    assert numbers["accepted_per_step"].value == 2.0
    assert numbers["ms_per_step"].value == pytest.approx(40 / 3)
    assert numbers["edits"].value == numbers["remasks"].value == 0
    # open or accepted: 0.2, 1.5, 0.5; then 0.5 (9 and 11 were done); then 0, 1, 1
    assert numbers.entropy_mean.tolist() == pytest.approx([2.2 / 3, 0.5, 2 / 3])
    assert numbers.entropy_max.tolist() == [1.5, 0.5, 1.0]
    assert numbers["entropy_max"].value == 1.5
    assert numbers.accepted_per_step.tolist() == [2, 1, 3]


def test_edits_and_blocks_that_ran_out_of_steps_are_counted() -> None:
    numbers = numbers_of(hesitant())
    assert numbers["edits"].value == 2
    assert numbers.edited_per_step.tolist() == [0, 0, 1, 1, 0, 0]
    assert numbers.capped == (1,)
    assert numbers["capped_blocks"].value == 1


def test_a_token_taken_back_is_counted_and_judged_again() -> None:
    trace = quick()
    state = trace.state.copy()
    state[1, 1] = 1  # accepted in step 0, open again in step 1
    numbers = numbers_of(replace(trace, state=state))
    assert numbers["remasks"].value == 1
    assert numbers.entropy_mean[1] == pytest.approx((0.1 + 0.5) / 2)


def test_what_a_trace_does_not_hold_is_a_dash_with_a_reason() -> None:
    trace = quick()
    unknown = np.full_like(trace.entropy, np.nan)
    cut = replace(
        trace,
        confidence=unknown,
        entropy=unknown,
        seconds=np.zeros(3),
        header=replace(trace.header, stats=None, reason=None),
    )
    numbers = numbers_of(cut)
    for key in ("tpf", "ceiling", "tokens", "ms_per_step", "entropy_mean", "entropy_max"):
        assert numbers[key].value is None
        assert numbers[key].text == "–"
        assert numbers[key].missing
    assert numbers["edits"].value == 0
    with pytest.raises(KeyError):
        numbers["nonsense"]


def test_every_figure_says_what_it_is() -> None:
    figures = numbers_of(quick()).figures
    assert all(figure.definition.endswith(".") for figure in figures)
    assert len({figure.key for figure in figures}) == len(figures)


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("length", "cap"),
        ("did_not_converge", "cap"),
        ("stopped", "unfinished"),
        (None, "unfinished"),
    ],
)
def test_a_block_left_open_is_at_its_cap_unless_the_reply_was_cut(reason: str, end: str) -> None:
    trace = hesitant()
    trace = replace(trace, header=replace(trace.header, reason=reason))
    spans = spans_of(trace)
    assert end_of(trace, spans[1], last=True) == end
    assert end_of(trace, spans[0], last=False) == "complete"


def test_positions_behind_a_stop_token_are_not_owed() -> None:
    trace = quick()
    assert end_of(trace, spans_of(trace)[1], last=True) == "stop_token"
    assert numbers_of(trace).capped == ()
