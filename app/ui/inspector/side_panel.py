"""The panels at the right of the page, one at a time, chosen by a row of tabs.

It knows tabs. It refuses to know what a panel shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QHBoxLayout,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.ui.theme import Space

WIDTH = 328


class SidePanel(QWidget):
    chosen = Signal(str)

    def __init__(
        self, panels: Sequence[tuple[str, str, QWidget]], parent: QWidget | None = None
    ) -> None:
        """panels: (key, name, what it shows); the first is shown first."""
        super().__init__(parent)
        self.setFixedWidth(WIDTH + Space.M)
        self.panels = {key: panel for key, _, panel in panels}
        self.tabs: dict[str, QPushButton] = {}
        self._group = QButtonGroup(self)
        self._stack = QStackedWidget(self)
        row = QHBoxLayout()
        row.setSpacing(0)
        for key, name, panel in panels:
            tab = QPushButton(name, self)
            tab.setProperty("kind", "tab")
            tab.setProperty("dense", "true")
            tab.setCheckable(True)
            tab.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            tab.setAccessibleName(self.tr("Panel: {0}").format(name))
            tab.clicked.connect(lambda _=False, k=key: self.choose(k))
            self._group.addButton(tab)
            self.tabs[key] = tab
            row.addWidget(tab)
            self._stack.addWidget(panel)
        row.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, Space.M, Space.S)
        layout.setSpacing(Space.XS)
        layout.addLayout(row)
        layout.addWidget(self._stack, 1)
        self.choose(panels[0][0])

    def choose(self, key: str) -> None:
        self.tabs[key].setChecked(True)
        self._stack.setCurrentWidget(self.panels[key])
        self.chosen.emit(key)
