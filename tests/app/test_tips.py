"""A tooltip shows what was typed, character by character, and never as HTML."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextDocument
from PySide6.QtWidgets import QApplication, QListView
from pytestqt.qtbot import QtBot

from app.ui.tips import LONGEST, as_typed


@pytest.mark.parametrize(
    "text", ["<b>bold</b>", '<img src="file:///etc/hostname">', "a < b & c\n  <i>d</i>", "<h1>x"]
)
def test_html_is_shown_as_its_characters(qapp: QApplication, text: str) -> None:
    shown = QTextDocument()
    shown.setHtml(as_typed(text))
    assert shown.toPlainText() == text


def test_plain_words_stay_as_they_are_and_a_book_is_shortened() -> None:
    assert as_typed("Two\n  and two") == "Two\n  and two"
    assert as_typed("word " * 10_000).endswith("…")
    assert len(as_typed("x" * 10_000)) == LONGEST + 1


def test_the_list_of_conversations_shows_a_prompt_that_is_html_as_typed(
    open_window, qtbot: QtBot
) -> None:
    desktop = open_window()
    prompt = "<h1>Title</h1> in HTML?"
    desktop.chat.send(prompt)
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    view: QListView = desktop.window.chat_page.sidebar.list
    index = view.model().index(0, 0)
    assert index.data() == prompt
    assert "&lt;h1&gt;" in index.data(Qt.ItemDataRole.ToolTipRole)
