"""Where a prompt is typed: grows to eight lines, Enter sends, Shift+Enter breaks the line, Esc
stops.

It knows the text and why it cannot be sent now. It refuses to know what sending does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from PySide6.QtCore import QEvent, QMimeData, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFocusEvent, QKeyEvent, QResizeEvent, QTextOption
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.ui.icons import icon
from app.ui.theme import Size, Space, Theme, ui_font

MOST_LINES = 8
MOST_CHARACTERS = 200_000  # a text field is slow with more, and few models could hold it
UNBROKEN = 20_000  # above it lines break anywhere: looking for words takes the square of the length
_BY_KEYBOARD = (
    Qt.FocusReason.TabFocusReason,
    Qt.FocusReason.BacktabFocusReason,
    Qt.FocusReason.ShortcutFocusReason,
)


class PromptEdit(QPlainTextEdit):
    """A plain text field as tall as its text, up to `MOST_LINES`."""

    send_pressed = Signal()
    refused = Signal(int)  # characters of a text that was too long to be pasted
    focus_changed = Signal(str)  # "keyboard", "pointer" or "" when focus left

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFont(ui_font(Size.BODY))
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(Space.XS)
        self.textChanged.connect(self._grow)
        self._grow()

    def keyPressEvent(self, e: QKeyEvent) -> None:
        enter = e.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not e.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.send_pressed.emit()
            return
        super().keyPressEvent(e)

    def insertFromMimeData(self, source: QMimeData) -> None:
        """What is pasted or dropped: as plain text, whole or not at all."""
        text = source.text()
        if len(self.toPlainText()) + len(text) > MOST_CHARACTERS:
            self.refused.emit(len(text))
            return
        self._choose_wrapping(len(text))
        self.insertPlainText(text)

    def put(self, text: str) -> None:
        """Replaces the text."""
        self.clear()
        self._choose_wrapping(len(text))
        self.setPlainText(text)

    def _choose_wrapping(self, more: int) -> None:
        mode = QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere
        if self.document().characterCount() + more > UNBROKEN:
            mode = QTextOption.WrapMode.WrapAnywhere
        if self.wordWrapMode() != mode:
            self.setWordWrapMode(mode)

    def resizeEvent(self, e: QResizeEvent) -> None:
        super().resizeEvent(e)
        self._grow()

    def focusInEvent(self, e: QFocusEvent) -> None:
        super().focusInEvent(e)
        self.focus_changed.emit("keyboard" if e.reason() in _BY_KEYBOARD else "pointer")

    def focusOutEvent(self, e: QFocusEvent) -> None:
        super().focusOutEvent(e)
        self.focus_changed.emit("")

    @Slot()
    def _grow(self) -> None:
        self._choose_wrapping(0)
        line = self.fontMetrics().lineSpacing()
        lines = max(1, min(MOST_LINES, math.ceil(self.document().size().height())))
        height = lines * line + 2 * Space.XS + 2
        if self.height() != height:
            self.setFixedHeight(height)
        many = self.document().size().height() > MOST_LINES
        self.setVerticalScrollBarPolicy(
            Qt.ScrollBarPolicy.ScrollBarAsNeeded if many else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        )

    def sizeHint(self) -> QSize:
        return QSize(400, self.height())


class Composer(QFrame):
    """The field, the reason line, and one button: Send, or Stop while an answer is written."""

    submitted = Signal(str)
    stop_pressed = Signal()

    def __init__(
        self,
        theme: Theme,
        blocked_reason: Callable[[str], str | None],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("composer")
        self._theme = theme
        self._blocked_reason = blocked_reason
        self._stoppable = ""
        self.edit = PromptEdit(self)
        self.edit.setPlaceholderText(self.tr("Ask something"))
        self.edit.setAccessibleName(self.tr("Prompt"))
        self.edit.setAccessibleDescription(
            self.tr("Enter sends, Shift and Enter breaks the line, Escape stops the answer")
        )
        self.hint = QLabel(self)
        self.hint.setProperty("tone", "small")
        self.hint.setIndent(Space.XS)
        self.send_button = QPushButton(self.tr("Send"), self)
        self.send_button.setProperty("kind", "primary")
        self.stop_button = QPushButton(self.tr("Stop"), self)
        self.stop_button.setToolTip(self.tr("Stop after the current step (Esc)"))
        self.stop_button.setAccessibleName(self.tr("Stop"))
        for button in (self.send_button, self.stop_button):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setIconSize(QSize(16, 16))
        self._lay_out()
        self.edit.textChanged.connect(self.refresh)
        self.edit.send_pressed.connect(self._submit)
        self.edit.refused.connect(self._show_refused)
        self.edit.focus_changed.connect(self._show_focus)
        self.send_button.clicked.connect(self._submit)
        self.stop_button.clicked.connect(self.stop_pressed)
        theme.changed.connect(self._tint)
        self.refresh()

    def _lay_out(self) -> None:
        bottom = QHBoxLayout()
        bottom.setSpacing(Space.S)
        bottom.addWidget(self.hint, 1)
        bottom.addWidget(self.stop_button)
        bottom.addWidget(self.send_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.S, Space.S, Space.S)
        layout.setSpacing(Space.XS)
        layout.addWidget(self.edit)
        layout.addLayout(bottom)

    @property
    def text(self) -> str:
        return self.edit.toPlainText()

    def put(self, text: str) -> None:
        """Replaces the text and puts the cursor at its end."""
        self.edit.put(text)
        cursor = self.edit.textCursor()
        cursor.movePosition(cursor.MoveOperation.End)
        self.edit.setTextCursor(cursor)
        self.edit.setFocus(Qt.FocusReason.OtherFocusReason)

    def set_stoppable(self, what: str) -> None:
        """A sentence on what Esc stops now; "" when there is nothing. The button is then Stop."""
        self._stoppable = what
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        """Asks again whether the text can be sent, and shows why not."""
        reason = self._blocked_reason(self.text)
        self.send_button.setEnabled(reason is None)
        self._tint()
        tip = reason or self.tr("Send (Enter)")
        self.send_button.setToolTip(tip)
        self.send_button.setAccessibleName(self.tr("Send the prompt"))
        self.send_button.setAccessibleDescription(tip)
        self.stop_button.setVisible(bool(self._stoppable))
        self.send_button.setVisible(not self._stoppable)
        # an empty field needs no explanation; whatever would hold any text back does
        holds_back = self._blocked_reason(self.text.strip() or "text")
        keys = self.tr("Enter sends, Shift+Enter breaks the line")
        self.hint.setText(self._stoppable or holds_back or keys)

    @Slot()
    def _submit(self) -> None:
        text = self.text
        if self._blocked_reason(text) is None:
            self.edit.clear()
            self.submitted.emit(text)

    @Slot(int)
    def _show_refused(self, characters: int) -> None:
        self.hint.setText(
            self.tr(
                "Not pasted: {0} characters are too many, a prompt may have {1} in all."
            ).format(f"{characters:,}", f"{MOST_CHARACTERS:,}")
        )

    @Slot(str)
    def _show_focus(self, focused: str) -> None:
        self.setProperty("focused", focused)
        self.style().unpolish(self)
        self.style().polish(self)

    @Slot()
    def _tint(self) -> None:
        colors = self._theme.colors
        ink = colors.on_accent if self.send_button.isEnabled() else colors.muted
        self.send_button.setIcon(icon("send", ink, 16))
        self.stop_button.setIcon(icon("stop", colors.text, 16))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.EnabledChange:
            self.refresh()
