"""The figures of the trace, each with its definition under it.

It knows how a figure is laid out. It refuses to know how one is counted (`engine.trace.numbers`).
A figure that the trace cannot give is an en dash, with the reason in place of the definition.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QKeyEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from app.models.inspector import InspectorModel
from app.ui.theme import Space
from engine.trace.numbers import Figure, numbers_of


class NumbersPanel(QFrame):
    def __init__(self, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self.setAccessibleName(self.tr("Numbers of the trace"))
        self._model = model
        self._counted: object = None
        self.figures: dict[str, QLabel] = {}
        self._notes: dict[str, QLabel] = {}
        self._area = Figures(self)
        self._holder = QWidget()
        self._grid = QGridLayout(self._holder)
        self._grid.setContentsMargins(0, 0, Space.M, 0)
        self._grid.setVerticalSpacing(2)
        self._area.setWidget(self._holder)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.M, Space.XS, Space.S)
        layout.addWidget(self._area)
        model.trace_changed.connect(self.refresh)
        model.grown.connect(self.refresh)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        """Counts anew, while somebody looks."""
        data = self._model.data
        if data is None or not self.isVisible() or self._counted is data:
            return
        self._counted = data
        for figure in numbers_of(data.trace).figures:
            if figure.key not in self.figures:
                self._add(figure)
            value, note = self.figures[figure.key], self._notes[figure.key]
            value.setText(figure.text)
            value.setAccessibleName(f"{figure.name}: {figure.text}")
            note.setText(figure.missing or figure.definition)

    def _add(self, figure: Figure) -> None:
        row = 3 * len(self.figures)
        name = QLabel(figure.name, self._holder)
        value = QLabel(self._holder)
        value.setProperty("tone", "number")
        value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        note = QLabel(self._holder)
        note.setProperty("tone", "small")
        note.setWordWrap(True)
        note.setTextFormat(Qt.TextFormat.PlainText)
        self._grid.addWidget(name, row, 0)
        self._grid.addWidget(value, row, 1, Qt.AlignmentFlag.AlignRight)
        self._grid.addWidget(note, row + 1, 0, 1, 2)
        self._grid.setRowMinimumHeight(row + 2, Space.S)
        self._grid.setRowStretch(row + 3, 0)
        self.figures[figure.key], self._notes[figure.key] = value, note


class Figures(QScrollArea):
    """Scrolls the figures by arrow keys; every other key is the page's."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(self.tr("Numbers, with their definitions"))
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Up, Qt.Key.Key_Down):
            super().keyPressEvent(event)
        else:
            event.ignore()
