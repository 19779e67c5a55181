"""The step axis that the raster, the curves and the timeline share: which steps are in sight, and
where each of them lies.

It knows steps, seconds and x. It refuses to know what is drawn along it. A step owns the stretch of
the axis between its own end and the end of the step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

GUTTER_LEFT, GUTTER_RIGHT = 64, 16  # px beside the plots, for labels
Unit = Literal["steps", "seconds"]


@dataclass(frozen=True, eq=False)
class StepAxis:
    """Steps first..last. edges: float64 [last - first + 2], where each begins and the last ends, in
    the axis's unit. unit: what the axis is even in."""

    unit: Unit
    first: int
    last: int
    edges: npt.NDArray[np.float64]

    @staticmethod
    def of(seconds: npt.NDArray[np.float64], unit: Unit, first: int, last: int) -> StepAxis:
        """seconds: float64 [S], the end of each step. In steps, `last` may lie beyond S - 1: room
        for steps to come."""
        if unit == "steps":
            return StepAxis(unit, first, last, np.arange(first, last + 2, dtype=np.float64))
        last = min(last, len(seconds) - 1)
        ends = np.maximum.accumulate(seconds[first : last + 1])
        begin = float(seconds[first - 1]) if first else 0.0
        edges = np.concatenate(([min(begin, float(ends[0]))], ends))
        if edges[-1] <= edges[0]:  # a clock too coarse for so short a reply
            return StepAxis.of(seconds, "steps", first, last)
        return StepAxis(unit, first, last, edges)

    def x(self, step: int, width: float) -> float:
        """The middle of a step, px from the left edge of a widget of `width`."""
        begin, end = self.span(step, width)
        return (begin + end) / 2

    def span(self, step: int, width: float) -> tuple[float, float]:
        """Where a step begins and ends, px."""
        index = min(max(step, self.first), self.last) - self.first
        return self._at(self.edges[index], width), self._at(self.edges[index + 1], width)

    def xs(self, width: float) -> npt.NDArray[np.float64]:
        """The middles of all steps in sight, px."""
        middles = (self.edges[:-1] + self.edges[1:]) / 2
        return GUTTER_LEFT + (middles - self.edges[0]) / self._extent * plot_width(width)

    def edge_xs(self, width: float) -> npt.NDArray[np.float64]:
        """Where all steps in sight begin, and where the last one ends, px."""
        return GUTTER_LEFT + (self.edges - self.edges[0]) / self._extent * plot_width(width)

    def step_at(self, x: float, width: float) -> int:
        """The step under x; the nearest end beyond the plot."""
        share = min(max((x - GUTTER_LEFT) / plot_width(width), 0.0), 1.0)
        value = self.edges[0] + share * self._extent
        index = int(np.searchsorted(self.edges, value, side="right")) - 1
        return self.first + min(max(index, 0), self.last - self.first)

    def steps_of(self, columns: int) -> npt.NDArray[np.intp]:
        """The step under each of `columns` even columns of the plot."""
        middles = (np.arange(columns) + 0.5) / columns * self._extent + self.edges[0]
        index = np.searchsorted(self.edges, middles, side="right") - 1
        return (self.first + np.clip(index, 0, self.last - self.first)).astype(np.intp)

    @property
    def _extent(self) -> float:
        return float(self.edges[-1] - self.edges[0])

    def _at(self, value: float, width: float) -> float:
        return GUTTER_LEFT + (value - self.edges[0]) / self._extent * plot_width(width)


def plot_width(width: float) -> float:
    """px between the gutters of a widget of `width`."""
    return max(1.0, width - GUTTER_LEFT - GUTTER_RIGHT)


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 2, 5 x 10^n that is not below `value` (> 0)."""
    if not value > 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9)))
