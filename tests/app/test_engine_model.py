"""The model as the window sees it: lifecycle, Stop within one step, errors, and no lag."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from pytestqt.qtbot import QtBot

from app.backend.conversations import Failure
from app.models.engine_model import EngineModel
from app.models.lifecycle import ForbiddenTransition, Lifecycle
from app.models.snapshot import Snapshot
from app.models.worker import GenerationJob, ReplyOutcome, load_real_engine
from engine.errors import CheckpointError, RuntimeFailure, UnblurError
from engine.fake import DEFAULT_ANSWER, FakeLoader, FakeScript
from engine.protocol import Engine, EngineLoader, ProgressCallback
from engine.types import GenerateRequest, LoadProgress, Message

Make = Callable[[EngineLoader], EngineModel]


class Notes:
    """A sink that remembers what it was told, and in which thread."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.outcome: ReplyOutcome | None = None
        self.thread = ""

    def begun(self) -> None:
        self.thread = threading.current_thread().name

    def block(self, text: str) -> None:
        self.blocks.append(text)

    def ended(self, outcome: ReplyOutcome) -> None:
        self.outcome = outcome


@pytest.fixture
def make(qtbot: QtBot) -> Iterator[Make]:
    made: list[EngineModel] = []

    def build(loader: EngineLoader) -> EngineModel:
        made.append(EngineModel(loader))
        return made[-1]

    yield build
    for model in made:
        assert model.close()
        model.deleteLater()


def job(reply: str = "r", sink: Notes | None = None, limit: int = 1024) -> GenerationJob:
    return GenerationJob(
        reply, GenerateRequest((Message("user", "hello"),), limit), sink or Notes()
    )


def load(qtbot: QtBot, model: EngineModel) -> None:
    model.load("somewhere")
    qtbot.waitUntil(lambda: not model.busy, timeout=5000)


def test_a_load_ends_ready_with_the_models_facts(make: Make, qtbot: QtBot) -> None:
    model = make(FakeLoader())
    states: list[Lifecycle] = []
    model.state_changed.connect(states.append)
    load(qtbot, model)
    assert states == [Lifecycle.LOADING, Lifecycle.READY]
    assert model.info is not None
    assert model.info.name == "scripted demo"


def test_progress_reaches_the_window_while_loading(make: Make, qtbot: QtBot) -> None:
    model = make(FakeLoader(chunks=4, seconds_per_chunk=0.06))
    seen: list[LoadProgress] = []
    model.progress_changed.connect(seen.append)
    load(qtbot, model)
    shares = [p.done_bytes / p.total_bytes for p in seen]
    assert len(shares) >= 2
    assert shares == sorted(shares)


def test_stop_works_while_loading(make: Make, qtbot: QtBot) -> None:
    loader = FakeLoader(chunks=200, seconds_per_chunk=0.05)
    model = make(loader)
    model.load("somewhere")
    qtbot.waitUntil(lambda: model.progress is not None)
    model.stop()
    assert model.state is Lifecycle.STOPPING
    qtbot.waitUntil(lambda: model.state is Lifecycle.NO_MODEL, timeout=2000)
    assert loader.engines == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckpointError("checkpoint.no_config", "No config.json.", "Open another."), None),
        (MemoryError(), "memory.exhausted"),
        (ZeroDivisionError("a defect"), "app.unexpected"),
    ],
)
def test_every_load_error_becomes_a_failure_and_a_second_load_works(
    make: Make, qtbot: QtBot, error: Exception, code: str | None
) -> None:
    loader = FakeLoader(error=error)
    model = make(loader)
    failures: list[Failure] = []
    model.load_failed.connect(failures.append)
    load(qtbot, model)
    assert model.state is Lifecycle.FAILED
    assert failures[0].code == (code or getattr(error, "code", ""))
    assert failures[0].message
    assert failures[0].action
    loader.error = None
    load(qtbot, model)
    assert model.state is Lifecycle.READY


def test_a_reply_is_painted_kept_and_ended_in_that_order(make: Make, qtbot: QtBot) -> None:
    model = make(FakeLoader(FakeScript(seconds_per_step=0.01)))
    load(qtbot, model)
    notes, events = Notes(), []
    model.snapshot_changed.connect(events.append)
    model.reply_ended.connect(events.append)
    model.generate(job(sink=notes))
    qtbot.waitUntil(lambda: model.state is Lifecycle.READY, timeout=5000)
    assert isinstance(events[0], Snapshot)
    assert isinstance(events[-1], ReplyOutcome)
    assert events[-2].text == events[-1].text == DEFAULT_ANSWER
    assert notes.blocks[-1] == DEFAULT_ANSWER
    assert notes.outcome == events[-1]
    assert notes.thread != threading.current_thread().name


def test_stop_ends_a_reply_within_one_step(make: Make, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript(seconds_per_step=0.05))
    model = make(loader)
    load(qtbot, model)
    outcomes: list[ReplyOutcome] = []
    model.reply_ended.connect(outcomes.append)
    model.generate(job())
    qtbot.waitUntil(lambda: loader.engines[0].steps_taken >= 3)
    taken = loader.engines[0].steps_taken
    model.stop()
    qtbot.waitUntil(lambda: model.state is Lifecycle.READY, timeout=2000)
    assert loader.engines[0].steps_taken <= taken + 1
    assert outcomes[0].reason == "stopped"


def test_a_typed_failure_leaves_the_engine_ready(make: Make, qtbot: QtBot) -> None:
    error = RuntimeFailure("runtime.test", "It broke.", "Try again.")
    model = make(FakeLoader(FakeScript(fail_at=(1, 0), error=error)))
    load(qtbot, model)
    outcomes: list[ReplyOutcome] = []
    model.reply_ended.connect(outcomes.append)
    model.generate(job())
    qtbot.waitUntil(lambda: bool(outcomes), timeout=5000)
    assert model.state is Lifecycle.READY
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.code == "runtime.test"
    assert DEFAULT_ANSWER.startswith(outcomes[0].text)
    assert outcomes[0].text  # the first block is kept


def test_an_unknown_error_is_named_and_the_model_must_be_loaded_again(
    make: Make, qtbot: QtBot
) -> None:
    model = make(FakeLoader(FakeScript(fail_at=(0, 1), error=ZeroDivisionError("a defect"))))
    load(qtbot, model)
    outcomes: list[ReplyOutcome] = []
    model.reply_ended.connect(outcomes.append)
    model.generate(job())
    qtbot.waitUntil(lambda: bool(outcomes), timeout=5000)
    assert model.state is Lifecycle.FAILED
    assert outcomes[0].failure is not None
    assert "ZeroDivisionError: a defect" in outcomes[0].failure.message
    load(qtbot, model)
    assert model.state is Lifecycle.READY


def test_generating_without_a_model_is_a_defect_that_shows(make: Make) -> None:
    with pytest.raises(ForbiddenTransition):
        make(FakeLoader()).generate(job())


def test_another_model_stops_the_reply_and_unloads_the_first(make: Make, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript(seconds_per_step=0.02))
    model = make(loader)
    load(qtbot, model)
    model.generate(job())
    model.load("elsewhere")
    qtbot.waitUntil(lambda: model.state is Lifecycle.READY and len(loader.engines) == 2)
    assert loader.engines[0].unloaded
    assert model.path == "elsewhere"


def test_unload_gives_the_model_back(make: Make, qtbot: QtBot) -> None:
    loader = FakeLoader()
    model = make(loader)
    load(qtbot, model)
    model.unload()
    qtbot.waitUntil(lambda: model.state is Lifecycle.NO_MODEL, timeout=2000)
    assert loader.engines[0].unloaded
    assert model.info is None


def test_closing_in_mid_reply_stops_unloads_and_ends_the_thread(make: Make, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript(seconds_per_step=0.02))
    model = make(loader)
    load(qtbot, model)
    model.generate(job())
    qtbot.waitUntil(lambda: loader.engines[0].steps_taken > 0)
    assert model.close()
    assert loader.engines[0].unloaded


def test_nothing_is_heard_of_a_model_after_closing_in_mid_load(make: Make, qtbot: QtBot) -> None:
    model = make(FakeLoader(chunks=50, seconds_per_chunk=0.02))
    heard: list[Lifecycle] = []
    model.state_changed.connect(heard.append)
    model.load("folder")
    qtbot.waitUntil(lambda: model.progress is not None)
    assert model.close()
    qtbot.wait(50)  # what the worker said last would arrive now, as a move nobody asked for
    assert heard == [Lifecycle.LOADING]


def test_a_fast_engine_leaves_the_window_up_to_date_and_its_loop_free(
    make: Make, qtbot: QtBot
) -> None:
    """5,000 tok/s: the window paints 30 times a second and sees the newest state each time."""
    text = "word " * 4000
    model = make(FakeLoader(FakeScript(default_answer=text, tokens_per_second=5000.0)))
    load(qtbot, model)
    ages: list[float] = []
    model.snapshot_changed.connect(lambda s: ages.append(time.monotonic() - s.published))
    model.generate(job(limit=5000))
    turns = 0
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        qtbot.wait(1)
        turns += 1
    model.stop()
    qtbot.waitUntil(lambda: model.state is Lifecycle.READY, timeout=2000)
    assert turns > 100  # the event loop was free
    assert 5 <= len(ages) <= 40  # painted by the timer, not by every one of some 1,250 steps
    assert sorted(ages)[len(ages) // 2] < 0.1


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "engine.engine", raising=False)
    with pytest.raises(UnblurError) as caught:
        load_real_engine("x", lambda _: None, threading.Event())
    assert caught.value.code == "install.incomplete"
    assert "python run.py" in caught.value.action


def test_a_failed_load_is_no_news_once_another_has_begun(make: Make, qtbot: QtBot) -> None:
    let_fail = threading.Event()

    def load(path: str, progress: ProgressCallback, stop: threading.Event) -> Engine:
        if path == "elsewhere":
            return FakeLoader()(path, progress, stop)
        assert let_fail.wait(5)
        raise MemoryError  # it ends by itself, not by the stop

    model = make(load)
    failures: list[Failure] = []
    states: list[Lifecycle] = []
    model.load_failed.connect(failures.append)
    model.load("somewhere")
    model.state_changed.connect(states.append)
    model.load("elsewhere")
    let_fail.set()
    qtbot.waitUntil(lambda: model.state is Lifecycle.READY, timeout=3000)
    assert failures == []
    assert states == [Lifecycle.STOPPING, Lifecycle.LOADING, Lifecycle.READY]
