"""Final text is drawn as Markdown, its lines stay lines, and copying gives it back unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QTextCursor, QTextDocument
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.ui.markdown_source import for_display
from app.ui.markdown_view import MessageText
from app.ui.theme import MONO_FAMILY, Theme

WORKING = "360 + 18 = 378\n378 * 2: 300 * 2 = 600, 78 * 2 = 156\nAnswer: 756"
JSON = '{\n  "event": "match",\n  "date": {\n    "day": 4\n  }\n}'
RICH = (
    "# Title\n\nSome *words* with `code_here`.\n\n```python\ndef f(x):\n    return x * 2\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n- two\n\nEnd."
)


@pytest.fixture
def view(qapp: QApplication, qtbot: QtBot) -> MessageText:
    text = MessageText(Theme(qapp, "light"), "Answer")
    qtbot.addWidget(text)
    text.resize(600, 100)
    text.show()
    return text


def copied(view: MessageText) -> str:
    view.copy()
    return QGuiApplication.clipboard().text()


@pytest.mark.parametrize("source", [WORKING, JSON])
def test_lines_stay_lines_and_indentation_stays(view: MessageText, source: str) -> None:
    view.show_markdown(source)
    assert view.toPlainText() == source


def test_markdown_is_rendered(view: MessageText) -> None:
    view.show_markdown(RICH)
    shown = view.toPlainText()
    assert "# Title" not in shown
    assert "*words*" not in shown
    assert "```" not in shown
    assert "def f(x):\n    return x * 2" in shown
    assert "|" not in shown


def test_code_is_in_the_code_font_and_on_one_ground(view: MessageText) -> None:
    view.show_markdown(RICH)
    document = view.document()
    cursor = document.find("return")
    assert cursor.charFormat().fontFamilies() == [MONO_FAMILY]
    frame = cursor.currentFrame()
    assert frame is not document.rootFrame()
    assert frame.frameFormat().background().color() == QColor(view._theme.colors.surface)


def test_the_first_header_cell_after_code_is_like_the_others(view: MessageText) -> None:
    """Qt's Markdown reader puts an empty line into it."""
    view.show_markdown("```\nx\n```\n\n| call | result |\n|---|---|\n| 1 | 2 |")
    table = view.document().find("call").currentTable()
    heads = [table.cellAt(0, column) for column in range(2)]
    assert [_text(cell) for cell in heads] == ["call", "result"]
    assert {cell.firstCursorPosition().block().text() for cell in heads} == {"call", "result"}


def _text(cell) -> str:
    cursor = cell.firstCursorPosition()
    cursor.setPosition(cell.lastCursorPosition().position(), QTextCursor.MoveMode.KeepAnchor)
    return cursor.selectedText()


@pytest.mark.parametrize("source", [WORKING, JSON, RICH, "  spaced\u00a0out  \n", "a\n\n\n\nb"])
def test_copying_everything_gives_the_exact_source(view: MessageText, source: str) -> None:
    view.show_markdown(source)
    view.selectAll()
    assert copied(view) == source


def test_copying_a_part_gives_its_characters_unchanged(view: MessageText) -> None:
    view.show_markdown("Take this:\n\n```\nif x:\n\ty\u00a0= 1  \n    z = 2\n```\n\nDone.")
    cursor = view.document().find("if x:")
    start = cursor.selectionStart()
    end = view.document().find("z = 2").selectionEnd()
    cursor.setPosition(start)
    cursor.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
    view.setTextCursor(cursor)
    assert copied(view) == "if x:\n\ty\u00a0= 1  \n    z = 2"


def test_the_copy_key_and_the_menu_copy_the_source_too(view: MessageText, qtbot: QtBot) -> None:
    view.show_markdown(RICH)
    view.selectAll()
    QGuiApplication.clipboard().clear()
    QTest.keyClick(view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == RICH
    QGuiApplication.clipboard().clear()
    menu = view.make_menu()
    menu.actions()[0].trigger()
    assert QGuiApplication.clipboard().text() == RICH
    menu.deleteLater()


def test_nothing_is_copied_without_a_selection(view: MessageText) -> None:
    view.show_markdown(RICH)
    QGuiApplication.clipboard().setText("before")
    view.copy()
    assert QGuiApplication.clipboard().text() == "before"
    assert not view.make_menu().actions()[0].isEnabled()


def test_a_process_that_copied_ends_cleanly(repo_root: Path) -> None:
    """What is on the clipboard at the end must not be freed twice."""
    code = (
        "from app.desktop import make_application\n"
        "from app.ui.markdown_view import MessageText\n"
        "from app.ui.theme import Theme\n"
        "app = make_application()\n"
        "view = MessageText(Theme(app), 'Answer')\n"
        "view.show_markdown('*text*')\n"
        "view.selectAll()\n"
        "view.copy()\n"
        "print(app.clipboard().text())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repo_root,
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (0, "*text*\n")


def test_copying_brings_no_formatting_along(view: MessageText) -> None:
    view.show_markdown(RICH)
    view.selectAll()
    view.copy()
    assert QGuiApplication.clipboard().mimeData().formats() == ["text/plain"]


def test_html_is_text_and_images_are_not_fetched(view: MessageText) -> None:
    view.show_markdown("<b>bold</b> <img src='file:///etc/hostname'>\n\n![x](file:///etc/hostname)")
    assert "<b>bold</b>" in view.toPlainText()
    kind = QTextDocument.ResourceType.ImageResource.value
    assert view.loadResource(kind, "file:///etc/hostname") is None


def test_a_prompt_is_never_read_as_markdown(view: MessageText) -> None:
    view.show_plain("# not a *title*\n<b>x</b>")
    assert view.toPlainText() == "# not a *title*\n<b>x</b>"


def test_the_view_is_as_tall_as_its_text(view: MessageText) -> None:
    view.show_markdown("one line")
    one = view.height()
    view.show_markdown("a paragraph\n\n" * 10)
    assert view.height() > 5 * one
    assert view.verticalScrollBar().maximum() == 0


def test_a_new_theme_draws_the_text_again_and_keeps_its_source(view: MessageText) -> None:
    view.show_markdown(RICH)
    view._theme.choose("dark")
    frame = view.document().find("return").currentFrame()
    assert frame.frameFormat().background().color() == QColor(view._theme.colors.surface)
    assert view.source_text == RICH
    view._theme.choose("light")


@pytest.mark.parametrize(
    "source",
    [
        RICH,
        "1. one\n2. two",
        "> quote\n> more",
        "    indented code\n    more code",
        "a | b\n--|--\n1 | 2",
        "Heading\n=======\n\ntext",
    ],
)
def test_what_is_not_a_paragraph_is_left_as_it_is(source: str) -> None:
    assert for_display(source) == source
