"""Whatever goes wrong with an answer: one press goes on from there, and nothing written is lost."""

from __future__ import annotations

import pytest
from interruption import cut_off, leave
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from app.backend.conversations import MessageStatus
from app.backend.files import AppFolders
from app.desktop import Desktop
from app.models.lifecycle import Lifecycle
from app.ui.composer import MOST_CHARACTERS
from app.ui.message_views import SHOWN_CHARACTERS, SHOWN_LINES, AnswerView, PromptView
from engine.errors import RuntimeFailure
from engine.fake import DEFAULT_ANSWER, FakeLoader, FakeScript

BROKEN = RuntimeFailure("runtime.not_finite", "Numbers are not finite.", "Try again.")


def ask(desktop: Desktop, text: str = "hello") -> None:
    desktop.window.chat_page.send(text)


def last(desktop: Desktop) -> AnswerView:
    view = list(desktop.window.chat_page.views.values())[-1]
    assert isinstance(view, AnswerView)
    return view


def rest(qtbot: QtBot, desktop: Desktop) -> AnswerView:
    qtbot.waitUntil(lambda: not desktop.engine.busy and desktop.chat.can_retry, timeout=5000)
    return last(desktop)


def press(qtbot: QtBot, view: AnswerView) -> None:
    qtbot.mouseClick(view.card.button, Qt.MouseButton.LeftButton)


def interrupted(qtbot: QtBot, open_window, folders: AppFolders) -> Desktop:
    """A window on a conversation whose answer was cut off, with no model in memory."""
    first = open_window(FakeScript(seconds_per_step=0.02))
    ask(first)
    cut = cut_off(qtbot, first)
    first.engine.stop()
    qtbot.waitUntil(lambda: not first.engine.busy)
    first.window.close()
    leave(folders, cut)
    second = open_window(loaded=False)
    second.chat.select(second.chat.conversations[0].id)
    return second


def test_a_prompt_whose_load_was_stopped_is_asked_again_with_one_press(
    open_window, qtbot: QtBot
) -> None:
    loader = FakeLoader(chunks=100, seconds_per_chunk=0.02)
    desktop = open_window(loader=loader, loaded=False)
    desktop.engine.load_demo()
    ask(desktop)
    QTest.keyClick(desktop.window, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.NO_MODEL)
    assert last(desktop).card.button.text() == "Load the demo model and ask again"
    loader.chunks = 1
    press(qtbot, last(desktop))
    assert rest(qtbot, desktop).body.source_text == DEFAULT_ANSWER


def test_a_card_offers_to_ask_again_once_a_model_is_there(open_window, qtbot: QtBot) -> None:
    loader = FakeLoader(seconds_per_chunk=0.02, error=MemoryError())
    desktop = open_window(loader=loader, loaded=False)
    desktop.engine.load_demo()
    ask(desktop)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.FAILED)
    loader.error = None
    desktop.engine.load("another model")
    view = rest(qtbot, desktop)
    assert view.card.button.text() == "Ask again"
    press(qtbot, view)
    assert rest(qtbot, desktop).body.source_text == DEFAULT_ANSWER


def test_after_an_unknown_error_one_press_loads_the_model_and_asks_again(
    open_window, qtbot: QtBot
) -> None:
    loader = FakeLoader(FakeScript(fail_at=(1, 0), error=ValueError("?")))
    desktop = open_window(loader=loader)
    ask(desktop)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.FAILED)
    view = last(desktop)
    assert view.card.button.text() == "Load the model and ask again"
    loader.script = FakeScript()
    press(qtbot, view)
    assert rest(qtbot, desktop).body.source_text == DEFAULT_ANSWER


def test_what_was_written_stays_when_asking_again_fails(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    desktop = interrupted(qtbot, open_window, folders)
    written = last(desktop).body.source_text
    assert written
    desktop.chat.retry(last(desktop).message.id)  # no model: nothing happens
    assert last(desktop).message.status is MessageStatus.INTERRUPTED
    desktop.engine.load("a model")
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.READY)
    assert last(desktop).card.button.text() == "Ask again"
    loader = FakeLoader(FakeScript(fail_at=(0, 0), error=BROKEN))
    desktop.window.close()
    again = open_window(loader=loader)
    again.chat.select(again.chat.conversations[0].id)
    press(qtbot, last(again))
    view = rest(qtbot, again)
    assert view.message.status is MessageStatus.FAILED
    assert view.body.source_text == written
    again.window.close()
    third = open_window()
    third.chat.select(third.chat.conversations[0].id)
    kept = third.chat.current.messages[-1]
    assert (kept.status, kept.text) == (MessageStatus.FAILED, written)


def test_no_card_can_ask_while_another_answer_is_written(open_window, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript(fail_at=(0, 0), error=BROKEN))
    desktop = open_window(loader=loader)
    ask(desktop)
    button = rest(qtbot, desktop).card.button
    loader.engines[0].script = FakeScript(seconds_per_step=0.02)
    ask(desktop, "again")
    assert not button.isEnabled()
    desktop.chat.stop()
    rest(qtbot, desktop)
    assert button.isEnabled()


def test_a_new_try_does_not_begin_on_the_canvas_of_the_last(open_window, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript(fail_at=(1, 0), error=BROKEN))
    desktop = open_window(loader=loader)
    ask(desktop)
    view = rest(qtbot, desktop)
    assert view.canvas.accessibleDescription()
    loader.engines[0].script = FakeScript(seconds_per_step=0.05)
    press(qtbot, view)
    assert not view.canvas.accessibleDescription()


def test_a_conversation_that_became_too_long_goes_on_in_a_new_chat(
    open_window, qtbot: QtBot
) -> None:
    desktop = open_window(FakeScript(context=300))
    ask(desktop, "first")
    assert rest(qtbot, desktop).message.status is MessageStatus.DONE
    text = "word " * 150
    ask(desktop, text)
    view = rest(qtbot, desktop)
    assert view.card.button.text() == "Ask in a new chat"
    press(qtbot, view)
    assert desktop.chat.current.messages == ()
    assert desktop.window.chat_page.composer.text == text


# text that is far too long


@pytest.mark.parametrize("unit", ["x", "word ", "line\n", "中"])
def test_a_book_that_is_pasted_is_refused_whole_and_said(open_window, unit: str) -> None:
    composer = open_window().window.chat_page.composer
    composer.put("kept")
    book = unit * (1_000_000 // len(unit))
    QGuiApplication.clipboard().setText(book)
    composer.edit.paste()  # laying it out would take up to a quarter of a minute
    assert composer.text == "kept"
    assert "1,000,000 characters are too many" in composer.hint.text()
    QTest.keyClick(composer.edit, Qt.Key.Key_A)
    assert "Not pasted" not in composer.hint.text()


def test_the_longest_prompt_is_taken_and_shown_by_its_beginning(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(context=10_000_000))
    page = desktop.window.chat_page
    text = ("y" * 300 + "\n") * 660
    assert len(text) <= MOST_CHARACTERS
    QGuiApplication.clipboard().setText(text)
    page.composer.edit.paste()
    QTest.keyClick(page.composer.edit, Qt.Key.Key_Return)
    rest(qtbot, desktop)
    view = next(iter(page.views.values()))
    assert isinstance(view, PromptView)
    shown = view.body.document().toPlainText()
    assert text.startswith(shown)
    assert 1000 < len(shown) <= SHOWN_CHARACTERS
    assert f"{len(text) - len(shown):,} more characters" in view.rest.text()
    view.body.selectAll()
    view.body.copy()
    assert QGuiApplication.clipboard().text() == text
    assert desktop.chat.conversations[0].messages[0].text == text


def test_a_prompt_of_many_lines_is_shown_by_its_first(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(context=10_000_000))
    ask(desktop, "a\n" * 3000)
    rest(qtbot, desktop)
    view = next(iter(desktop.window.chat_page.views.values()))
    assert view.body.document().blockCount() == SHOWN_LINES
