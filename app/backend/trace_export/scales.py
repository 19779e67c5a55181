"""The scales of a trace's exported pictures: those of the inspector's views, with their names.

Knows which scale a fill has and its colours. What a scale is, is `app.backend.scales`' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from app.backend.palette import ramp
from app.backend.scales import LEVELS, Scale, entropy_scale, share_scale
from engine.trace import Trace

Fill = Literal["confidence", "entropy"]
FILLS: tuple[Fill, ...] = ("confidence", "entropy")


@dataclass(frozen=True)
class FixedScale(Scale):
    """name: to print beside it."""

    name: str = ""

    def colors(self) -> tuple[tuple[int, int, int], ...]:
        """Red, green and blue of each level."""
        return ramp(self.ramp, LEVELS)


def scale_for(trace: Trace, fill: Fill) -> FixedScale:
    """The fixed scale of a fill."""
    if fill == "confidence":
        return FixedScale(**vars(share_scale()), name="Confidence")
    return FixedScale(**vars(entropy_scale(trace.header.vocab_size)), name="Entropy")


def values_of(trace: Trace, fill: Fill) -> npt.NDArray[np.float32]:
    """float32 [S, L], NaN where nothing was captured."""
    return trace.confidence if fill == "confidence" else trace.entropy
