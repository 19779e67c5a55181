"""One selection, playback that keeps time, and a reply that can be followed and kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from inspector_traces import large_trace, small_trace
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from app.models import inspector
from app.models.engine_model import EngineModel
from app.models.inspector import InspectorModel, Selection, Source, trace_bytes
from app.models.inspector_curves import MarkKind
from app.models.inspector_live import LiveTrace
from app.models.worker import GenerationJob
from engine.fake import FakeEngine, FakeLoader, FakeScript
from engine.types import GenerateRequest, Message, StepTaken


class NoSink:
    def begun(self) -> None: ...

    def block(self, text: str) -> None: ...

    def ended(self, outcome: object) -> None: ...


@pytest.fixture
def engine(qapp: QCoreApplication):
    model = EngineModel(FakeLoader(FakeScript(seconds_per_step=0.003)))
    yield model
    model.stop()
    assert model.close()


@pytest.fixture
def shown(engine: EngineModel):
    model = InspectorModel(engine)
    model.show(small_trace(), Source.FILE, "small")
    yield model
    model.clear()


def ask(qtbot: QtBot, engine: EngineModel, reply_id: str = "one") -> None:
    if engine.info is None:
        engine.load_demo()
        qtbot.waitUntil(lambda: not engine.busy, timeout=5000)
    request = GenerateRequest((Message("user", "hello"),))
    engine.generate(GenerationJob(reply_id, request, NoSink()))


def steps_of(engine: FakeEngine) -> list[StepTaken]:
    request = GenerateRequest((Message("user", "hello"),))
    return [event for event in engine.generate(request) if isinstance(event, StepTaken)]


def test_a_growing_trace_is_what_the_engine_said(qapp: QCoreApplication) -> None:
    engine, live = FakeEngine(), LiveTrace()
    events = steps_of(engine)
    live.begin("one", engine.trace_header(GenerateRequest((Message("user", "hello"),))))
    assert live.take(0) is None
    for event in events[:3]:
        live.add(event, engine.pieces)
    seen, early = live.take(0)
    assert live.take(seen) is None
    before = early.ids.copy()
    for event in events[3:] * 5:  # over the first arrays' end
        live.add(event, engine.pieces)
    late = live.latest("one")
    assert late is not None
    assert np.array_equal(early.ids, before)
    assert np.array_equal(late.ids[: len(events)], np.stack([e.ids for e in events]))
    assert late.seconds[1] == events[1].seconds
    shown = engine.pieces(events[-1].ids.tolist())
    assert tuple(late.header.pieces[i] for i in events[-1].ids.tolist()) == shown
    assert live.latest("another") is None


def test_a_step_of_another_shape_is_left_out_and_the_rest_recorded(qapp: QCoreApplication) -> None:
    engine, live = FakeEngine(), LiveTrace()
    events = steps_of(engine)
    live.begin("one", engine.trace_header(GenerateRequest((Message("user", "hello"),))))
    live.add(events[0], engine.pieces)
    live.add(replace(events[1], ids=events[1].ids[:5]), engine.pieces)
    live.add(replace(events[2], top_ids=np.zeros((32, 2), np.int32)), engine.pieces)
    live.add(events[3], engine.pieces)
    trace = live.latest("one")
    assert trace.step.tolist() == [0, 3]


def test_the_selection_stays_within_the_trace_and_says_what_it_was(shown, qtbot: QtBot) -> None:
    with qtbot.waitSignal(shown.selection_changed) as heard:
        shown.select(step=99, position=99)
    assert heard.args == [Selection(0, 2), Selection(4, 7)]
    shown.step_by(-99)
    assert shown.selection == Selection(0, 7)
    assert shown.moment is None  # its block has not begun
    with qtbot.assertNotEmitted(shown.selection_changed):
        shown.select(step=-1)


def test_blocks_and_marks_are_reached_by_one_step(shown) -> None:
    shown.go_to_block(1)
    assert shown.selection == Selection(3, 4)
    shown.go_to_block(1)
    assert shown.selection.step == 3
    shown.go_to_block(-1)
    assert shown.selection.step == 0
    mark = shown.go_to_mark(1)
    assert (mark.kind, shown.selection) == (MarkKind.EDIT, Selection(2, 2))
    assert shown.go_to_mark(1).kind is MarkKind.STOP
    shown.go_to_mark(1)
    assert shown.selection == Selection(4, 5)
    assert shown.go_to_mark(1) is None


def test_playing_shows_the_step_that_is_due_and_ends_at_the_last(shown, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(inspector.time, "monotonic", lambda: now[0])
    shown.choose_speed(10)
    shown.toggle_play()
    assert shown.playing
    now[0] += 0.25
    shown._play_on()
    assert shown.selection.step == 2
    shown.choose_speed(0)  # as recorded: 20 ms from step 2 to step 3 ends 40 ms later
    now[0] += 0.039
    shown._play_on()
    assert shown.selection.step == 2
    now[0] += 0.002
    shown._play_on()
    assert shown.selection.step == 3
    now[0] += 9
    shown._play_on()
    assert (shown.selection.step, shown.playing) == (4, False)
    shown.toggle_play()
    assert shown.selection.step == 0  # again from the start


def test_a_step_chosen_by_hand_ends_playing(shown) -> None:
    shown.toggle_play()
    shown.scrub(1)
    assert not shown.playing


def test_a_reply_is_followed_and_kept(engine: EngineModel, qtbot: QtBot) -> None:
    model = InspectorModel(engine)
    model.watch(True)
    ask(qtbot, engine)
    qtbot.waitUntil(lambda: model.source is Source.LIVE, timeout=3000)
    qtbot.waitUntil(lambda: not engine.busy, timeout=5000)
    assert model.source is Source.ANSWER
    assert model.knows("one")
    assert model.selection.step == model.data.steps - 1
    kept = model.data.trace
    assert len(kept) == kept.forwards[-1]
    assert kept.header.reason == "stop_token"
    assert kept.header.messages == (Message("user", "hello"),)


def test_scrubbing_ends_following_until_it_is_asked_for_again(
    engine: EngineModel, qtbot: QtBot
) -> None:
    model = InspectorModel(engine)
    model.watch(True)
    ask(qtbot, engine)
    qtbot.waitUntil(lambda: model.data is not None and model.data.steps > 4, timeout=3000)
    model.scrub(1)
    steps = model.data.steps
    qtbot.waitUntil(lambda: model.data.steps > steps, timeout=3000)
    assert (model.selection.step, model.follow) == (1, False)
    assert model.moment is not None  # not the end of the reply, where following had led
    model.choose_position(60)
    model.scrub(2)
    assert model.selection.position == 60
    model.choose_follow(True)
    assert model.selection.step == model.data.steps - 1
    qtbot.waitUntil(lambda: not engine.busy, timeout=5000)


def test_a_hidden_page_indexes_nothing_and_catches_up(engine: EngineModel, qtbot: QtBot) -> None:
    model = InspectorModel(engine)
    ask(qtbot, engine)
    qtbot.waitUntil(lambda: not engine.busy, timeout=5000)
    assert model.data is None
    model.watch(True)
    assert (model.source, model.title) == (Source.ANSWER, "The last answer")
    assert model.show_answer("one", "An answer")
    assert model.source is Source.ANSWER


def test_an_opened_trace_is_not_taken_away_by_a_reply(engine: EngineModel, qtbot: QtBot) -> None:
    model = InspectorModel(engine)
    model.watch(True)
    model.show(small_trace(), Source.FILE, "small")
    ask(qtbot, engine)
    qtbot.waitUntil(lambda: not engine.busy, timeout=5000)
    assert (model.source, model.data.steps) == (Source.FILE, 5)
    assert model.knows("one")


def test_the_oldest_traces_are_let_go(engine: EngineModel, qtbot: QtBot, monkeypatch) -> None:
    monkeypatch.setattr(inspector, "KEPT_BYTES", 1)
    model = InspectorModel(engine)
    ask(qtbot, engine, "one")
    qtbot.waitUntil(lambda: not engine.busy, timeout=5000)
    ask(qtbot, engine, "two")
    qtbot.waitUntil(lambda: not engine.busy, timeout=5000)
    assert not model.show_answer("one", "")
    assert model.knows("two")
    assert trace_bytes(large_trace()) > 100_000
