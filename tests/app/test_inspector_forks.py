"""What if: a fork is run by the loaded model, shown, and stands in a tree under its parent."""

from __future__ import annotations

import numpy as np
import pytest
from inspector_traces import small_trace
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from app.models.engine_model import EngineModel
from app.models.inspector import InspectorModel, Selection, Source
from app.models.inspector_forks import ForkModel
from app.models.worker import GenerationJob
from engine.errors import RuntimeFailure
from engine.fake import FakeLoader, FakeScript
from engine.trace import Change
from engine.types import GenerateRequest, Message


class NoSink:
    def begun(self) -> None: ...

    def block(self, text: str) -> None: ...

    def ended(self, outcome: object) -> None: ...


class Bench:
    """An engine, an inspector on its finished reply, and the forks of it."""

    def __init__(self, qtbot: QtBot, script: FakeScript | None = None) -> None:
        self.qtbot = qtbot
        self.loader = FakeLoader(script or FakeScript(seconds_per_step=0.001))
        self.engine = EngineModel(self.loader)
        self.model = InspectorModel(self.engine)
        self.forks = ForkModel(self.engine, self.model)
        self.engine.load_demo()
        self.wait()
        request = GenerateRequest((Message("user", "hello"),))
        self.engine.generate(GenerationJob("one", request, NoSink()))
        self.wait()
        assert self.model.show_answer("one", "Original")

    def wait(self) -> None:
        self.qtbot.waitUntil(lambda: not self.engine.busy, timeout=5000)

    def fork(self, change: Change, title: str) -> None:
        assert self.forks.run(change, title)
        self.wait()


@pytest.fixture
def bench(qapp: QCoreApplication, qtbot: QtBot):
    bench = Bench(qtbot)
    yield bench
    bench.model.clear()
    assert bench.engine.close()


def test_a_fork_is_shown_at_the_place_it_was_made(bench: Bench) -> None:
    bench.model.watch(True)
    bench.model.select(9, 40)
    parent = bench.model.data.trace
    token = int(parent.ids[0, 3])
    start = int(parent.block_start[9])
    bench.fork(Change(force=((start + 5, token),)), "force")
    child = bench.model.data.trace
    assert bench.model.title == "force"
    assert bench.model.selection == Selection(9, 40)
    assert bench.model.source is Source.ANSWER
    assert child.header.parent.trace_id == parent.header.trace_id
    assert np.array_equal(child.ids[:9], parent.ids[:9])
    assert child.ids[15, 5] == token


def test_forks_form_a_tree_and_each_can_be_shown_again(bench: Bench) -> None:
    parent = bench.model.data.trace
    start = int(parent.block_start[9])
    bench.model.select(9)
    bench.fork(Change(mask=(start + 2,)), "first")
    first = bench.model.data.trace.header.trace_id
    bench.model.select(20)
    bench.fork(Change(), "first of first")
    bench.forks.show(parent.header.trace_id)
    bench.model.select(30)
    bench.fork(Change(), "second")
    tree = bench.forks.tree()
    assert [(b.title, b.depth) for b in tree] == [
        ("Original", 0),
        ("first", 1),
        ("first of first", 2),
        ("second", 1),
    ]
    assert tree[1].parent.change.mask == (start + 2,)
    bench.forks.show(first)
    assert bench.model.title == "first"
    assert bench.model.selection.step == 30


def test_another_answer_has_a_tree_of_its_own(bench: Bench) -> None:
    bench.fork(Change(), "fork")
    bench.model.show(small_trace(), Source.FILE, "small")
    assert [b.title for b in bench.forks.tree()] == ["small"]


def test_a_fork_is_captured_with_candidates(bench: Bench) -> None:
    assert bench.model.data.trace.top_ids is None
    bench.fork(Change(), "fork")
    assert bench.model.data.trace.top_ids is not None


def test_a_fork_that_fails_says_why_and_the_model_stays(bench: Bench) -> None:
    bench.loader.engines[0].script = FakeScript(
        fail_at=(1, 1), error=RuntimeFailure("runtime.test", "No.", "Try again.")
    )
    heard = []
    bench.forks.failed.connect(heard.append)
    bench.fork(Change(), "fork")
    assert heard[0].code == "runtime.test"
    assert bench.model.title == "Original"
    assert bench.forks.blocked_reason() is None


def test_nothing_can_be_forked_without_a_model_or_while_it_works(bench: Bench) -> None:
    assert bench.forks.blocked_reason() is None
    bench.loader.engines[0].script = FakeScript(seconds_per_step=0.01)
    assert bench.forks.run(Change(), "slow")
    assert "at work" in bench.forks.blocked_reason()
    assert not bench.forks.run(Change(), "again")
    bench.engine.stop()
    bench.wait()
    bench.engine.unload()
    bench.wait()
    assert "no model is loaded" in bench.forks.blocked_reason()
