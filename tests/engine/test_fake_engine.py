"""The scripted engine keeps the promises of the protocol that the window is built on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable

import numpy as np
import pytest

from engine.errors import RequestError, RuntimeFailure
from engine.fake import DEFAULT_ANSWER, FakeEngine, FakeLoader, FakeScript
from engine.protocol import Engine, EngineLoader
from engine.trace import Change, Fork, Trace, record, record_fork
from engine.types import (
    BlockFinished,
    Capture,
    CaptureLevel,
    Event,
    Finished,
    GenerateRequest,
    LoadProgress,
    Message,
    Started,
    StepTaken,
    TokenState,
)


def ask(text: str, limit: int = 1024) -> GenerateRequest:
    return GenerateRequest((Message("user", text),), limit)


def of(events: Iterable[Event], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def test_a_reply_is_started_steps_blocks_and_one_finished() -> None:
    engine: Engine = FakeEngine()
    events = list(engine.generate(ask("hello")))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert len(of(events, Finished)) == 1
    blocks = of(events, BlockFinished)
    assert [b.block for b in blocks] == list(range(len(blocks)))
    assert blocks[-1].text == events[-1].text == DEFAULT_ANSWER
    assert events[-1].reason == "stop_token"


def test_steps_show_prompt_draft_committed_and_edited_positions() -> None:
    steps = of(FakeEngine().generate(ask("hello")), StepTaken)
    seen = {TokenState(value) for step in steps for value in step.state.tolist()}
    assert {TokenState.DRAFT, TokenState.COMMITTED, TokenState.EDITED, TokenState.PROMPT} <= seen
    first = steps[0]
    assert first.ids.dtype == np.int32
    assert first.state.dtype == np.uint8
    assert first.confidence.dtype == first.entropy.dtype == np.float32
    assert first.ids.shape == first.edited_from.shape == (32,)


def test_an_edit_names_the_token_it_replaces() -> None:
    engine = FakeEngine()
    before: dict[tuple[int, int], int] = {}
    edits = 0
    for step in of(engine.generate(ask("hello")), StepTaken):
        for i in np.flatnonzero(step.edited_from >= 0).tolist():
            edits += 1
            assert step.edited_from[i] == before[step.block, i]
            assert step.ids[i] != step.edited_from[i]
        before.update({(step.block, i): int(token) for i, token in enumerate(step.ids)})
    assert edits > 0


def test_the_same_script_plays_the_same_steps() -> None:
    first, second = (of(FakeEngine().generate(ask("x")), StepTaken) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.state.tolist() == b.state.tolist()


def test_stop_ends_the_reply_within_one_step() -> None:
    engine, stop = FakeEngine(), threading.Event()
    taken, event = 0, None
    for event in engine.generate(ask("hello"), stop):
        if isinstance(event, StepTaken):
            taken += 1
            if taken == 3:
                stop.set()
    assert engine.steps_taken <= 4
    assert isinstance(event, Finished)
    assert event.reason == "stopped"


def test_a_length_limit_ends_the_reply_and_says_so() -> None:
    finished = list(FakeEngine().generate(ask("hello", limit=10)))[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "length"
    assert finished.stats.tokens == len(finished.ids) == 10


def test_it_fails_where_the_script_says_and_can_be_used_afterwards() -> None:
    error = RuntimeFailure("runtime.test", "It broke.", "Try again.")
    engine = FakeEngine(FakeScript(fail_at=(1, 2), error=error))
    with pytest.raises(RuntimeFailure, match="It broke"):
        list(engine.generate(ask("hello")))
    engine.script = FakeScript()
    (finished,) = of(engine.generate(ask("hello")), Finished)
    assert finished.text == DEFAULT_ANSWER


def test_empty_and_overlong_prompts_are_refused() -> None:
    engine = FakeEngine(FakeScript(context=16))
    with pytest.raises(RequestError, match="empty"):
        list(engine.generate(ask("  ")))
    with pytest.raises(RequestError, match="16 at most"):
        list(engine.generate(ask("word " * 20)))


def test_text_survives_encoding_and_decoding() -> None:
    engine, text = FakeEngine(), "Tabs\tand\nlines, ünïcödé 漢字 and 1,234.5 × 2"
    assert engine.decode(engine.encode(text)) == text
    assert "".join(engine.pieces(engine.encode(text))) == text


def test_the_loader_reports_progress_and_stops_when_asked() -> None:
    loader: EngineLoader = FakeLoader()
    seen: list[LoadProgress] = []
    assert loader("anywhere", seen.append, threading.Event()).info.name == "scripted demo"
    assert seen[-1].done_bytes == seen[-1].total_bytes
    stop = threading.Event()
    stop.set()
    with pytest.raises(Exception, match="stopped") as caught:
        loader("anywhere", seen.append, stop)
    assert caught.value.code == "load.stopped"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_fake_engine_needs_neither_torch_nor_qt() -> None:
    program = (
        "import sys, engine.fake; list(engine.fake.FakeEngine().generate("
        "engine.fake.GenerateRequest((engine.fake.Message('user', 'x'),))));"
        "sys.exit(any(m.split('.')[0] in ('torch', 'PySide6') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def recorded(engine: FakeEngine, level: CaptureLevel = "light") -> Trace:
    request = GenerateRequest((Message("user", "hello"),), capture=Capture(level, top_k=4))
    return record(engine, request)


def test_an_unchanged_fork_is_its_parent_again() -> None:
    engine = FakeEngine()
    parent = recorded(engine)
    again = record_fork(engine, Fork(parent, 11))
    for name in ("ids", "state", "confidence", "edited_from"):
        assert np.array_equal(getattr(again, name), getattr(parent, name), equal_nan=True)
    assert again.header.parent is not None
    assert again.header.parent.trace_id == parent.header.trace_id


def test_a_forced_token_stands_from_its_step_on_and_is_in_the_answer() -> None:
    engine = FakeEngine()
    parent = recorded(engine)
    start = int(parent.block_start[9])
    token = engine.encode(" forced")[0]
    child = record_fork(engine, Fork(parent, 9, Change(force=((start + 3, token),))))
    assert np.array_equal(child.ids[:9], parent.ids[:9])
    assert child.ids[15, 3] == token
    assert " forced" in child.header.text
    assert parent.header.text != child.header.text


def test_a_token_taken_back_is_a_draft_until_it_is_accepted_again() -> None:
    engine = FakeEngine()
    parent = recorded(engine)
    row = int(np.flatnonzero(parent.block == 1)[-3])
    assert parent.state[row, 2] == TokenState.COMMITTED
    where = int(parent.block_start[row]) + 2
    child = record_fork(engine, Fork(parent, row, Change(mask=(where,))))
    states = child.state[row : row + 3, 2].tolist()
    assert states == [TokenState.DRAFT, TokenState.DRAFT, TokenState.COMMITTED]


def test_candidates_are_there_when_they_are_asked_for() -> None:
    engine = FakeEngine()
    assert recorded(engine).top_ids is None
    trace = recorded(engine, "top-k")
    assert trace.top_ids is not None
    assert trace.top_p is not None
    assert trace.top_ids.shape == (*trace.ids.shape, 4)
    judged = trace.state != TokenState.PROMPT
    assert np.array_equal(trace.top_ids[judged][:, 0], trace.ids[judged])
    assert (np.diff(trace.top_p[judged], axis=1) <= 0).all()
    assert (trace.top_ids[~judged] == -1).all()
    assert all(len(set(row)) == 4 for row in trace.top_ids[judged].tolist())
