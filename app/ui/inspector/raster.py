"""The raster: steps from left to right, positions from top to bottom, coloured like the canvas.

It knows the image (one level a device pixel, drawn from the cells under it), the rules where blocks
begin, the commit front, and how far it is thinned out. It refuses to build steps x positions: it
asks for the cells that have a pixel. A growing reply adds columns to the image it has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, Qt, Slot
from PySide6.QtGui import QColor, QHelpEvent, QImage, QKeyEvent, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QToolTip, QWidget

from app.backend.scales import NOT_CAPTURED, NOT_YET
from app.models.inspector import InspectorModel, Selection
from app.ui.inspector.axis import GUTTER_LEFT, StepAxis, plot_width
from app.ui.inspector.inks import HATCH_LINE, inks_of
from app.ui.inspector.plots import AxisModel, StepPlot
from app.ui.inspector.words import moment_sentence, tr
from app.ui.theme import Size, Theme, mono_font
from app.ui.tips import as_typed

TOP, BOTTOM = 8, 8  # px above and below the image
LEAST_RULE = 10  # px between two rules
HATCH = 6  # px from line to line


class Raster(StepPlot):
    """Up and down move over positions; with the mouse both are chosen at once."""

    def __init__(
        self, theme: Theme, model: InspectorModel, axes: AxisModel, parent: QWidget | None = None
    ) -> None:
        self._levels: npt.NDArray[np.uint8] | None = None
        self._drawn_steps = 0
        self._span = (0, 0)  # positions in sight: first, one past the last
        super().__init__(theme, model, axes, parent)
        self.setObjectName("raster")
        self.setAccessibleName(self.tr("Raster of steps and positions"))
        self.setMinimumHeight(96)
        model.fill_changed.connect(self.redraw)

    @Slot()
    def redraw(self) -> None:
        self._levels = None
        super().redraw()

    def resizeEvent(self, event: object) -> None:
        self._levels = None
        super().resizeEvent(event)  # type: ignore[arg-type]

    def keeps(self, axis: StepAxis) -> bool:
        """The image keeps its columns, unless a new block makes every row thinner."""
        if self.positions_in_sight() == self._span:
            return True
        self._levels = None
        return False

    def positions_in_sight(self) -> tuple[int, int]:
        """First position, and one past the last."""
        data = self._model.data
        if data is None:
            return 0, 0
        if self._axes.block_only:
            begin = data.segment_at(self._model.selection.step).begin
            return begin, begin + data.length
        return 0, data.positions

    @property
    def thinned(self) -> float:
        """Positions a row of device pixels stands for; 1 or less when all can be seen."""
        first, end = self.positions_in_sight()
        rows = self._plot_height() * self.devicePixelRatioF()
        return (end - first) / max(1.0, rows)

    def _plot_height(self) -> float:
        return max(1.0, self.height() - TOP - BOTTOM)

    # the image

    def _image(self, axis: StepAxis) -> QImage:
        """One byte a device pixel. Columns of steps that were drawn before are taken as they are,
        but for the last: its block has gone on since."""
        data, levels = self._model.data, self._model.levels
        assert data is not None
        assert levels is not None
        ratio = self.devicePixelRatioF()
        columns = max(1, round(plot_width(self.width()) * ratio))
        rows = max(1, round(self._plot_height() * ratio))
        first, end = self.positions_in_sight()
        steps = axis.steps_of(columns)
        positions = (first + (np.arange(rows) + 0.5) * (end - first) / rows).astype(np.intp)
        begin = 0
        if self._levels is not None and self._levels.shape == (rows, columns):
            begin = int(np.searchsorted(steps, self._drawn_steps - 1))
        else:
            self._levels = np.empty((rows, columns), dtype=np.uint8)
        part = steps[begin:]
        known = part < data.steps
        every = np.arange(first, end, dtype=np.intp)
        gravest = levels.fill == "difference" and self.thinned > 1
        there, row, column = data.cells(
            np.minimum(part, data.steps - 1), every if gravest else positions
        )
        fresh = levels.of(there & known[None, :], row, column)
        if gravest:  # a lone difference must not fall between two rows of pixels
            fresh = _gravest(fresh, positions - first)
        self._levels[:, begin:] = _hatched(fresh, begin, max(1, round(HATCH * ratio)))
        self._drawn_steps, self._span = data.steps, (first, end)
        image = QImage(
            np.ascontiguousarray(self._levels).data,
            columns,
            rows,
            columns,
            QImage.Format.Format_Indexed8,
        ).copy()
        image.setColorTable(inks_of(self._theme.colors, levels.scale.ramp).table())
        image.setDevicePixelRatio(ratio)
        return image

    # drawing

    def draw(self, painter: QPainter, axis: StepAxis, first: int) -> None:
        painter.drawImage(QPointF(GUTTER_LEFT, TOP), self._image(axis))
        self._draw_rules(painter, axis)
        self._draw_front(painter, axis, first)
        painter.setPen(QPen(QColor(self._theme.colors.line), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(self._plot().adjusted(-0.5, -0.5, 0.5, 0.5))

    def _plot(self) -> QRectF:
        return QRectF(GUTTER_LEFT, TOP, plot_width(self.width()), self._plot_height())

    def y_of(self, position: float) -> float:
        """The upper edge of a position, px."""
        first, end = self.positions_in_sight()
        return TOP + (position - first) / max(1, end - first) * self._plot_height()

    def _draw_rules(self, painter: QPainter, axis: StepAxis) -> None:
        """A line where a block begins in both directions, and its first position at the left."""
        data = self._model.data
        assert data is not None
        colors = self._theme.colors
        painter.setFont(mono_font(Size.SMALL))
        plot = self._plot()
        first, end = self.positions_in_sight()
        labelled = drawn = -100.0
        for segment in data.segments:
            if not first <= segment.begin < end or not axis.first <= segment.first <= axis.last:
                continue
            y = self.y_of(segment.begin)
            x, _ = axis.span(segment.first, self.width())
            painter.setPen(QPen(QColor(colors.muted), 1, Qt.PenStyle.DotLine))
            if y - drawn >= LEAST_RULE:  # rules closer than this would be a grey surface
                drawn = y
                if segment.begin > first:
                    painter.drawLine(QPointF(plot.left(), y), QPointF(x, y))
                if segment.first > axis.first:
                    painter.drawLine(QPointF(x, y), QPointF(x, plot.bottom()))
            if y - labelled >= Size.SMALL + 4:
                labelled = y
                painter.setPen(QColor(colors.muted))
                box = QRectF(0, y - 1, GUTTER_LEFT - 8, Size.SMALL + 4)
                text = f"{data.first_position + segment.begin:,}"
                painter.drawText(box, int(Qt.AlignmentFlag.AlignRight), text)

    def _draw_front(self, painter: QPainter, axis: StepAxis, begin: int) -> None:
        """A stair along the first open position: all above it is accepted. Dark on light, so that
        it is seen on every colour."""
        data, front = self._model.data, self._model.front
        assert data is not None
        assert front is not None
        first, end = self.positions_in_sight()
        count = min(axis.last, data.steps - 1) - axis.first + 1
        xs = axis.edge_xs(self.width())[: count + 1]
        thin = max(1, count // max(1, round(plot_width(self.width()))))
        share = (np.clip(front[axis.first : axis.first + count], first, end) - first) / (
            end - first
        )
        ys = (TOP + share * self._plot_height()).tolist()
        points = QPolygonF()
        for index in range((begin - axis.first) // thin * thin, count, thin):
            points.append(QPointF(xs[index], ys[index]))
            points.append(QPointF(xs[min(index + thin, count)], ys[index]))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for ink, width in ((self._theme.colors.surface, 3.0), (self._theme.colors.text, 1.2)):
            painter.setPen(QPen(QColor(ink), width))
            painter.drawPolyline(points)

    def draw_over(self, painter: QPainter, axis: StepAxis) -> None:
        """A line at the selected position, and its number."""
        data = self._model.data
        position = self._model.selection.position
        first, end = self.positions_in_sight()
        if data is None or not first <= position < end:
            return
        y = (self.y_of(position) + self.y_of(position + 1)) / 2
        plot = self._plot()
        for ink, width in ((self._theme.colors.surface, 3), (self._theme.colors.accent, 1)):
            painter.setPen(QPen(QColor(ink), width))
            painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        painter.setFont(mono_font(Size.SMALL))
        text = f"{data.first_position + position:,}"
        box = self._tag(y)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.colors.accent))
        painter.drawRoundedRect(box, 3, 3)
        painter.setPen(QColor(self._theme.colors.on_accent))
        painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), text)

    def _tag(self, y: float) -> QRectF:
        height = Size.SMALL + 6
        top = min(max(0.0, y - height / 2), self.height() - height)
        return QRectF(4, top, GUTTER_LEFT - 8, height)

    def strips(self, selection: Selection, axis: StepAxis) -> list[QRect]:
        first, end = self.positions_in_sight()
        strips = super().strips(selection, axis)
        if first <= selection.position < end:
            y = (self.y_of(selection.position) + self.y_of(selection.position + 1)) / 2
            strips.append(self._tag(y).toAlignedRect().adjusted(-1, -1, 1, 1))
            strips.append(QRect(0, round(y) - 3, self.width(), 6))
        return strips

    # choosing

    def position_at(self, y: float) -> int:
        first, end = self.positions_in_sight()
        share = min(max((y - TOP) / self._plot_height(), 0.0), 1.0)
        return min(first + int(share * (end - first)), end - 1)

    def go_to(self, point: QPointF) -> None:
        position = self.position_at(point.y())
        super().go_to(point)
        self._model.select(position=position)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        by = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}.get(Qt.Key(event.key()))
        if by is None:
            super().keyPressEvent(event)
        else:
            self._model.select(position=self._model.selection.position + by)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            axis, data = self.axis(), self._model.data
            if axis is None or data is None:
                QToolTip.hideText()
            else:
                step = min(axis.step_at(event.pos().x(), self.width()), data.steps - 1)
                position = self.position_at(event.pos().y())
                text = moment_sentence(self._model, position, step)
                head = tr("Step {0}").format(f"{step + 1:,}")
                if self.thinned > 1:
                    every = f"{self.thinned:.1f}"
                    text += "\n" + tr("A row of pixels stands for {0} positions.").format(every)
                QToolTip.showText(event.globalPos(), as_typed(f"{head}. {text}"), self)
            return True
        return super().event(event)


def _gravest(levels: npt.NDArray[np.uint8], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
    """Of the rows from each start to the next, the highest level; NOT_YET only where all are."""
    order = np.where(levels == NOT_YET, 0, levels.astype(np.int16) + 1)
    highest = np.maximum.reduceat(order, starts, axis=0)
    return np.where(highest == 0, NOT_YET, highest - 1).astype(np.uint8)


def _hatched(levels: npt.NDArray[np.uint8], begin: int, distance: int) -> npt.NDArray[np.uint8]:
    """The levels with diagonal lines where nothing was captured. begin: the first column's number,
    so that columns added later go on with the same lines."""
    rows, columns = levels.shape
    diagonal = np.arange(rows)[:, None] + np.arange(begin, begin + columns)[None, :]
    levels[(levels == NOT_CAPTURED) & (diagonal % distance == 0)] = HATCH_LINE
    return levels
