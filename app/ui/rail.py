"""The rail on the left edge: one button a page, with its letter (Alt) and its number (Ctrl).

It knows names, icons and which page is shown. Pages that are not built are not listed: the numbers
keep their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QButtonGroup, QFrame, QLabel, QToolButton, QVBoxLayout, QWidget

from app.ui.icons import app_icon, icon
from app.ui.theme import Space, Theme

WIDTH = 72


@dataclass(frozen=True)
class RailEntry:
    """name: as shown, & before its letter. number: Ctrl+number. bottom: at the foot."""

    key: str
    name: str
    icon: str
    number: int
    bottom: bool = False


class Rail(QFrame):
    chosen = Signal(str)  # a RailEntry's key

    def __init__(
        self, theme: Theme, entries: Sequence[RailEntry], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("rail")
        self.setFixedWidth(WIDTH)
        self._theme = theme
        self._entries = tuple(entries)
        self._group = QButtonGroup(self)
        self._group.setExclusive(True)
        self.buttons: dict[str, QToolButton] = {}
        mark = QLabel(self)
        mark.setPixmap(app_icon().pixmap(QSize(32, 32), self.devicePixelRatioF()))
        mark.setAlignment(Qt.AlignmentFlag.AlignCenter)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.S, Space.M, Space.S, Space.M)
        layout.setSpacing(Space.XS)
        layout.addWidget(mark)
        layout.addSpacing(Space.M)
        for entry in [e for e in self._entries if not e.bottom]:
            layout.addWidget(self._button(entry))
        layout.addStretch(1)
        for entry in [e for e in self._entries if e.bottom]:
            layout.addWidget(self._button(entry))
        theme.changed.connect(self._tint)
        self._tint()

    def _button(self, entry: RailEntry) -> QToolButton:
        button = QToolButton(self)
        plain = entry.name.replace("&", "")
        button.setText(entry.name)
        button.setToolTip(f"{plain} (Ctrl+{entry.number})")
        button.setAccessibleName(plain)
        button.setCheckable(True)
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
        button.setIconSize(QSize(20, 20))
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.clicked.connect(lambda: self.choose(entry.key))
        shortcut = QShortcut(QKeySequence(f"Ctrl+{entry.number}"), self)
        shortcut.activated.connect(lambda: self.choose(entry.key))
        self._group.addButton(button)
        self.buttons[entry.key] = button
        return button

    def choose(self, key: str) -> None:
        """Marks a page as the one shown, and says so."""
        self.buttons[key].setChecked(True)
        self._tint()
        self.chosen.emit(key)

    @Slot()
    def _tint(self) -> None:
        colors = self._theme.colors
        for entry in self._entries:
            button = self.buttons[entry.key]
            color = colors.accent if button.isChecked() else colors.muted
            button.setIcon(icon(entry.icon, color, 20))
