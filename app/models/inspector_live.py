"""The trace of the reply being written, growing in the worker thread and read by the window.

It knows how steps are appended so that what was handed out never changes: arrays grow by doubling,
a reader gets views of the rows that were complete when it asked. Latest wins: nothing is queued and
nothing is signalled. It refuses to know widgets and what a step means.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.trace import Trace
from engine.types import ModelInfo, StepTaken

FIRST_CAPACITY = 64  # steps
_SCALARS = (
    ("block", np.int32),
    ("step", np.int32),
    ("block_start", np.int32),
    ("forwards", np.int32),
    ("seconds", np.float64),
)
_CELLS = (
    ("ids", np.int32),
    ("edited_from", np.int32),
    ("state", np.uint8),
    ("confidence", np.float32),
    ("entropy", np.float32),
)
Pieces = Callable[[Sequence[int]], Sequence[str]]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A reply's steps as far as they are known. trace: arrays that nobody writes to any more.
    pieces: display text of every id in it. info: of the model that wrote it, None when unknown."""

    reply_id: str
    trace: Trace
    pieces: Mapping[int, str]
    info: ModelInfo | None

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens the model knows, None when the trace does not say."""
        return None

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        arrays = (getattr(self.trace, name) for name, _ in (*_SCALARS, *_CELLS))
        return sum(array.nbytes for array in arrays)


class LiveTrace:
    """One slot: the running reply's trace, or the last one's. The worker calls `begin` and `add`,
    the window `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reply_id = ""
        self._info: ModelInfo | None = None
        self._count = 0
        self._taken = 0
        self._arrays: dict[str, npt.NDArray[np.generic]] = {}
        self._pieces: dict[int, str] = {}

    def begin(self, reply_id: str, info: ModelInfo) -> None:
        """Forgets the last reply."""
        with self._lock:
            self._reply_id, self._info = reply_id, info
            self._count = self._taken = 0
            self._arrays, self._pieces = {}, {}

    def add(self, step: StepTaken, pieces: Pieces) -> None:
        """Appends a step. pieces: display text of ids (not kept: it holds the model). Raises
        ValueError when its block has another length than the first."""
        ids = np.unique(np.concatenate((step.ids, step.edited_from))).tolist()
        new = [i for i in ids if i >= 0 and i not in self._pieces]
        shown = dict(zip(new, pieces(new), strict=True)) if new else {}
        with self._lock:
            if shown:
                self._pieces = {**self._pieces, **shown}  # a reader may hold the old one
            self._make_room(len(step.ids))
            for name, _ in (*_SCALARS, *_CELLS):
                self._arrays[name][self._count] = getattr(step, name)
            self._count += 1

    def _make_room(self, length: int) -> None:
        capacity = len(self._arrays["step"]) if self._arrays else 0
        if self._count < capacity:
            return
        larger = max(FIRST_CAPACITY, 2 * capacity)
        for name, kind in _SCALARS:
            self._grow(name, np.zeros(larger, kind))
        for name, kind in _CELLS:
            self._grow(name, np.zeros((larger, length), kind))

    def _grow(self, name: str, room: npt.NDArray[np.generic]) -> None:
        if name in self._arrays:
            room[: self._count] = self._arrays[name]
        self._arrays[name] = room

    def take(self) -> Recorded | None:
        """All steps so far, if there are more than when this was last called; else None."""
        with self._lock:
            if self._count == self._taken:
                return None
            self._taken = self._count
            return self._recorded()

    def latest(self, reply_id: str) -> Recorded | None:
        """All steps of this reply, None when it is not the one held or has none yet."""
        with self._lock:
            if self._reply_id != reply_id or self._count == 0:
                return None
            return self._recorded()

    def _recorded(self) -> Recorded:
        views = {name: array[: self._count] for name, array in self._arrays.items()}
        trace = Trace(**views)  # type: ignore[arg-type]
        return Recorded(self._reply_id, trace, self._pieces, self._info)
