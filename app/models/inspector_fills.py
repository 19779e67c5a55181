"""What the canvas and the raster can be coloured by: each with a fixed scale and what it means.

It knows how a value becomes a level of its scale, and that a value which was not captured has none.
It refuses to know colours: a level is a place on a scale. Scales never stretch to the data: the
same colour means the same number in every trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from app.models.inspector_data import InspectorData
from engine.trace.compare import Difference

LEVELS = 240
NOT_CAPTURED = 240  # no value was recorded for the cell
NOT_YET = 241  # the cell is empty: its block has not begun, or nothing was accepted there

FillKey = Literal["confidence", "entropy", "margin", "commit", "edits", "age", "difference"]
# "difference" is there only while another trace is compared
FILL_KEYS: tuple[FillKey, ...] = ("confidence", "entropy", "margin", "commit", "edits", "age")
UNKNOWN_VOCABULARY = 200_000  # larger than any family's: the scale holds every value


@dataclass(frozen=True)
class Scale:
    """0..maximum, linear or square-root spaced. open: values above the maximum share its end.
    ticks: values to print. unit: after a number, or ""."""

    maximum: float
    ticks: tuple[float, ...]
    unit: str = ""
    root: bool = False
    open: bool = False
    ramp: Literal["cividis", "magma", "difference"] = "cividis"

    def place(self, value: float) -> float:
        """Where a value lies on the scale, 0..1."""
        share = min(max(value / self.maximum, 0.0), 1.0)
        return math.sqrt(share) if self.root else share

    def levels(self, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Levels 0..LEVELS-1 of an array of numbers; NaN becomes NOT_CAPTURED."""
        numbers = values.astype(np.float32)
        missing = np.isnan(numbers)
        share = np.clip(np.nan_to_num(numbers) / self.maximum, 0.0, 1.0)
        if self.root:
            share = np.sqrt(share)
        levels = (share * (LEVELS - 1) + 0.5).astype(np.uint8)
        levels[missing] = NOT_CAPTURED
        return levels


def scale_of(fill: FillKey, vocabulary: int | None) -> Scale:
    """The fixed scale of a fill. Entropy ends at ln V, the entropy of knowing nothing."""
    if fill == "entropy":
        top = math.log(max(2, vocabulary or UNKNOWN_VOCABULARY))
        ticks = tuple(t for t in (0.0, 0.5, 2.0, 5.0) if t < top * 0.75)
        return Scale(top, (*ticks, top), unit="nat", root=True, ramp="magma")
    if fill == "commit":
        return Scale(32.0, (0.0, 8.0, 16.0, 24.0, 32.0), open=True)
    if fill == "edits":
        return Scale(4.0, (0.0, 1.0, 2.0, 3.0, 4.0), open=True)
    if fill == "difference":
        last = float(max(Difference))
        return Scale(last, tuple(float(kind) for kind in Difference), ramp="difference")
    if fill == "age":
        return Scale(16.0, (0.0, 4.0, 8.0, 12.0, 16.0), unit="steps", open=True)
    return Scale(1.0, (0.0, 0.25, 0.5, 0.75, 1.0))


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
