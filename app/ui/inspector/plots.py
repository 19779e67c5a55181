"""What the raster, the curves and the timeline have in common: one step axis, one playhead.

It knows the axis in force, who must hear of a change, and how a mouse and keys move along it. It
refuses to know what a plot draws. A plot keeps its picture; moving the selection repaints two
narrow strips over it.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QObject, QPointF, QRect, QRectF, Qt, Signal, Slot
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QPolygonF,
    QResizeEvent,
)
from PySide6.QtWidgets import QWidget

from app.models.inspector import InspectorModel, Selection, Source
from app.ui.inspector.axis import StepAxis, Unit
from app.ui.inspector.words import moment_sentence
from app.ui.theme import Theme

STRIP = 9  # px on each side of the playhead that its mark may cover
REDRAWN = 2  # of the steps that were there before
ROOM = 8  # steps that the axis of a reply being written has room for; doubled when they are full


class AxisModel(QObject):
    """The axis all plots share. block_only: only the selected step's block is in sight."""

    changed = Signal()

    def __init__(self, model: InspectorModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._model = model
        self.unit: Unit = "steps"
        self.block_only = False
        self.axis: StepAxis | None = None
        model.trace_changed.connect(self.refresh)
        model.grown.connect(self.refresh)
        model.selection_changed.connect(self._on_selection)

    def choose_unit(self, unit: Unit) -> None:
        self.unit = unit
        self.refresh()

    def choose_block_only(self, block_only: bool) -> None:
        self.block_only = block_only
        self.refresh()

    @property
    def whole(self) -> StepAxis | None:
        """The axis over all steps, whatever is in sight."""
        return self._over(False)

    @Slot()
    def refresh(self) -> None:
        before, self.axis = self.axis, self._over(self.block_only)
        if not _same(before, self.axis):
            self.changed.emit()

    @Slot(object, object)
    def _on_selection(self, _before: Selection, _now: Selection) -> None:
        if self.block_only:
            self.refresh()

    def _over(self, block_only: bool) -> StepAxis | None:
        data, curves = self._model.data, self._model.curves
        if data is None or curves is None:
            return None
        first, last = 0, data.steps - 1
        live = self._model.source is Source.LIVE
        if block_only:
            segment = data.segment_at(self._model.selection.step)
            first, last = segment.first, segment.last
        elif live and self.unit == "steps":
            last = _roomy(data.steps) - 1  # so that a new step does not move the ones before
        return StepAxis.of(curves.seconds, self.unit, first, last)


def _roomy(steps: int) -> int:
    room = ROOM
    while room < steps:
        room *= 2
    return room


def _same(a: StepAxis | None, b: StepAxis | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.unit, a.first, a.last) == (b.unit, b.first, b.last) and a.edges[-1] == b.edges[-1]


class StepPlot(QWidget):
    """A picture along the step axis with the playhead over it. Left and right move by steps."""

    def __init__(
        self, theme: Theme, model: InspectorModel, axes: AxisModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self._theme = theme
        self._model = model
        self._axes = axes
        self._picture: QPixmap | None = None
        self._drawn = 0  # steps that the picture holds
        axes.changed.connect(self.redraw)
        model.trace_changed.connect(self.redraw)
        model.grown.connect(self.on_grown)
        model.selection_changed.connect(self._on_selection)
        theme.changed.connect(self.redraw)

    # for the kinds of plots

    def draw(self, painter: QPainter, axis: StepAxis, first: int) -> None:
        """Draws everything that does not depend on the selection; of the steps, those from `first`
        on."""
        raise NotImplementedError  # every kind of plot draws its own

    def keeps(self, axis: StepAxis) -> bool:
        """Whether the picture's older steps look as before, now that the reply has more."""
        return True

    def draw_over(self, painter: QPainter, axis: StepAxis) -> None:
        """Draws what depends on the selection, beside the playhead."""

    def axis(self) -> StepAxis | None:
        return self._axes.axis

    @Slot()
    def on_grown(self) -> None:
        """The reply has more steps: they are added to the picture, and the last ones again."""
        axis, data, picture = self.axis(), self._model.data, self._picture
        if axis is None or data is None or picture is None or not self.keeps(axis):
            self.redraw()
            return
        first = max(axis.first, min(self._drawn - REDRAWN, axis.last))
        left = math.floor(axis.span(first, self.width())[0])
        beyond = QRect(left, 0, self.width() - left, self.height())
        painter = QPainter(picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setClipRect(beyond)
        painter.fillRect(beyond, QColor(self._theme.colors.window))
        self.draw(painter, axis, max(axis.first, first - 1))
        painter.end()
        self._drawn = data.steps
        self.update(beyond)

    def strips(self, selection: Selection, axis: StepAxis) -> list[QRect]:
        """What to paint again when the selection comes or goes."""
        if not axis.first <= selection.step <= axis.last:
            return []
        begin, end = axis.span(selection.step, self.width())
        left = math.floor(begin) - STRIP
        return [QRect(left, 0, math.ceil(end) + STRIP - left, self.height())]

    # painting

    @Slot()
    def redraw(self) -> None:
        """Forgets the picture; it is drawn when it is next seen."""
        self._picture = None
        self.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._picture = None
        super().resizeEvent(event)

    @Slot(object, object)
    def _on_selection(self, before: Selection, now: Selection) -> None:
        axis = self.axis()
        if self.hasFocus():
            self.setAccessibleDescription(moment_sentence(self._model))
        if axis is not None:
            for strip in (*self.strips(before, axis), *self.strips(now, axis)):
                self.update(strip)

    def paintEvent(self, event: QPaintEvent) -> None:
        axis = self.axis()
        painter = QPainter(self)
        painter.fillRect(event.rect(), QColor(self._theme.colors.window))
        if axis is not None:
            picture = self.picture(axis)
            ratio = picture.devicePixelRatio()
            source = QRectF(event.rect())
            source = QRectF(source.topLeft() * ratio, source.size() * ratio)
            painter.drawPixmap(QRectF(event.rect()), picture, source)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self.draw_over(painter, axis)
            self._draw_playhead(painter, axis)
        if self.hasFocus():
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(QColor(self._theme.colors.accent), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 6, 6)
        painter.end()

    def picture(self, axis: StepAxis) -> QPixmap:
        """The kept picture, drawn now if there is none."""
        ratio = self.devicePixelRatioF()
        if self._picture is None or self._picture.devicePixelRatio() != ratio:
            picture = QPixmap(round(self.width() * ratio), round(self.height() * ratio))
            picture.setDevicePixelRatio(ratio)
            picture.fill(QColor(self._theme.colors.window))
            painter = QPainter(picture)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self.draw(painter, axis, axis.first)
            painter.end()
            self._picture = picture
            self._drawn = self._model.data.steps if self._model.data else 0
        return self._picture

    def _draw_playhead(self, painter: QPainter, axis: StepAxis) -> None:
        """A line with a small head at its upper end, so that it is found without its colour."""
        step = self._model.selection.step
        if not axis.first <= step <= axis.last:
            return
        x = round(axis.x(step, self.width())) + 0.5
        accent = QColor(self._theme.colors.accent)
        painter.setPen(QPen(QColor(self._theme.colors.surface), 4))
        painter.drawLine(QPointF(x, 0), QPointF(x, self.height()))
        painter.setPen(QPen(accent, 2))
        painter.drawLine(QPointF(x, 0), QPointF(x, self.height()))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(accent)
        head = [QPointF(x - 5, 0), QPointF(x + 5, 0), QPointF(x, 6)]
        painter.drawPolygon(QPolygonF(head))

    # moving along

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.setAccessibleDescription(moment_sentence(self._model))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.go_to(event.position())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            self.go_to(event.position())

    def go_to(self, point: QPointF) -> None:
        """Selects what lies under the point."""
        axis = self.axis()
        if axis is not None:
            self._model.scrub(axis.step_at(point.x(), self.width()))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        by = {
            Qt.Key.Key_Left: -1,
            Qt.Key.Key_Right: 1,
            Qt.Key.Key_Home: -1_000_000_000,
            Qt.Key.Key_End: 1_000_000_000,
        }.get(Qt.Key(event.key()))
        if by is None or event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().keyPressEvent(event)
            return
        self._model.step_by(
            by * (10 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1)
        )
