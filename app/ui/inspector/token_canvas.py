"""The inspector's canvas: all tokens of a reply after the selected step, coloured by one number.

It knows how a cell is drawn (ground by level, mark by state, a line under what this step changed)
and how mouse and keys choose a position. It refuses to know what the number means and where the
trace is from. A step repaints the blocks it touches, nothing else.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QFrame, QScrollArea, QSizePolicy, QToolTip, QWidget

from app.models.inspector import InspectorModel, Selection
from app.models.inspector_data import CanvasState
from app.ui.inspector.inks import draw_glyph, inks_of
from app.ui.inspector.token_layout import CELL, ELLIPSIS, PADDING, TokenLayout, shown
from app.ui.inspector.words import moment_sentence
from app.ui.theme import Size, Space, Theme, mono_font
from app.ui.tips import as_typed
from engine.types import TokenState

BASELINE = 21.0  # px below a cell's top


class TokenCanvas(QWidget):
    """Height follows width. Arrow keys move over positions; , and . over steps."""

    place_wanted = Signal(QRect)  # of what should be in sight

    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("tokenCanvas")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(self.tr("Tokens after the selected step"))
        self._theme = theme
        self._model = model
        self._plain = mono_font(Size.BASE)
        self._draft = mono_font(Size.BASE, italic=True)
        self._metrics = QFontMetricsF(self._plain)
        self._widths: dict[str, float] = {}
        self._cut: dict[tuple[str, float], str] = {}
        self.layout_ = TokenLayout(self._measure)
        self._state: CanvasState | None = None
        self._inks = inks_of(theme.colors, "cividis")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        model.trace_changed.connect(self._show_trace)
        model.grown.connect(self._grow)
        model.selection_changed.connect(self._on_selection)
        model.fill_changed.connect(self._tint)
        theme.changed.connect(self._tint)
        self._tint()

    # what is drawn

    @Slot()
    def _tint(self) -> None:
        levels = self._model.levels
        self._inks = inks_of(self._theme.colors, levels.scale.ramp if levels else "cividis")
        self.update()

    @Slot()
    def _show_trace(self) -> None:
        self._cut.clear()
        self._flow()
        self._tint()
        self._want_place()

    @Slot()
    def _grow(self) -> None:
        """New steps of the same reply: what stands before them keeps its place."""
        first = self._flow()
        boxes = self.layout_
        top = boxes.y[first] if first < len(boxes.y) else boxes.height
        data = self._model.data
        if data is not None:
            top = min(top, boxes.y[data.segments[-1].begin])
        self.update(0, math.floor(top), self.width(), self.height())

    def _flow(self) -> int:
        data = self._model.data
        if data is None:
            self._state = None
            self.layout_.flow((), self.width())
            return 0
        last = data.canvas(data.steps - 1)
        ids = data.trace.ids[last.row, last.column].tolist()
        first = self.layout_.flow([data.text(i) for i in ids], self.width())
        self._state = data.canvas(self._model.selection.step)
        height = math.ceil(self.layout_.height)
        if height != self.height():
            self.setFixedHeight(height)
        return first

    def _measure(self, text: str) -> float:
        width = self._widths.get(text)
        if width is None:
            width = self._widths[text] = self._metrics.horizontalAdvance(text)
        return width

    def _fitted(self, text: str, width: float) -> str:
        """As much of the text as fits."""
        if self._measure(text) <= width:
            return text
        cut = self._cut.get((text, width))
        if cut is None:
            keep = len(text)
            while keep and self._measure(text[:keep] + ELLIPSIS) > width:
                keep -= 1
            cut = self._cut[text, width] = text[:keep] + ELLIPSIS
        return cut

    def sizeHint(self) -> QSize:
        return QSize(Space.XXL * 10, math.ceil(self.layout_.height))

    def resizeEvent(self, event: QResizeEvent) -> None:
        if event.size().width() != event.oldSize().width():
            self._flow()
            self.update()
            self._want_place()
        super().resizeEvent(event)

    # what changes

    @Slot(object, object)
    def _on_selection(self, before: Selection, now: Selection) -> None:
        data = self._model.data
        if data is None:
            return
        if now.step != before.step:
            self._state = data.canvas(now.step)
            ends = data.segment_at(before.step).begin, data.segment_at(now.step).begin
            self._repaint(min(ends), max(ends) + data.length - 1)
        if now.position != before.position:
            self._repaint(before.position, before.position)
            self._repaint(now.position, now.position)
        if now.position != before.position or not self._same_block(before, now):
            self._want_place()
        self.setAccessibleDescription(moment_sentence(self._model))

    def _same_block(self, before: Selection, now: Selection) -> bool:
        data = self._model.data
        return data is not None and data.segment_at(before.step) == data.segment_at(now.step)

    def _repaint(self, first: int, last: int) -> None:
        boxes = self.layout_
        last = min(last, len(boxes.y) - 1)
        if first > last:
            return
        top, bottom = boxes.y[first] - 4, boxes.y[last] + CELL + 4
        self.update(0, math.floor(top), self.width(), math.ceil(bottom - top))

    def _want_place(self) -> None:
        """Asks for the selected position to be in sight once the layout has settled."""
        QTimer.singleShot(0, self, self._tell_place)

    @Slot()
    def _tell_place(self) -> None:
        position = self._model.selection.position
        data = self._model.data
        if data is None or position >= len(self.layout_.y):
            return
        block = data.segment_at(self._model.selection.step)
        if not block.begin <= position < block.begin + data.length and not self.hasFocus():
            position = block.begin  # where something happens
        self.place_wanted.emit(self._box(position).toAlignedRect())

    def _box(self, position: int) -> QRectF:
        boxes = self.layout_
        return QRectF(boxes.x[position], boxes.y[position], boxes.width[position], CELL)

    # painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        shown_range = self.layout_.between(event.rect().top(), event.rect().bottom() + 1)
        self._paint_cells(painter, shown_range)
        selected = self._model.selection.position
        if self._model.data is not None and selected in shown_range:
            self._paint_selected(painter, self._box(selected))
        painter.end()

    def _paint_cells(self, painter: QPainter, positions: range) -> None:
        data, levels, state = self._model.data, self._model.levels, self._state
        if data is None or levels is None or state is None or not positions:
            return
        part = slice(positions.start, positions.stop)
        row, column = state.row[part], state.column[part]
        level = levels.of(state.there[part], row, column).tolist()
        there = state.there[part].tolist()
        ids = data.trace.ids[row, column].tolist()
        states = data.trace.state[row, column].tolist()
        changed = self._changed(positions)
        for index, position in enumerate(positions):
            box = self._box(position)
            self._inks.fill(painter, box, level[index])
            if not there[index]:
                continue
            ink = self._inks.text_on(level[index])
            cell = TokenState(states[index])
            text = "" if data.hides(cell) else shown(data.text(ids[index]))
            self._paint_token(painter, box, cell, text, ink)
            if changed[index]:
                painter.fillRect(QRectF(box.x(), box.bottom() - 2, box.width(), 2), ink)

    def _changed(self, positions: range) -> list[bool]:
        """Whether the selected step itself accepted, edited or took back each position."""
        data = self._model.data
        step = self._model.selection.step
        if data is None:
            return []
        begin = data.segment_at(step).begin
        changed = data.newly_settled[step] | data.edited[step] | data.remasked[step]
        within = range(begin, begin + data.length)
        return [p in within and bool(changed[p - begin]) for p in positions]

    def _paint_token(
        self, painter: QPainter, box: QRectF, state: TokenState, text: str, ink: QColor
    ) -> None:
        draw_glyph(painter, state, box.x() + 3, box.y() + 3, ink)
        if not text:
            return
        painter.setFont(self._draft if state == TokenState.DRAFT else self._plain)
        painter.setPen(ink)
        fitted = self._fitted(text, box.width() - 2 * PADDING + 1)
        painter.drawText(QPointF(box.x() + PADDING, box.y() + BASELINE), fitted)
        if state == TokenState.MASKED:  # noise, not a guess
            painter.setPen(QPen(ink, 1, Qt.PenStyle.DotLine))
            y = box.y() + BASELINE + 3.5
            painter.drawLine(QPointF(box.x() + PADDING, y), QPointF(box.right() - PADDING, y))

    def _paint_selected(self, painter: QPainter, box: QRectF) -> None:
        """A double line, so that it is seen on any ground; thicker with keyboard focus."""
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(self._inks.ground, 1))
        painter.drawRect(box.adjusted(1.5, 1.5, -1.5, -1.5))
        painter.setPen(QPen(self._inks.accent, 3 if self.hasFocus() else 2))
        painter.drawRect(box)

    # choosing a position

    def mousePressEvent(self, event: QMouseEvent) -> None:
        position = self.layout_.at(event.position().x(), event.position().y())
        if event.button() == Qt.MouseButton.LeftButton and position is not None:
            self._model.choose_position(position)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            position = self.layout_.at(event.pos().x(), event.pos().y())
            if position is None:
                QToolTip.hideText()
            else:
                text = moment_sentence(self._model, position)
                QToolTip.showText(event.globalPos(), as_typed(text), self)
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        position = self._model.selection.position
        key = Qt.Key(event.key())
        if self._model.data is None or event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().keyPressEvent(event)
        elif key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self._model.choose_position(position + (1 if key == Qt.Key.Key_Right else -1))
        elif key in (Qt.Key.Key_Up, Qt.Key.Key_Down):
            beside = self.layout_.beside(position, 1 if key == Qt.Key.Key_Down else -1)
            self._model.choose_position(beside)
        elif key in (Qt.Key.Key_Home, Qt.Key.Key_End):
            last = self._model.data.positions - 1
            self._model.choose_position(0 if key == Qt.Key.Key_Home else last)
        else:
            super().keyPressEvent(event)


class CanvasArea(QScrollArea):
    """The canvas in its viewport; what is selected stays in sight."""

    def __init__(self, canvas: TokenCanvas, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        holder = QWidget()
        holder.setObjectName("column")
        self.canvas = canvas
        canvas.setParent(holder)
        self._holder = holder
        self.setWidget(holder)
        canvas.place_wanted.connect(self._show_place)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """The page's keys are the page's: what is selected decides what is in sight."""
        event.ignore()

    def _fit(self) -> None:
        self.canvas.resize(self.viewport().width() - 2 * Space.M, self.canvas.height())
        self.canvas.move(Space.M, Space.S)
        self._holder.setMinimumHeight(self.canvas.height() + 2 * Space.S)

    @Slot(QRect)
    def _show_place(self, place: QRect) -> None:
        self._fit()
        center = self.canvas.mapTo(self._holder, place.center())
        self.ensureVisible(center.x(), center.y(), 0, place.height() + Space.M)
