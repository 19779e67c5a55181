"""A trace becomes a canvas, histories, levels, curves and marks, and nothing is made up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from inspector_traces import large_trace, small_trace

from app.backend.scales import LEVELS, NOT_CAPTURED, NOT_YET
from app.models.inspector_curves import Mark, MarkKind, commit_front, curves_of, marks_of
from app.models.inspector_data import InspectorData
from app.models.inspector_fills import Levels, scale_of
from engine.fake import FakeEngine
from engine.trace import record
from engine.types import GenerateRequest, Message, TokenState


@pytest.fixture
def data() -> InspectorData:
    return InspectorData(small_trace())


def test_a_block_is_there_from_its_first_step_and_stays_as_its_last_step_left_it(data) -> None:
    assert data.positions == 8
    early, late = data.canvas(1), data.canvas(4)
    assert early.there.tolist() == [True] * 4 + [False] * 4
    assert late.there.all()
    ids = data.trace.ids[late.row, late.column]
    assert ids.tolist() == [9, 1, 3, 4, 5, 0, 7, 0]


def test_a_position_has_a_moment_for_each_step_of_its_block(data) -> None:
    history = data.history(2)
    assert [m.token for m in history] == [5, 2, 3]
    assert [m.state for m in history] == [
        TokenState.DRAFT,
        TokenState.COMMITTED,
        TokenState.EDITED,
    ]
    assert [m.before for m in history] == [None, None, 2]
    assert history[0].top is None  # not captured, which is not an empty list
    assert data.now(0, 5) is None
    assert data.now(4, 2) == history[-1]


def test_what_changed_is_counted_within_a_block(data) -> None:
    assert data.commit_step[2].tolist() == [-1, 0, 1, 2]
    assert data.commit_step[4].tolist() == [0, -1, 0, -1]
    assert data.edits[2].tolist() == [0, 0, 1, 0]
    assert data.edits[3].tolist() == [0, 0, 0, 0]
    assert data.age[2].tolist() == [2, 2, 0, 0]
    assert data.remasked[4].tolist() == [False, True, False, False]


def test_what_was_not_captured_has_a_level_of_its_own(data) -> None:
    state = data.canvas(4)
    levels = Levels(data, "confidence").of(state.there, state.row, state.column)
    assert levels[0] == NOT_CAPTURED
    assert levels[7] == NOT_CAPTURED
    assert levels[1] == round(0.97 * (LEVELS - 1))
    margin = Levels(data, "margin")
    assert not margin.captured
    assert set(margin.of(state.there, state.row, state.column).tolist()) == {NOT_CAPTURED}
    assert margin.value(0, 1) is None


def test_a_position_without_a_block_is_not_yet_anything(data) -> None:
    state = data.canvas(0)
    for fill in ("confidence", "commit", "age"):
        levels = Levels(data, fill).of(state.there, state.row, state.column)
        assert set(levels[4:].tolist()) == {NOT_YET}


def test_scales_do_not_depend_on_the_trace() -> None:
    assert scale_of("confidence", None).maximum == 1.0
    entropy = scale_of("entropy", 1000)
    assert entropy.maximum == math.log(1000)
    assert entropy.ticks[-1] == entropy.maximum
    levels = entropy.levels(np.array([0.0, math.log(1000), 99.0, math.nan]))
    assert levels.tolist() == [0, LEVELS - 1, LEVELS - 1, NOT_CAPTURED]
    for tick, level in zip(entropy.ticks, entropy.levels(np.array(entropy.ticks)), strict=True):
        assert abs(entropy.place(tick) * (LEVELS - 1) - level) <= 1


def test_curves_use_real_times_and_leave_out_what_was_not_judged(data) -> None:
    curves = curves_of(data)
    assert curves.milliseconds == pytest.approx([10, 10, 20, 40, 20])
    assert curves.committed.tolist() == [1, 1, 1, 3, 0]
    assert curves.entropy_mean[0] == pytest.approx((0.2 + 1.5 + 2.5) / 3)
    assert curves.entropy_max[1] == pytest.approx(2.0)
    assert curves.confidence_min[4] == pytest.approx(0.2)
    assert curves.tpf[-1] == pytest.approx(5 / 6)


def test_tpf_at_the_end_is_the_replys_own() -> None:
    engine = FakeEngine()
    request = GenerateRequest((Message("user", "hello"),))
    trace = record(engine, request)
    stats = trace.header.stats
    assert curves_of(InspectorData(trace)).tpf[-1] == pytest.approx(stats.tpf)
    assert stats.tokens < trace.ids.shape[1] * (int(trace.block[-1]) + 1)  # stops fill its end


def test_a_step_that_judged_nothing_has_no_mean(data) -> None:
    trace = small_trace()
    trace.entropy[3] = np.nan
    curves = curves_of(InspectorData(trace))
    assert math.isnan(curves.entropy_mean[3])
    assert curves.entropy_mean[2] > 0


def test_marks_say_what_happened_where(data) -> None:
    assert marks_of(data) == (
        Mark(MarkKind.BLOCK, 0, 0, 0),
        Mark(MarkKind.EDIT, 2, 1, 2),
        Mark(MarkKind.BLOCK, 3, 1, 4),
        Mark(MarkKind.STOP, 3, 1, 6),
        Mark(MarkKind.CAP, 4, 2, 5),
        Mark(MarkKind.REMASK, 4, 1, 5),
    )


def test_an_accepted_token_that_the_model_comes_to_doubt_is_marked_once() -> None:
    trace = small_trace()
    trace.confidence[1:3, 1] = 0.2  # accepted in step 0
    trace.confidence[3, 0] = 0.1  # accepted at that: not a doubt, a choice
    doubts = [m for m in marks_of(InspectorData(trace)) if m.kind is MarkKind.DOUBT]
    assert doubts == [Mark(MarkKind.DOUBT, 1, 1, 1)]


def test_a_block_that_is_still_being_written_has_not_hit_its_cap() -> None:
    trace = small_trace()
    writing = replace(trace, header=replace(trace.header, reason=None))
    kinds = {mark.kind for mark in marks_of(InspectorData(writing))}
    assert MarkKind.CAP not in kinds
    assert MarkKind.REMASK in kinds


def test_steps_that_were_not_recorded_are_marked_and_not_made_up() -> None:
    trace = small_trace()
    trace.step[:] = [0, 3, 4, 2, 3]
    data = InspectorData(trace)
    gaps = [m for m in marks_of(data) if m.kind is MarkKind.GAP]
    assert gaps == [Mark(MarkKind.GAP, 1, 2, 0), Mark(MarkKind.GAP, 3, 2, 4)]
    assert data.commit_step[2].tolist() == [-1, 0, 3, 4]


def test_the_front_is_the_first_position_still_open(data) -> None:
    assert commit_front(data).tolist() == [2, 3, 4, 7, 5]


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="without steps"):
        InspectorData(large_trace(steps=0, positions=0))


def test_what_is_derived_stays_smaller_than_the_trace() -> None:
    trace = large_trace()
    data = InspectorData(trace)
    assert (data.positions, data.steps) == (2048, 1500)
    derived = (data.commit_step, data.edits, data.age, data.settled, data.newly_settled)
    values = (getattr(trace, name) for name in trace.__dataclass_fields__)
    own = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    assert sum(array.nbytes for array in derived) < own
