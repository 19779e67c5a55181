"""The Why panel with a real mouse and keys: asked of the model, shown as a strip and in numbers."""

from __future__ import annotations

import threading

import pytest
from inspector_traces import small_trace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.backend.conversations import MessageStatus
from app.desktop import Desktop
from app.models.inspector import Source
from app.models.lifecycle import Lifecycle
from app.ui.inspector.why_panel import WhyPanel
from engine.errors import RequestError, RuntimeFailure
from engine.fake import FakeScript


@pytest.fixture
def desktop(open_window, qtbot: QtBot) -> Desktop:
    desktop = open_window(FakeScript(seconds_per_step=0.001))
    desktop.chat.send("hello")
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    desktop.window.rail.choose("inspector")
    desktop.window.inspector_page.side.tabs["why"].click()
    desktop.window.inspector.select(14, 50)
    QApplication.processEvents()
    return desktop


def panel_of(desktop: Desktop) -> WhyPanel:
    panel = desktop.window.inspector_page.side.panels["why"]
    assert isinstance(panel, WhyPanel)
    return panel


def ask(desktop: Desktop, qtbot: QtBot) -> WhyPanel:
    panel = panel_of(desktop)
    QTest.mouseClick(panel.button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    QApplication.processEvents()
    return panel


def test_the_strongest_support_is_named_first(desktop: Desktop, qtbot: QtBot) -> None:
    panel = ask(desktop, qtbot)
    found = desktop.window.why.current
    assert panel.strip.isVisible()
    assert "at position 50 had confidence" in panel.summary.text()
    strongest = max(zip(abs(found.effect), found.positions, strict=True))
    assert panel.list.text().splitlines()[0].endswith(f"at {strongest[1]}")
    assert desktop.engine.state is Lifecycle.READY


def test_the_strip_is_walked_by_keys_and_pressed_by_mouse(desktop: Desktop, qtbot: QtBot) -> None:
    panel = ask(desktop, qtbot)
    strip, found = panel.strip, desktop.window.why.current
    first = strip.accessibleDescription()
    QTest.keyClick(strip, Qt.Key.Key_Right)
    assert strip.accessibleDescription() != first
    assert f"at {found.positions[1]}" in strip.accessibleDescription()
    center = strip._box(2).center().toPoint()
    QTest.mouseClick(strip, Qt.MouseButton.LeftButton, pos=center)
    data = desktop.window.inspector.data
    selected = data.first_position + desktop.window.inspector.selection.position
    assert selected == found.positions[2]
    assert strip.isVisible()  # the answer stays while one looks around


def test_another_trace_takes_the_answer_away(desktop: Desktop, qtbot: QtBot) -> None:
    panel = ask(desktop, qtbot)
    desktop.window.inspector.show(small_trace(), Source.FILE, "small")
    QApplication.processEvents()
    assert not panel.strip.isVisible()


def test_what_cannot_be_asked_is_said(desktop: Desktop) -> None:
    panel, model = panel_of(desktop), desktop.window.inspector
    model.select(14, 0)
    assert "block that this step works on" in panel.reason.text()
    model.select(2, 0)
    assert "belongs to the prompt" in panel.reason.text()
    assert not panel.button.isEnabled()


def test_a_failure_is_a_card_and_the_model_stays(
    desktop: Desktop, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeFailure("runtime.test", "It broke.", "Try again.")

    monkeypatch.setattr(desktop.engine._worker._engine, "attribute", fail)
    panel = ask(desktop, qtbot)
    page = desktop.window.inspector_page
    assert page.problem.code.text() == "runtime.test"
    assert not panel.strip.isVisible()
    assert desktop.engine.state is Lifecycle.READY
    assert panel.button.isEnabled()


def test_a_question_does_not_pass_for_a_reply(desktop: Desktop, qtbot: QtBot) -> None:
    ask(desktop, qtbot)
    reply = desktop.chat.current.messages[-1].id
    assert desktop.window.inspector.show_answer(reply, "again")
    assert desktop.window.inspector.source is Source.ANSWER


def test_another_model_can_be_loaded_while_a_question_is_open(
    desktop: Desktop, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def wait_for_stop(_trace, _step, _position, _reach, stop: threading.Event) -> None:
        asked.set()
        assert stop.wait(5)
        raise RequestError("request.stopped", "The question was stopped.", "Ask again.")

    monkeypatch.setattr(desktop.engine._worker._engine, "attribute", wait_for_stop)
    QTest.mouseClick(panel_of(desktop).button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(asked.is_set)
    assert "Esc stops it" in panel_of(desktop).reason.text()
    desktop.engine.load_demo()
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.READY, timeout=5000)
    assert not desktop.window.inspector_page.problem.isVisible()  # it was asked to stop
    assert not desktop.engine.asking
    assert panel_of(desktop).button.isEnabled()


def test_a_prompt_sent_while_a_question_is_open_is_answered_after_it(
    desktop: Desktop, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    engine = desktop.engine._worker._engine
    real = engine.attribute

    def slow(*args) -> object:
        assert go_on.wait(5)
        return real(*args)

    monkeypatch.setattr(engine, "attribute", slow)
    QTest.mouseClick(panel_of(desktop).button, Qt.MouseButton.LeftButton)
    assert desktop.chat.send("again")
    go_on.set()
    done = MessageStatus.DONE
    qtbot.waitUntil(lambda: desktop.chat.current.messages[-1].status is done, timeout=5000)
    assert desktop.window.why.result is not None
