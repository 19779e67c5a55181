"""Why this token: how much each earlier token adds to its confidence, as a strip and in numbers.

It knows the question's controls, the strip and the list. It refuses to know how a step is run
again. The scale is fixed, from -1 to 1, and printed; a sign is drawn in each cell that matters, so
that its colour is not the only cue.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal, Slot
from PySide6.QtGui import (
    QColor,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QToolTip, QVBoxLayout, QWidget

from app.models.inspector import InspectorModel
from app.models.inspector_why import WhyModel
from app.ui.inspector.choice import Choice
from app.ui.inspector.numbers_panel import Figures
from app.ui.inspector.words import quoted, share
from app.ui.theme import Size, Space, Theme, ink_on, mono_font, ramp_color
from app.ui.tips import as_typed
from engine.trace.attribution import Attribution, Reach

CELL, GAP = 20, 2
SCALE = 28  # px below the cells, for the scale
MATTERS = 0.05  # an effect from which on a cell shows its sign
LISTED = 8


class WhyPanel(QFrame):
    def __init__(
        self, theme: Theme, model: InspectorModel, why: WhyModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self.setAccessibleName(self.tr("Why this token"))
        self._model = model
        self._why = why
        self._reach: Reach = "near"
        self.head = _label(self, "strong")
        self.reach = Choice(
            self.tr("Look at"),
            (
                ("block", self.tr("Block"), self.tr("Tokens of the step's own block")),
                ("near", self.tr("Near"), self.tr("Its own block, and the one before")),
                ("reply", self.tr("Reply"), self.tr("All tokens of the reply so far: slower")),
            ),
            self,
        )
        self.reach.mark(self._reach)
        self.reach.chosen.connect(self._choose_reach)
        self.button = QPushButton(self.tr("Ask the model"), self)
        self.button.setAccessibleName(self.tr("Ask the model"))
        self.button.setProperty("kind", "primary")
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.button.clicked.connect(self._ask)
        self.reason = _label(self, "small")
        self.summary = _label(self, "")
        self.strip = EffectStrip(theme, model, self)
        self.strip.pressed.connect(lambda position: model.select(position=position))
        self.list = _label(self, "number")
        self.list.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.M, Space.M, Space.S)
        layout.setSpacing(Space.S)
        for widget in (self.head, self.reach, self.button, self.reason, self.summary):
            layout.addWidget(widget)
        self._found = QWidget()
        inner = QVBoxLayout(self._found)
        inner.setContentsMargins(0, 0, Space.S, 0)
        inner.addWidget(self.strip)
        inner.addWidget(self.list)
        inner.addStretch(1)
        self.area = Figures(self)
        self.area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.area.setWidget(self._found)
        layout.addWidget(self.area, 1)
        why.changed.connect(self.refresh)
        model.trace_changed.connect(self.refresh)
        model.grown.connect(self.refresh)
        model.selection_changed.connect(self._on_selection)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    @Slot(object, object)
    def _on_selection(self, _before: object, _now: object) -> None:
        self.refresh()

    @Slot(str)
    def _choose_reach(self, reach: Reach) -> None:
        self._reach = reach

    @Slot()
    def _ask(self) -> None:
        self._why.ask(self._reach)

    @Slot()
    def refresh(self) -> None:
        data = self._model.data
        if data is None or not self.isVisible():
            return
        moment, selection = self._model.moment, self._model.selection
        token = quoted(data, moment.token) if moment else self.tr("a token")
        self.head.setText(
            self.tr("What {0} at position {1} rests on in step {2}").format(
                token, data.first_position + selection.position, selection.step + 1
            )
        )
        reason = self._why.blocked_reason()
        self.button.setEnabled(reason is None)
        if self._why.busy:
            reason = self.tr("Running the step again without each token… Esc stops it.")
        self.reason.setText(
            reason
            or self.tr(
                "Masks each token accepted before this step, runs the step again without it, and "
                "shows how the confidence changes."
            )
        )
        self.button.setAccessibleDescription(self.reason.text())
        found = self._why.current
        self.strip.show_result(found)
        self.summary.setVisible(found is not None)
        self._found.setVisible(found is not None)
        if found is not None:
            self.summary.setText(self._summary(found))
            self.list.setText(self._listed(found))

    def _summary(self, found: Attribution) -> str:
        data = self._model.data
        if data is None:
            return ""
        said = self.tr("{0} at position {1} had confidence {2} in step {3}.").format(
            quoted(data, found.token), found.position, share(found.confidence), found.step + 1
        )
        if not len(found.positions):
            return said + " " + self.tr("Nothing had been accepted before it here.")
        return said + " " + self.tr("Each cell is an earlier token, in order: what it adds.")

    def _listed(self, found: Attribution) -> str:
        """The strongest effects, strongest first."""
        data = self._model.data
        if data is None:
            return ""
        effect = found.effect
        order = sorted(range(len(effect)), key=lambda i: -abs(float(effect[i])))[:LISTED]
        return "\n".join(
            f"{effect[i]:+.3f}  {quoted(data, int(found.tokens[i]))} "
            + self.tr("at {0}").format(int(found.positions[i]))
            for i in order
        )


class EffectStrip(QWidget):
    """A cell a token, in order. Left and right move over them; a press selects the position."""

    pressed = Signal(int)  # position, counted from the reply's first block

    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(self.tr("Effect of each earlier token"))
        self._theme = theme
        self._model = model
        self._found: Attribution | None = None
        self.at = 0
        theme.changed.connect(self.update)

    def show_result(self, found: Attribution | None) -> None:
        if found is not self._found:
            self._found, self.at = found, 0
            self._fit()
            self._say()
        self.update()

    def _count(self) -> int:
        return len(self._found.positions) if self._found else 0

    def _columns(self) -> int:
        return max(1, self.width() // (CELL + GAP))

    def _fit(self) -> None:
        rows = -(-self._count() // self._columns())
        self.setFixedHeight(rows * (CELL + GAP) + SCALE)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def _box(self, index: int) -> QRectF:
        row, column = divmod(index, self._columns())
        return QRectF(column * (CELL + GAP), row * (CELL + GAP), CELL, CELL)

    def paintEvent(self, _event: QPaintEvent) -> None:
        found = self._found
        if found is None:
            return
        painter = QPainter(self)
        painter.setFont(mono_font(Size.SMALL))
        for index, effect in enumerate(found.effect.tolist()):
            box, fill = self._box(index), ramp_color("effect", (effect + 1) / 2)
            painter.fillRect(box, fill)
            if abs(effect) >= MATTERS:
                painter.setPen(QColor(ink_on(fill)))
                painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), "+" if effect > 0 else "−")
        if self.hasFocus() and self._count():
            painter.setPen(QPen(QColor(self._theme.colors.accent), 2))
            painter.drawRect(self._box(self.at).adjusted(0, 0, -1, -1))
        self._paint_scale(painter)
        painter.end()

    def _paint_scale(self, painter: QPainter) -> None:
        top, width = self.height() - SCALE + 6, 160
        for x in range(width):
            painter.fillRect(QRectF(x, top, 1, 8), ramp_color("effect", x / (width - 1)))
        painter.setPen(QColor(self._theme.colors.muted))
        for part, text in ((0.0, "−1"), (0.5, "0"), (1.0, "+1")):
            wide = painter.fontMetrics().horizontalAdvance(text)
            painter.drawText(QPointF(min(part * width, width - wide), top + 20), text)

    def _words(self, index: int) -> str:
        found, data = self._found, self._model.data
        if found is None or data is None or not 0 <= index < self._count():
            return ""
        return self.tr("{0} at {1}: {2}").format(
            quoted(data, int(found.tokens[index])),
            int(found.positions[index]),
            f"{float(found.effect[index]):+.3f}",
        )

    def _say(self) -> None:
        self.setAccessibleDescription(self._words(self.at))

    def _under(self, x: float, y: float) -> int | None:
        for index in range(self._count()):
            if self._box(index).contains(QPointF(x, y)):
                return index
        return None

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            index = self._under(event.pos().x(), event.pos().y())
            words = "" if index is None else self._words(index)
            QToolTip.showText(event.globalPos(), as_typed(words), self)
            return True
        return super().event(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self._under(event.position().x(), event.position().y())
        if event.button() == Qt.MouseButton.LeftButton and index is not None:
            self._press(index)

    def _press(self, index: int) -> None:
        data, found = self._model.data, self._found
        if data is not None and found is not None and index < self._count():
            position = int(found.positions[index]) - data.first_position
            if 0 <= position < data.positions:
                self.pressed.emit(position)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        by = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._press(self.at)
        elif by is None or not self._count():
            super().keyPressEvent(event)
        else:
            self.at = max(0, min(self._count() - 1, self.at + by))
            self._say()
            self.update()


def _label(parent: QWidget, tone: str) -> QLabel:
    label = QLabel(parent)
    label.setProperty("tone", tone)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label
