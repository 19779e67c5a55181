"""The peek: beside the chat, the steps of the newest answer, and the way to the inspector.

It knows a small raster, one curve and four numbers of the newest reply. It refuses to know more:
the inspector's page shows the rest.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.models.inspector import InspectorModel, Selection
from app.ui.icons import icon
from app.ui.inspector.curves import CurvesView
from app.ui.inspector.plots import AxisModel
from app.ui.inspector.raster import Raster
from app.ui.inspector.words import number
from app.ui.theme import Space, Theme

WIDTH, CLOSED_WIDTH = 232, 48


class Peek(QFrame):
    inspect_pressed = Signal(str)  # the reply's id

    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        """model: one that always shows the reply being written."""
        super().__init__(parent)
        self.setObjectName("peek")
        self.setAccessibleName(self.tr("Peek at the answer's steps"))
        self._theme = theme
        self._model = model
        self.open = True
        self.toggle = QPushButton(self)
        self.toggle.setProperty("kind", "icon")
        self.toggle.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.toggle.setIconSize(QSize(18, 18))
        self.toggle.clicked.connect(lambda: self.set_open(not self.open))
        axes = AxisModel(model, self)
        self.title = QLabel(self)
        self.title.setProperty("tone", "strong")
        self.title.setWordWrap(True)
        self.raster = Raster(theme, model, axes, self)
        self.raster.setFixedHeight(200)
        self.curve = CurvesView(theme, model, axes, self, keys=("entropy",))
        self.curve.setFixedHeight(84)
        self.figures = QLabel(self)
        self.figures.setProperty("tone", "number")
        self.figures.setToolTip(
            self.tr(
                "TPF: tokens accepted so far per forward pass so far. Steps: forward passes on "
                "this block so far."
            )
        )
        self.button = QPushButton(self.tr("Open inspector"), self)
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.button.setAccessibleName(self.tr("Open this answer in the inspector"))
        self.button.clicked.connect(lambda: self.inspect_pressed.emit(model.reply_id))
        self.views = (self.raster, self.curve, self.figures, self.button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.S, Space.L, Space.S, Space.L)
        layout.setSpacing(Space.S)
        head = QHBoxLayout()
        head.addWidget(self.title, 1)
        head.addWidget(self.toggle, 0, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(head)
        for widget in self.views:
            layout.addWidget(widget)
        layout.addStretch(1)
        model.trace_changed.connect(self._refresh)
        model.grown.connect(self._refresh)
        model.selection_changed.connect(self._on_selection)
        theme.changed.connect(self._refresh)
        self.set_open(True)

    def set_open(self, open_: bool) -> None:
        """Shows all, or only the button that shows it again."""
        self.open = open_
        self.setFixedWidth(WIDTH if open_ else CLOSED_WIDTH)
        self.title.setVisible(open_)
        words = self.tr("Hide the peek") if open_ else self.tr("Peek at the answer's steps")
        self.toggle.setAccessibleName(words)
        self.toggle.setToolTip(words)
        self._model.watch(open_ and self.isVisible())
        self._refresh()

    @Slot(object, object)
    def _on_selection(self, _before: Selection, _now: Selection) -> None:
        self._refresh()

    @Slot()
    def _refresh(self) -> None:
        data, curves = self._model.data, self._model.curves
        name = "block-forward" if self.open else "inspector"
        self.toggle.setIcon(icon(name, self._theme.colors.muted, 18))
        for view in self.views:
            view.setVisible(self.open and data is not None)
        if data is None or curves is None:
            self.title.setText(self.tr("Here you see each block of an answer come into focus."))
            return
        step = self._model.selection.step
        segment = data.segment_at(step)
        self.title.setText(self.tr("Block {0}").format(segment.block + 1))
        self.figures.setText(
            self.tr("TPF {0}   steps {1}").format(
                number(float(curves.tpf[step]), 1), step - segment.first + 1
            )
        )

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._model.watch(self.open)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._model.watch(False)
