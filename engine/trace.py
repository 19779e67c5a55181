"""The recorded steps of one reply: every step's ids, states, confidences and entropies, as arrays.

Knows how steps are collected and read back. Knows no model and no torch, so a trace can be looked
at anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.types import StepTaken


@dataclass(frozen=True, eq=False)
class Trace:
    """S steps of L positions. block, step, block_start, forwards int32 [S]; seconds float64 [S];
    ids, edited_from int32 [S, L]; state uint8 [S, L] (`TokenState`); confidence, entropy float32
    [S, L], NaN where nothing was judged."""

    block: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    block_start: npt.NDArray[np.int32]
    forwards: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.float64]
    ids: npt.NDArray[np.int32]
    edited_from: npt.NDArray[np.int32]
    state: npt.NDArray[np.uint8]
    confidence: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.step)

    def steps_of(self, block: int) -> npt.NDArray[np.intp]:
        """Indices of the steps of one block (0 = the reply's first)."""
        return np.flatnonzero(self.block == block)


class TraceRecorder:
    """Collects `StepTaken` events as they pass."""

    def __init__(self) -> None:
        self._steps: list[StepTaken] = []

    def add(self, step: StepTaken) -> None:
        self._steps.append(step)

    def trace(self) -> Trace:
        """What has been recorded so far. Raises ValueError when nothing has."""
        steps = self._steps
        if not steps:
            raise ValueError("no step has been recorded")

        def column(name: str) -> npt.NDArray[np.int32]:
            return np.array([getattr(s, name) for s in steps], dtype=np.int32)

        return Trace(
            block=column("block"),
            step=column("step"),
            block_start=column("block_start"),
            forwards=column("forwards"),
            seconds=np.array([s.seconds for s in steps], dtype=np.float64),
            ids=np.stack([s.ids for s in steps]),
            edited_from=np.stack([s.edited_from for s in steps]),
            state=np.stack([s.state for s in steps]),
            confidence=np.stack([s.confidence for s in steps]),
            entropy=np.stack([s.entropy for s in steps]),
        )
