"""Everything can be done by keyboard, and a screen reader can name every control."""

from __future__ import annotations

import sys

import pytest
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QWidget
from pytestqt.qtbot import QtBot

from engine.fake import DEFAULT_ANSWER, FakeScript


def focused() -> QWidget:
    widget = QApplication.focusWidget()
    assert widget is not None
    return widget


def focusable(window: QWidget) -> list[QWidget]:
    return [
        widget
        for widget in window.findChildren(QWidget)
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        and not isinstance(widget, QMenu | QLineEdit)
        and widget.focusProxy() is None
    ]


def test_every_focusable_control_has_a_name(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    desktop.chat.send("hello")
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    controls = focusable(desktop.window)
    assert len(controls) > 12
    nameless = [
        f"{type(w).__name__} {w.objectName()}" for w in controls if not w.accessibleName().strip()
    ]
    assert nameless == []


def test_tab_reaches_every_visible_control_and_comes_round(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    desktop.chat.send("hello")
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    desktop.window.chat_page.composer.edit.setPlainText("x")  # Send can be reached
    expected = {w for w in focusable(desktop.window) if w.isVisible() and w.isEnabled()}
    # of an exclusive group Tab reaches the checked one, and the arrow keys the others
    expected -= {b for b in desktop.window.rail.buttons.values() if not b.isChecked()}
    seen: set[QWidget] = set()
    for _ in range(2 * len(expected) + 4):
        QTest.keyClick(focused(), Qt.Key.Key_Tab)
        seen.add(focused())
    assert expected <= seen


def test_a_conversation_can_be_held_without_a_mouse(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.005))
    window = desktop.window
    assert QApplication.focusWidget() is window.chat_page.composer.edit
    QTest.keyClicks(focused(), "hello")
    QTest.keyClick(focused(), Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    assert desktop.chat.current.messages[-1].text == DEFAULT_ANSWER
    QTest.keyClick(window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert desktop.chat.current.messages == ()
    assert QApplication.focusWidget() is window.chat_page.composer.edit
    window.chat_page.sidebar.list.setFocus()
    QTest.keyClick(window.chat_page.sidebar.list, Qt.Key.Key_Down)
    QTest.keyClick(window.chat_page.sidebar.list, Qt.Key.Key_Return)
    assert desktop.chat.current.title == "hello"


@pytest.mark.parametrize(
    ("key", "page"),
    [(Qt.Key.Key_3, "models_page"), (Qt.Key.Key_5, "settings_page"), (Qt.Key.Key_1, "chat_page")],
)
def test_pages_are_reached_by_their_numbers(open_window, key: Qt.Key, page: str) -> None:
    window = open_window().window
    QTest.keyClick(window, key, Qt.KeyboardModifier.ControlModifier)
    assert getattr(window, page).isVisible()


def test_the_focus_ring_shows_for_keyboard_focus(open_window) -> None:
    window = open_window().window
    composer = window.chat_page.composer
    composer.edit.clearFocus()
    composer.edit.setFocus(Qt.FocusReason.TabFocusReason)
    assert composer.property("focused") == "keyboard"
    composer.edit.clearFocus()
    composer.edit.setFocus(Qt.FocusReason.MouseFocusReason)
    assert composer.property("focused") == "pointer"


def test_controls_are_at_least_32_pixels_high(open_window) -> None:
    window = open_window().window
    page = window.chat_page
    for control in (page.sidebar.new_button, page.composer.send_button, *page.empty.buttons):
        assert control.height() >= 32, control.accessibleName()
    for button in window.rail.buttons.values():
        assert button.height() >= 32


def test_emitting_a_signal_does_not_lose_references_to_true(qapp: QApplication) -> None:
    """PySide6 6.12.0 on Python 3.11 loses one a time until the process dies."""

    class Sender(QObject):
        sent = Signal(bool)

    sender, seen = Sender(), []
    sender.sent.connect(seen.append)
    before = sys.getrefcount(True)
    for _ in range(1000):
        sender.sent.emit(True)
    seen.clear()
    assert sys.getrefcount(True) >= before - 10
