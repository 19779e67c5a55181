"""One of a few, as a row of buttons with a name before them.

It knows keys and words. It refuses to know what is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QLabel, QPushButton, QWidget

from app.ui.theme import Space


class Choice(QWidget):
    chosen = Signal(str)  # by a person

    def __init__(
        self, name: str, options: Sequence[tuple[str, str, str]], parent: QWidget | None = None
    ) -> None:
        """options: (key, name, what it means); the first is marked."""
        super().__init__(parent)
        self.setAccessibleName(name)
        label = QLabel(name, self)
        label.setProperty("tone", "small")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        layout.addWidget(label)
        layout.addSpacing(Space.XS)
        self._group = QButtonGroup(self)
        self.buttons: dict[str, QPushButton] = {}
        for key, text, meaning in options:
            button = QPushButton(text, self)
            button.setProperty("kind", "tab")
            button.setProperty("dense", "true")
            button.setCheckable(True)
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setAccessibleName(f"{name}: {text}")
            button.setToolTip(meaning)
            button.clicked.connect(lambda _=False, k=key: self.chosen.emit(k))
            self._group.addButton(button)
            self.buttons[key] = button
            layout.addWidget(button)
        self.mark(options[0][0])

    def mark(self, key: str) -> None:
        """Shows `key` as chosen, without saying so."""
        self.buttons[key].setChecked(True)
