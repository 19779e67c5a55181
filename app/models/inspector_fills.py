"""What the canvas and the raster can be coloured by: each with a fixed scale and what it means.

It knows what each fill shows of a cell, and that a value which was not captured has no level. It
refuses to know colours: a level is a place on a scale (`app.backend.scales`).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from app.backend.scales import NOT_CAPTURED, NOT_YET, Scale, entropy_scale, share_scale
from app.models.inspector_data import InspectorData
from engine.trace.compare import Difference

FillKey = Literal["confidence", "entropy", "margin", "commit", "edits", "age", "difference"]
# "difference" is there only while another trace is compared
FILL_KEYS: tuple[FillKey, ...] = ("confidence", "entropy", "margin", "commit", "edits", "age")


def scale_of(fill: FillKey, vocabulary: int | None) -> Scale:
    """The fixed scale of a fill."""
    if fill == "entropy":
        return entropy_scale(vocabulary)
    if fill == "commit":
        return Scale(32.0, (0.0, 8.0, 16.0, 24.0, 32.0), open=True)
    if fill == "edits":
        return Scale(4.0, (0.0, 1.0, 2.0, 3.0, 4.0), open=True)
    if fill == "difference":
        last = float(max(Difference))
        return Scale(last, tuple(float(kind) for kind in Difference), ramp="difference")
    if fill == "age":
        return Scale(16.0, (0.0, 4.0, 8.0, 12.0, 16.0), unit="steps", open=True)
    return share_scale()


class Levels:
    """Levels of one fill for any cells of a trace. values: [S, L] of the fill, None = this trace
    has not captured it."""

    def __init__(
        self, data: InspectorData, fill: FillKey, difference: npt.NDArray[np.uint8] | None = None
    ) -> None:
        """difference: [S, L] (`engine.trace.compare.Difference`), None = nothing is compared."""
        self.fill: FillKey = fill
        self.scale = scale_of(fill, data.trace.header.vocab_size)
        self.values = difference if fill == "difference" else _values(data, fill)
        if self.values is None:
            self._levels = np.full(data.trace.ids.shape, NOT_CAPTURED, dtype=np.uint8)
        else:
            self._levels = self.scale.levels(self.values)
            if fill == "commit":
                self._levels[self.values < 0] = NOT_YET

    @property
    def captured(self) -> bool:
        return self.values is not None

    def of(
        self,
        there: npt.NDArray[np.bool_],
        row: npt.NDArray[np.intp],
        column: npt.NDArray[np.intp],
    ) -> npt.NDArray[np.uint8]:
        """Levels of the cells at (row, column), NOT_YET where not `there`."""
        levels = self._levels[row, column]
        levels[~there] = NOT_YET
        return levels

    def value(self, row: int, column: int) -> float | None:
        """The number behind a level; None where there is none."""
        if self.values is None:
            return None
        value = float(self.values[row, column])
        return None if math.isnan(value) or (self.fill == "commit" and value < 0) else value


def _values(data: InspectorData, fill: FillKey) -> npt.NDArray[Any] | None:
    if fill == "confidence":
        return data.trace.confidence
    if fill == "entropy":
        return data.trace.entropy
    if fill == "margin":
        return data.margin
    if fill == "commit":
        return data.commit_step
    return data.edits if fill == "edits" else data.age
