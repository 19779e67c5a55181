"""The fixed scales of a trace's pictures, in the window and in exports: the same colour means the
same number everywhere.

It knows how a value becomes a level of a scale, and that a value which was not captured has none.
It refuses to know colours and where they are drawn. Scales never stretch to the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

LEVELS = 240
NOT_CAPTURED = 240  # no value was recorded for the cell
NOT_YET = 241  # the cell is empty: its block has not begun, or nothing was accepted there
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


def share_scale() -> Scale:
    """Of confidence and everything else between 0 and 1."""
    return Scale(1.0, (0.0, 0.25, 0.5, 0.75, 1.0))


def entropy_scale(vocabulary: int | None) -> Scale:
    """Ends at ln V, the entropy of knowing nothing."""
    top = math.log(max(2, vocabulary or UNKNOWN_VOCABULARY))
    ticks = tuple(tick for tick in (0.0, 0.5, 2.0, 5.0) if tick < top * 0.75)
    return Scale(top, (*ticks, top), unit="nat", root=True, ramp="magma")
