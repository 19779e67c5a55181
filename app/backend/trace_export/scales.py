"""The two fixed scales of a trace's pictures: the same colour means the same number everywhere.

Knows how a value becomes a level, and that a value which was not captured has none. The scales are
those of the inspector's views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from app.backend.palette import ramp
from engine.trace import Trace

Fill = Literal["confidence", "entropy"]
FILLS: tuple[Fill, ...] = ("confidence", "entropy")
LEVELS = 240
NOT_CAPTURED = 240
NOT_YET = 241  # the position's block has not begun
UNKNOWN_VOCABULARY = 200_000  # larger than any family's: the scale holds every value


@dataclass(frozen=True)
class FixedScale:
    """0..maximum on `ramp`, linear or square-root spaced. name, unit: to print beside it."""

    name: str
    maximum: float
    ticks: tuple[float, ...]
    unit: str
    root: bool
    ramp: Literal["cividis", "magma"]

    def place(self, value: float) -> float:
        """Where a value lies on the scale, 0..1."""
        share = min(max(value / self.maximum, 0.0), 1.0)
        return math.sqrt(share) if self.root else share

    def levels(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Levels 0..LEVELS-1; NaN becomes NOT_CAPTURED."""
        share = np.clip(np.nan_to_num(values) / self.maximum, 0.0, 1.0)
        if self.root:
            share = np.sqrt(share)
        levels = (share * (LEVELS - 1) + 0.5).astype(np.uint8)
        levels[np.isnan(values)] = NOT_CAPTURED
        return levels

    def colors(self) -> tuple[tuple[int, int, int], ...]:
        """Red, green and blue of each level."""
        return ramp(self.ramp, LEVELS)


def scale_for(trace: Trace, fill: Fill) -> FixedScale:
    """Entropy ends at ln V, the entropy of knowing nothing."""
    if fill == "confidence":
        return FixedScale(
            "Confidence", 1.0, (0.0, 0.25, 0.5, 0.75, 1.0), "", root=False, ramp="cividis"
        )
    top = math.log(max(2, trace.header.vocab_size or UNKNOWN_VOCABULARY))
    ticks = tuple(tick for tick in (0.0, 0.5, 2.0, 5.0) if tick < top * 0.75)
    return FixedScale("Entropy", top, (*ticks, top), "nat", root=True, ramp="magma")


def values_of(trace: Trace, fill: Fill) -> npt.NDArray[np.float32]:
    """float32 [S, L], NaN where nothing was captured."""
    return trace.confidence if fill == "confidence" else trace.entropy
