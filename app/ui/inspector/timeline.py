"""The timeline: all steps of the reply as one track, with marks for what happened.

It knows the marks' shapes and where they stand; it shows the whole reply, also when the plots above
show one block, and then brackets what they show. It refuses to know what a mark means to the
engine.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QHelpEvent, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QToolTip, QWidget

from app.models.inspector import InspectorModel
from app.models.inspector_curves import Mark, MarkKind
from app.ui.inspector.axis import GUTTER_LEFT, StepAxis, plot_width
from app.ui.inspector.plots import AxisModel, StepPlot
from app.ui.inspector.words import mark_words, seconds, tr
from app.ui.theme import Size, Theme, mixed, mono_font
from app.ui.tips import as_typed

HEIGHT = 52
TRACK = 34.0  # px, the track's middle
MARK = 8.0  # px, a mark's size
NEAR = 5  # px from a mark within which the mouse means it


class Timeline(StepPlot):
    """Marks above the track: wedge = edited, ring = taken back, stair = doubt of an accepted token,
    cross = the block hit its cap, square = stop token. In it: two strokes = steps not recorded, a
    rule = a block begins."""

    def __init__(
        self, theme: Theme, model: InspectorModel, axes: AxisModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(theme, model, axes, parent)
        self.setObjectName("timeline")
        self.setFixedHeight(HEIGHT)
        self.setAccessibleName(self.tr("Timeline of all steps"))

    def axis(self) -> StepAxis | None:
        return self._axes.whole

    def draw(self, painter: QPainter, axis: StepAxis, first: int) -> None:
        data = self._model.data
        assert data is not None
        colors = self._theme.colors
        left, right = GUTTER_LEFT, GUTTER_LEFT + plot_width(self.width())
        _, end = axis.span(min(data.steps - 1, axis.last), self.width())
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(colors.line))
        painter.drawRoundedRect(QRectF(left, TRACK - 3, right - left, 6), 3, 3)
        painter.setBrush(mixed(colors.accent, colors.line, 0.35))
        painter.drawRoundedRect(QRectF(left, TRACK - 3, end - left, 6), 3, 3)
        if self._axes.block_only and self._axes.axis is not None:
            self._draw_bracket(painter, axis, self._axes.axis)
        for mark in self._model.marks_from(first):
            self._draw_mark(painter, axis, mark)
        painter.setFont(mono_font(Size.SMALL))
        painter.setPen(QColor(colors.muted))
        box = QRectF(0, TRACK - 8, GUTTER_LEFT - 8, 16)
        painter.drawText(
            box, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), tr("steps")
        )

    def _draw_bracket(self, painter: QPainter, axis: StepAxis, shown: StepAxis) -> None:
        """What the plots above show."""
        begin, _ = axis.span(shown.first, self.width())
        _, end = axis.span(shown.last, self.width())
        painter.setPen(QPen(QColor(self._theme.colors.muted), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(QRectF(begin, TRACK - 6.5, end - begin, 13))

    def _draw_mark(self, painter: QPainter, axis: StepAxis, mark: Mark) -> None:
        colors = self._theme.colors
        if mark.kind is MarkKind.BLOCK:
            x, _ = axis.span(mark.step, self.width())
            painter.setPen(QPen(QColor(colors.muted), 1))
            painter.drawLine(QPointF(x, TRACK - 6), QPointF(x, TRACK + 10))
            return
        x, half = axis.x(mark.step, self.width()), MARK / 2
        y = LANES[mark.kind]
        if mark.kind is MarkKind.EDIT:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(colors.edited))
            painter.drawPolygon(
                QPolygonF(
                    [QPointF(x - half, y - half), QPointF(x + half, y - half), QPointF(x, y + half)]
                )
            )
        elif mark.kind is MarkKind.REMASK:
            painter.setPen(QPen(QColor(colors.draft), 1.6))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(QPointF(x, y), half - 1, half - 1)
        elif mark.kind is MarkKind.CAP:
            painter.setPen(QPen(QColor(colors.bad), 1.6))
            painter.drawLine(QPointF(x - 3, y - 3), QPointF(x + 3, y + 3))
            painter.drawLine(QPointF(x - 3, y + 3), QPointF(x + 3, y - 3))
        elif mark.kind is MarkKind.DOUBT:
            painter.setPen(QPen(QColor(colors.warn), 1.6))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawPolyline(  # a fall
                [QPointF(x - 4, y - 3), QPointF(x, y - 3), QPointF(x, y + 3), QPointF(x + 4, y + 3)]
            )
        elif mark.kind is MarkKind.GAP:
            begin, _ = axis.span(mark.step, self.width())
            painter.setPen(QPen(QColor(colors.warn), 1.6))
            for lean in (-1.5, 1.5):  # a broken track
                painter.drawLine(
                    QPointF(begin + lean - 2, TRACK + 6), QPointF(begin + lean + 2, TRACK - 6)
                )
        else:
            painter.fillRect(QRectF(x - 3, y - 3, 6, 6), QColor(colors.ok))

    def marks_at(self, x: float) -> list[Mark]:
        """Marks under the mouse, nearest step first; none when it is between marks."""
        axis = self.axis()
        if axis is None:
            return []
        near = [
            (abs(axis.x(mark.step, self.width()) - x), mark)
            for mark in self._model.marks
            if mark.kind is not MarkKind.BLOCK
        ]
        near = [pair for pair in near if pair[0] <= NEAR]
        if not near:
            return []
        nearest = min(near, key=lambda pair: pair[0])[1].step
        return [mark for _, mark in near if mark.step == nearest]

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            axis, curves = self.axis(), self._model.curves
            if axis is not None and curves is not None:
                marks = self.marks_at(event.pos().x())
                step = marks[0].step if marks else axis.step_at(event.pos().x(), self.width())
                step = min(step, len(curves.seconds) - 1)
                words = [
                    tr("Step {0}").format(f"{step + 1:,}"),
                    seconds(float(curves.seconds[step])),
                ]
                words += [mark_words(mark) for mark in marks]
                QToolTip.showText(event.globalPos(), as_typed(", ".join(words)), self)
            return True
        return super().event(event)


# each kind of mark has a height of its own, so that two in one step are both seen
LANES = {
    MarkKind.EDIT: 22.0,
    MarkKind.REMASK: 14.0,
    MarkKind.CAP: 6.0,
    MarkKind.STOP: 6.0,
    MarkKind.DOUBT: 14.0,
    MarkKind.GAP: TRACK,
}
