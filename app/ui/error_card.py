"""An error as a card: what happened, what to do, one button that does it.

It knows how a `Failure` looks. It refuses to know what the button's action is.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.backend.conversations import Failure
from app.ui.icons import icon
from app.ui.theme import Space, Theme


class ErrorCard(QFrame):
    pressed = Signal(str)  # the action's name

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", "bad")
        self.setAccessibleName(self.tr("Error"))
        self._theme = theme
        self._action = ""
        self._sign = QLabel(self)
        self.happened = _sentence(self, "strong")
        self.to_do = _sentence(self, "muted")
        self.code = QLabel(self)
        self.code.setProperty("tone", "figures")
        self.button = QPushButton(self)
        self.button.setAccessibleName(self.tr("Do what the error asks for"))
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.button.clicked.connect(lambda: self.pressed.emit(self._action))
        words = QVBoxLayout()
        words.setSpacing(Space.XS)
        words.addWidget(self.happened)
        words.addWidget(self.to_do)
        foot = QHBoxLayout()
        foot.setContentsMargins(0, Space.S, 0, 0)
        foot.addWidget(self.button)
        foot.addStretch(1)
        foot.addWidget(self.code)
        words.addLayout(foot)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(Space.L, Space.M, Space.L, Space.M)
        layout.setSpacing(Space.M)
        layout.addWidget(self._sign, 0, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(words, 1)
        theme.changed.connect(self._tint)
        self._tint()

    def show_failure(self, failure: Failure, action: str, label: str) -> None:
        self._action = action
        self.happened.setText(failure.message)
        self.to_do.setText(failure.action)
        self.code.setText(failure.code)
        self.button.setText(label)
        self.button.setAccessibleName(label)
        self.setAccessibleDescription(f"{failure.message} {failure.action}")

    @Slot()
    def _tint(self) -> None:
        size = QSize(20, 20)
        self._sign.setPixmap(icon("warning", self._theme.colors.bad, 20).pixmap(size))


def _sentence(parent: QWidget, tone: str) -> QLabel:
    label = QLabel(parent)
    label.setProperty("tone", tone)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
