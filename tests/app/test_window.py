"""The whole window on the scripted engine: what a person sees and does."""

from __future__ import annotations

from pathlib import Path

import pytest
from interruption import cut_off, leave
from PySide6.QtCore import QSettings, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app.backend.conversations import MessageStatus
from app.backend.files import AppFolders
from app.desktop import Desktop
from app.models.lifecycle import Lifecycle
from app.ui.main_window import MainWindow
from app.ui.message_views import AnswerView, PromptView
from engine.errors import CheckpointError, RuntimeFailure
from engine.fake import DEFAULT_ANSWER, FakeLoader, FakeScript

BROKEN = RuntimeFailure("runtime.test", "The model produced nonsense.", "Try again.")
TRUNCATED = CheckpointError(
    "checkpoint.truncated", "model.safetensors is cut off.", "Get it again."
)


def type_and_send(desktop: Desktop, text: str) -> None:
    edit = desktop.window.chat_page.composer.edit
    edit.setFocus()
    QTest.keyClicks(edit, text)
    QTest.keyClick(edit, Qt.Key.Key_Return)


def answer_view(desktop: Desktop) -> AnswerView:
    view = list(desktop.window.chat_page.views.values())[-1]
    assert isinstance(view, AnswerView)
    return view


def finish(qtbot: QtBot, desktop: Desktop) -> AnswerView:
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    return answer_view(desktop)


def test_a_prompt_typed_and_sent_is_answered_on_the_page(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    assert desktop.window.chat_page.empty.isVisible()
    type_and_send(desktop, "hello")
    view = finish(qtbot, desktop)
    assert not desktop.window.chat_page.empty.isVisible()
    prompt = next(iter(desktop.window.chat_page.views.values()))
    assert isinstance(prompt, PromptView)
    assert prompt.body.source_text == "hello"
    assert view.body.isVisible()
    assert "17 × 20 = 340" in view.body.toPlainText()
    assert view.body.source_text == DEFAULT_ANSWER
    assert not view.canvas.isVisible()
    assert "tok/s" in view.figures.text()
    assert desktop.window.chat_page.composer.text == ""


def test_the_canvas_shows_the_answer_while_it_is_written(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.03))
    type_and_send(desktop, "hello")
    qtbot.waitUntil(lambda: answer_view(desktop).canvas.isVisible(), timeout=2000)
    canvas = answer_view(desktop).canvas
    qtbot.waitUntil(lambda: canvas.accessibleDescription() != "", timeout=3000)
    assert DEFAULT_ANSWER.startswith(canvas.accessibleDescription())
    assert canvas.height() >= 24


def test_a_suggestion_is_sent_with_one_press(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    button = desktop.window.chat_page.empty.buttons[0]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    finish(qtbot, desktop)
    assert desktop.chat.current.messages[0].text == button.text()


def test_shift_enter_breaks_the_line_and_enter_sends(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    edit = desktop.window.chat_page.composer.edit
    QTest.keyClicks(edit, "one")
    QTest.keyClick(edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    QTest.keyClicks(edit, "two")
    assert desktop.chat.current.messages == ()
    QTest.keyClick(edit, Qt.Key.Key_Enter)
    assert desktop.chat.current.messages[0].text == "one\ntwo"
    finish(qtbot, desktop)


def test_the_composer_grows_to_eight_lines_and_no_further(open_window) -> None:
    edit = open_window().window.chat_page.composer.edit
    heights = []
    for lines in range(1, 12):
        edit.setPlainText("\n".join("x" * lines))
        heights.append(edit.height())
    assert heights[:8] == sorted(set(heights[:8]))
    assert heights[7] == heights[8] == heights[10]


def test_send_is_disabled_with_its_reason_while_there_is_nothing_to_send(open_window) -> None:
    composer = open_window().window.chat_page.composer
    assert not composer.send_button.isEnabled()
    assert composer.send_button.toolTip() == "Type something to send."
    assert composer.send_button.accessibleDescription() == "Type something to send."
    composer.edit.setPlainText("hello")
    assert composer.send_button.isEnabled()


def test_escape_stops_within_one_step(open_window, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript(seconds_per_step=0.04))
    desktop = open_window(loader=loader)
    type_and_send(desktop, "hello")
    qtbot.waitUntil(lambda: loader.engines[0].steps_taken > 9, timeout=3000)
    taken = loader.engines[0].steps_taken
    QTest.keyClick(desktop.window, Qt.Key.Key_Escape)
    view = finish(qtbot, desktop)
    assert loader.engines[0].steps_taken <= taken + 1
    assert view.note.text() == "Stopped by you"
    assert view.body.source_text
    assert DEFAULT_ANSWER.startswith(view.body.source_text)


def test_the_stop_button_stands_where_send_was(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.04))
    composer = desktop.window.chat_page.composer
    assert not composer.stop_button.isVisible()
    type_and_send(desktop, "hello")
    qtbot.waitUntil(composer.stop_button.isVisible, timeout=1000)
    assert not composer.send_button.isVisible()
    qtbot.mouseClick(composer.stop_button, Qt.MouseButton.LeftButton)
    finish(qtbot, desktop)
    assert composer.send_button.isVisible()
    assert desktop.chat.current.messages[-1].reason == "stopped"


def test_new_chat_while_answering_shows_an_empty_page_at_once(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.03))
    type_and_send(desktop, "hello")
    QTest.keyClick(desktop.window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert desktop.window.chat_page.views == {}
    assert desktop.window.chat_page.empty.isVisible()
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=3000)
    assert desktop.window.chat_page.views == {}
    assert desktop.window.chat_page.sidebar.list.model().rowCount() == 1


def test_a_failed_answer_is_a_card_whose_button_tries_again(open_window, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript(fail_at=(1, 0), error=BROKEN))
    desktop = open_window(loader=loader)
    type_and_send(desktop, "hello")
    card = finish(qtbot, desktop).card
    assert card.isVisible()
    assert card.happened.text() == BROKEN.message
    assert card.to_do.text() == BROKEN.action
    assert answer_view(desktop).body.source_text  # the finished block stays
    loader.engines[0].script = FakeScript()
    qtbot.mouseClick(card.button, Qt.MouseButton.LeftButton)
    view = finish(qtbot, desktop)
    assert not view.card.isVisible()
    assert view.body.source_text == DEFAULT_ANSWER


def test_a_prompt_that_is_too_long_goes_back_into_the_composer(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(context=64))
    text = "word " * 100
    desktop.window.chat_page.send(text)
    card = finish(qtbot, desktop).card
    assert "64 at most" in card.happened.text()
    qtbot.mouseClick(card.button, Qt.MouseButton.LeftButton)
    assert desktop.window.chat_page.composer.text == text


def test_a_failed_load_is_a_card_and_the_window_stays_usable(open_window, qtbot: QtBot) -> None:
    loader = FakeLoader(error=TRUNCATED)
    desktop = open_window(loader=loader, loaded=False)
    desktop.engine.load("/some/model")
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.FAILED)
    card = desktop.window.chat_page.load_card
    assert card.isVisible()
    assert card.happened.text() == TRUNCATED.message
    assert desktop.window.status_bar.chip.text() == "model · Failed"
    assert "not usable" in desktop.window.chat_page.composer.hint.text()
    loader.error = None
    assert card.button.text() == "Load the demo model"
    qtbot.mouseClick(card.button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.READY)
    assert not card.isVisible()
    type_and_send(desktop, "hello")
    assert finish(qtbot, desktop).body.source_text == DEFAULT_ANSWER


def test_a_folder_is_opened_by_its_exact_path(
    open_window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = str(tmp_path / "Modelle mit Leerzeichen 模型")
    seen: list[str] = []

    class Loader(FakeLoader):
        def __call__(self, path, progress, stop):
            seen.append(path)
            return super().__call__(path, progress, stop)

    desktop = open_window(loader=Loader(), loaded=False)
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: folder)
    QTest.keyClick(desktop.window, Qt.Key.Key_O, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.READY)
    assert seen == [folder]


def test_conversations_are_there_again_after_a_restart(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    first = open_window()
    type_and_send(first, "remember this")
    finish(qtbot, first)
    first.window.close()
    second = open_window()
    sidebar = second.window.chat_page.sidebar
    assert sidebar.list.model().rowCount() == 1
    rect = sidebar.list.visualRect(sidebar.list.model().index(0, 0))
    qtbot.mouseClick(sidebar.list.viewport(), Qt.MouseButton.LeftButton, pos=rect.center())
    assert answer_view(second).body.source_text == DEFAULT_ANSWER


def test_an_answer_that_was_interrupted_offers_to_ask_again(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    first = open_window(FakeScript(seconds_per_step=0.02))
    type_and_send(first, "remember this")
    cut = cut_off(qtbot, first)
    first.engine.stop()
    qtbot.waitUntil(lambda: not first.engine.busy)
    first.window.close()
    leave(folders, cut)
    second = open_window()
    second.chat.select(second.chat.conversations[0].id)
    view = answer_view(second)
    assert view.message.status is MessageStatus.INTERRUPTED
    assert view.body.source_text
    qtbot.mouseClick(view.card.button, Qt.MouseButton.LeftButton)
    assert finish(qtbot, second).body.source_text == DEFAULT_ANSWER


def test_copy_gives_the_exact_source(open_window, qtbot: QtBot) -> None:
    text = "Code:\n\n```python\nif x:\n\treturn  'a  b'\n```\n\n* item\\_one\n"
    desktop = open_window(FakeScript(default_answer=text))
    type_and_send(desktop, "hello")
    view = finish(qtbot, desktop)
    qtbot.mouseClick(view.copy_button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == text
    QGuiApplication.clipboard().clear()
    view.body.selectAll()
    view.body.copy()
    assert QGuiApplication.clipboard().text() == text


def test_settings_that_cannot_be_saved_are_said_on_the_page_and_still_apply(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    folders.config.write_text("a file where the folder should be")
    desktop = open_window(loaded=False)
    assert not desktop.window.banner.isVisible()
    desktop.window.rail.choose("settings")
    desktop.window.settings_page.appearance["dark"].click()
    assert desktop.theme.dark
    assert desktop.window.banner.isVisible()
    assert "Settings cannot be saved" in desktop.window.banner.label.text()
    qtbot.mouseClick(desktop.window.banner.button, Qt.MouseButton.LeftButton)
    assert not desktop.window.banner.isVisible()
    desktop.window.settings_page.motion.click()
    assert desktop.theme.reduce_motion
    assert not desktop.window.banner.isVisible()  # said once, not at every click


def test_the_view_follows_the_answer_only_from_the_bottom(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(default_answer="line\n" * 60, steps_per_block=2))
    desktop.settings.change(answer_tokens=512)
    page = desktop.window.chat_page
    bar = page.scroll_area.verticalScrollBar()
    type_and_send(desktop, "hello")
    finish(qtbot, desktop)
    qtbot.waitUntil(lambda: bar.maximum() > 0 and bar.value() == bar.maximum())
    bar.setValue(0)
    desktop.chat.send("again")
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    qtbot.wait(50)
    assert bar.value() == 0


def test_the_window_works_at_its_smallest_size(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    desktop.window.resize(960, 640)
    type_and_send(desktop, "hello")
    view = finish(qtbot, desktop)
    qtbot.wait(50)
    assert desktop.window.width() == 960
    right = view.mapTo(desktop.window, view.rect().topRight()).x()
    assert right <= desktop.window.width()
    bar = desktop.window.status_bar
    assert bar.device.mapTo(desktop.window, bar.device.rect().topRight()).x() <= 960


@pytest.mark.parametrize("kept", ["nonsense", 5, b"\0\1", None])
def test_a_damaged_place_of_the_window_does_not_keep_it_shut(
    open_window, tmp_path: Path, kept: object
) -> None:
    desktop = open_window(loaded=False)
    places = QSettings(str(tmp_path / "places.ini"), QSettings.Format.IniFormat)
    places.setValue("geometry", kept)
    window = MainWindow(
        desktop.theme,
        desktop.settings,
        AppFolders(tmp_path, tmp_path, tmp_path),
        desktop.engine,
        desktop.chat,
        desktop.window._meter,
        desktop.models,
        desktop.server,
        places,
    )
    assert (window.width(), window.height()) == (1280, 800)
    window.deleteLater()
