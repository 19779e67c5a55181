"""From the chat to the inspector: the button under an answer, and the peek beside it."""

from __future__ import annotations

from PySide6.QtCore import QSettings, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.models.inspector import Source
from app.ui.message_views import AnswerView
from engine.errors import RuntimeFailure
from engine.fake import FakeScript

BROKEN = RuntimeFailure("runtime.test", "The model produced nonsense.", "Try again.")


def ask(desktop, qtbot: QtBot, text: str = "hello") -> AnswerView:
    assert desktop.chat.send(text)
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    view = list(desktop.window.chat_page.views.values())[-1]
    assert isinstance(view, AnswerView)
    return view


def press(button) -> None:
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


def test_an_answer_opens_in_the_inspector(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    first = ask(desktop, qtbot, "first")
    ask(desktop, qtbot, "second")
    assert first.inspect_button.isVisible()
    press(first.inspect_button)
    page, model = desktop.window.inspector_page, desktop.window.inspector
    assert page.isVisible()
    assert (model.source, page.title.text()) == (Source.ANSWER, "first")
    assert model.data.trace.header.messages[-1].content == "first"
    assert model.selection.step == 0


def test_what_a_failed_answer_did_before_can_be_inspected(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(fail_at=(2, 1), error=BROKEN))
    view = ask(desktop, qtbot)
    press(view.inspect_button)
    assert desktop.window.inspector.data.segments[-1].block == 2


def test_an_answer_of_another_session_has_no_steps_to_show(open_window, qtbot: QtBot) -> None:
    ask(open_window(), qtbot)
    second = open_window()
    second.chat.select(second.chat.conversations[0].id)
    QApplication.processEvents()
    view = list(second.window.chat_page.views.values())[-1]
    assert view.copy_button.isVisible()
    assert not view.inspect_button.isVisible()


def test_the_peek_shows_the_block_being_written_and_opens_it(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.01))
    peek = desktop.window.chat_page.peek
    assert peek.isVisible()
    assert not peek.raster.isVisible()
    desktop.chat.send("hello")
    qtbot.waitUntil(lambda: peek.title.text() == "Block 2", timeout=5000)
    assert peek.raster.isVisible()
    assert peek.raster.positions_in_sight() == (0, 64)  # both blocks
    press(peek.button)
    page = desktop.window.inspector_page
    assert page.isVisible()
    assert desktop.window.inspector.source is Source.LIVE
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=8000)


def test_the_peek_gives_way_in_a_small_window(open_window) -> None:
    window = open_window(loaded=False).window
    window.resize(960, 640)
    QApplication.processEvents()
    assert not window.chat_page.peek.isVisible()
    window.resize(1280, 800)
    QApplication.processEvents()
    assert window.chat_page.peek.isVisible()


def test_a_closed_peek_stays_closed_at_the_next_start(open_window, tmp_path) -> None:
    desktop = open_window(loaded=False)
    kept = QSettings(str(tmp_path / "geometry.ini"), QSettings.Format.IniFormat)
    desktop.window._geometry = kept
    press(desktop.window.chat_page.peek.toggle)
    assert desktop.window.chat_page.peek.width() == 48
    desktop.window.close()
    assert kept.value("peek") == "closed"
