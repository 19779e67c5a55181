"""The curves: one lane a quantity, all on the step axis, with the selected step's numbers beside
each lane's name.

It knows lanes, their scales and how a series with gaps is drawn. It refuses to know how the numbers
came about (`app.models.inspector_curves`). Where nothing was recorded a line has a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from app.models.inspector import InspectorModel, Selection
from app.models.inspector_curves import Curves
from app.ui.inspector.axis import GUTTER_LEFT, StepAxis, nice_ceiling, plot_width
from app.ui.inspector.plots import AxisModel, StepPlot
from app.ui.inspector.words import number, seconds, share, tr
from app.ui.theme import Size, Theme, mono_font, ui_font

NARROW = 260  # px: below it a lane's name begins at the left edge
HEAD, FOOT, PAD = 18, 20, 4  # px: a lane's name, the time axis, below a lane
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lane:
    """A quantity. main, other: series to draw, `other` may be None. bars: main is drawn as bars.
    top: fixed upper end, None = the smallest nice number that holds all. words: the selected
    step's numbers in a sentence."""

    key: str
    name: str
    meaning: str
    main: Callable[[Curves], Numbers]
    other: Callable[[Curves], Numbers] | None
    words: Callable[[Curves, int], str]
    bars: bool = False
    top: float | None = None


def lanes() -> tuple[Lane, ...]:
    return (
        Lane(
            "entropy",
            tr("Entropy"),
            tr("Over positions still open or accepted in the step. Line: mean. Dots: max."),
            lambda c: c.entropy_mean,
            lambda c: c.entropy_max,
            lambda c, s: tr("mean {0}, max {1} nat").format(
                number(c.entropy_mean[s]), number(c.entropy_max[s])
            ),
        ),
        Lane(
            "confidence",
            tr("Confidence"),
            tr("Of the token shown, over the same positions. Line: mean. Dots: min."),
            lambda c: c.confidence_mean,
            lambda c: c.confidence_min,
            lambda c, s: tr("mean {0}, min {1}").format(
                share(c.confidence_mean[s]), share(c.confidence_min[s])
            ),
            top=1.0,
        ),
        Lane(
            "tokens",
            tr("Accepted"),
            tr("Bars: tokens accepted in the step. Dots: TPF, tokens per forward so far."),
            lambda c: c.committed,
            lambda c: c.tpf,
            lambda c, s: tr("{0} in this step, TPF {1}").format(
                f"{c.committed[s]:.0f}", number(c.tpf[s])
            ),
            bars=True,
        ),
        Lane(
            "ms",
            tr("Step time"),
            tr("From the end of the step before to the end of this one, as recorded."),
            lambda c: c.milliseconds,
            None,
            lambda c, s: tr("{0} ms").format(number(c.milliseconds[s], 1)),
            bars=True,
        ),
    )


class CurvesView(StepPlot):
    def __init__(
        self,
        theme: Theme,
        model: InspectorModel,
        axes: AxisModel,
        parent: QWidget | None = None,
        keys: tuple[str, ...] = ("entropy", "confidence", "tokens", "ms"),
    ) -> None:
        """keys: of the lanes to show."""
        super().__init__(theme, model, axes, parent)
        self.setObjectName("curves")
        self._tops: tuple[float, ...] = ()
        self._lanes = tuple(lane for lane in lanes() if lane.key in keys)
        names = ", ".join(lane.name for lane in self._lanes)
        self.setAccessibleName(self.tr("Curves: {0}").format(names))
        self.setMinimumHeight(len(self._lanes) * (HEAD + 18) + FOOT)
        self.setToolTip("\n".join(f"{lane.name}: {lane.meaning}" for lane in self._lanes))

    def _box(self, index: int) -> QRectF:
        """A lane's plot."""
        each = (self.height() - FOOT) / len(self._lanes)
        top = index * each + HEAD
        return QRectF(GUTTER_LEFT, top, plot_width(self.width()), each - HEAD - PAD)

    def _head(self, index: int) -> QRectF:
        """Where a lane's name and the selected step's numbers stand."""
        box = self._box(index)
        left = GUTTER_LEFT if self.width() > NARROW else 8
        return QRectF(left, box.top() - HEAD, self.width() - left, HEAD)

    # the picture

    def draw(self, painter: QPainter, axis: StepAxis, first: int) -> None:
        curves, data = self._model.curves, self._model.data
        assert curves is not None
        assert data is not None
        last = min(axis.last, data.steps - 1)
        self._tops = self._ceilings(axis, curves, last)
        for index, lane in enumerate(self._lanes):
            top = self._tops[index]
            self._draw_lane(painter, axis, self._box(index), lane, curves, (first, last), top)
        self._draw_blocks(painter, axis)
        self._draw_times(painter, axis, curves, last)

    def keeps(self, axis: StepAxis) -> bool:
        """Unless a lane's upper end has to rise."""
        curves, data = self._model.curves, self._model.data
        if curves is None or data is None:
            return False
        return self._tops == self._ceilings(axis, curves, min(axis.last, data.steps - 1))

    def _ceilings(self, axis: StepAxis, curves: Curves, last: int) -> tuple[float, ...]:
        """The upper end of each lane."""
        part = slice(axis.first, last + 1)
        return tuple(
            lane.top
            or _ceiling(lane.main(curves)[part], lane.other(curves)[part] if lane.other else None)
            for lane in self._lanes
        )

    def _draw_lane(
        self,
        painter: QPainter,
        axis: StepAxis,
        box: QRectF,
        lane: Lane,
        curves: Curves,
        steps: tuple[int, int],
        top: float,
    ) -> None:
        """steps: the first and the last to draw."""
        colors = self._theme.colors
        first, last = steps
        main = lane.main(curves)[first : last + 1]
        other = lane.other(curves)[first : last + 1] if lane.other else None
        painter.setPen(QPen(QColor(colors.line), 1))
        painter.drawLine(box.bottomLeft(), box.bottomRight())
        painter.setFont(mono_font(Size.SMALL))
        painter.setPen(QColor(colors.muted))
        left = QRectF(0, box.top() - 3, GUTTER_LEFT - 8, Size.SMALL + 4)
        painter.drawText(left, int(Qt.AlignmentFlag.AlignRight), _scale_number(top))
        if box.height() > 2 * (Size.SMALL + 4):
            left.moveBottom(box.bottom() + 3)
            painter.drawText(left, int(Qt.AlignmentFlag.AlignRight), "0")
        xs = axis.edge_xs(self.width())[first - axis.first : last - axis.first + 2]
        if lane.bars:
            _draw_bars(painter, box, xs, main / top, QColor(colors.masked))
        else:
            _draw_line(painter, box, xs, main / top, QColor(colors.accent))
        if other is not None:
            ink = QColor(colors.text if lane.bars else colors.draft)
            _draw_dots(painter, box, xs, other / top, ink)

    def _draw_blocks(self, painter: QPainter, axis: StepAxis) -> None:
        data = self._model.data
        assert data is not None
        painter.setPen(QPen(QColor(self._theme.colors.line), 1, Qt.PenStyle.DotLine))
        for segment in data.segments:
            if axis.first < segment.first <= axis.last:
                x, _ = axis.span(segment.first, self.width())
                for index in range(len(self._lanes)):
                    box = self._box(index)
                    painter.drawLine(QPointF(x, box.top()), QPointF(x, box.bottom()))

    def _draw_times(self, painter: QPainter, axis: StepAxis, curves: Curves, last: int) -> None:
        """Recorded times along the foot, at even steps or at even times."""
        painter.setFont(mono_font(Size.SMALL))
        painter.setPen(QColor(self._theme.colors.muted))
        free = -1.0
        foot = self.height() - FOOT + 3
        stride = max(1, (axis.last - axis.first + 1) // 200)
        for step in range(axis.first, last + 1, stride):
            x = axis.x(step, self.width())
            text = seconds(float(curves.seconds[step]))
            width = painter.fontMetrics().horizontalAdvance(text)
            if x - 4 < free or x + width + 5 > self.width():
                continue
            painter.drawLine(QPointF(x, foot - 3), QPointF(x, foot + 1))
            painter.drawText(QPointF(x + 3, foot + Size.SMALL), text)
            free = x + width + 56
        painter.drawText(
            QRectF(0, foot, GUTTER_LEFT - 8, FOOT), int(Qt.AlignmentFlag.AlignRight), tr("time")
        )

    # what moves

    def draw_over(self, painter: QPainter, axis: StepAxis) -> None:
        curves = self._model.curves
        if curves is None:
            return
        colors = self._theme.colors
        step = self._model.selection.step
        for index, lane in enumerate(self._lanes):
            head = self._head(index)
            painter.setFont(ui_font(Size.SMALL))
            painter.setPen(QColor(colors.text))
            flags = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
            painter.drawText(head, flags, lane.name)
            used = painter.fontMetrics().horizontalAdvance(lane.name) + 10
            painter.setFont(mono_font(Size.SMALL))
            painter.setPen(QColor(colors.muted))
            painter.drawText(head.adjusted(used, 0, 0, 0), flags, lane.words(curves, step))

    def strips(self, selection: Selection, axis: StepAxis) -> list[QRect]:
        heads = [self._head(index).toAlignedRect() for index in range(len(self._lanes))]
        return [*super().strips(selection, axis), *heads]


def _ceiling(main: Numbers, other: Numbers | None) -> float:
    both = main if other is None else np.concatenate((main, other))
    known = both[~np.isnan(both)]
    return nice_ceiling(float(known.max())) if len(known) else 1.0


def _scale_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _thin(xs: Numbers, values: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """(x, lowest, highest), at most one entry a pixel column: nothing that was extreme is lost."""
    middles = (xs[:-1] + xs[1:]) / 2
    starts = np.flatnonzero(np.diff(np.floor(middles), prepend=-1.0))
    if len(starts) == len(values):
        return middles, values, values
    low = np.fmin.reduceat(values, starts)
    return np.floor(middles[starts]) + 0.5, low, np.fmax.reduceat(values, starts)


def _draw_line(painter: QPainter, box: QRectF, xs: Numbers, shares: Numbers, ink: QColor) -> None:
    painter.setPen(QPen(ink, 1.5))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    points = QPolygonF()
    for x, low, high in zip(*(part.tolist() for part in _thin(xs, shares)), strict=True):
        if low != low:  # a gap
            _flush(painter, points)
            points = QPolygonF()
            continue
        points.append(QPointF(x, box.bottom() - low * box.height()))
        if high != low:
            points.append(QPointF(x, box.bottom() - high * box.height()))
    _flush(painter, points)


def _flush(painter: QPainter, points: QPolygonF) -> None:
    if points.size() == 1:
        painter.drawPoints(points)
    elif points.size():
        painter.drawPolyline(points)


def _draw_dots(painter: QPainter, box: QRectF, xs: Numbers, shares: Numbers, ink: QColor) -> None:
    painter.setPen(QPen(ink, 2.4, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
    points = QPolygonF()
    for x, low, high in zip(*(part.tolist() for part in _thin(xs, shares)), strict=True):
        for value in (low,) if low == high else (low, high):
            if value == value:
                points.append(QPointF(x, box.bottom() - value * box.height()))
    painter.drawPoints(points)


def _draw_bars(painter: QPainter, box: QRectF, xs: Numbers, shares: Numbers, ink: QColor) -> None:
    middles, _, high = _thin(xs, shares)
    width = max(1.0, (xs[-1] - xs[0]) / max(1, len(middles)) - 1)
    for x, value in zip(middles.tolist(), high.tolist(), strict=True):
        if value == value and value > 0:
            height = max(1.0, value * box.height())
            painter.fillRect(QRectF(x - width / 2, box.bottom() - height, width, height), ink)
