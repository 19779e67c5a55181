"""The trace of the reply being written, growing in the worker thread and read by the window.

It knows how steps are appended so that what was handed out never changes: arrays grow by doubling,
a reader gets views of the rows that were complete when it asked. Latest wins: nothing is queued and
nothing is signalled. It refuses to know widgets and what a step means.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.trace import Trace, TraceHeader
from engine.types import Finished, StepTaken

log = logging.getLogger("unblur.inspector")
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


class LiveTrace:
    """One slot: the running reply's trace, or the last one's. The worker calls `begin` and `add`,
    the window `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reply_id = ""
        self._header = TraceHeader()
        self._count = 0
        self._version = 0
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._pieces: dict[int, str] = {}

    def begin(self, reply_id: str, header: TraceHeader) -> None:
        """Forgets the last reply. header: of the one that begins."""
        with self._lock:
            self._reply_id, self._header = reply_id, header
            self._count = 0
            self._arrays, self._pieces = {}, {}

    def add(self, step: StepTaken, pieces: Pieces) -> None:
        """Appends a step. pieces: display text of ids (not kept: it holds the model). A step that
        has other shapes than the first is left out, and logged: the answer goes on, and the trace
        shows the gap."""
        if self._count and not self._fits(step):
            log.error("step %d of block %d could not be recorded", step.step, step.block)
            return
        seen = [step.ids, step.edited_from]
        if self._count == 0:
            seen += [
                np.array(ids, np.int32) for ids in (self._header.prompt_ids, self._header.stop_ids)
            ]
        if step.top_ids is not None:
            seen.append(step.top_ids.reshape(-1))
        ids = np.unique(np.concatenate(seen)).tolist()
        new = [i for i in ids if i >= 0 and i not in self._pieces]
        shown = dict(zip(new, pieces(new), strict=True)) if new else {}
        with self._lock:
            self._pieces.update(shown)
            self._make_room(step)
            for name, array in self._arrays.items():
                array[self._count] = getattr(step, name)
            self._count += 1
            self._version += 1

    def _fits(self, step: StepTaken) -> bool:
        shapes = {name: array.shape[1:] for name, array in self._arrays.items()}
        values = {name: getattr(step, name) for name in (*shapes, "top_ids", "top_p")}
        given = {name: np.shape(value) for name, value in values.items() if value is not None}
        return given == shapes

    def end(self, finished: Finished) -> None:
        """The reply is complete: how it ended becomes part of the trace."""
        with self._lock:
            self._header = replace(
                self._header, reason=finished.reason, text=finished.text, stats=finished.stats
            )

    def _make_room(self, step: StepTaken) -> None:
        capacity = len(self._arrays["step"]) if self._arrays else 0
        if self._count < capacity:
            return
        larger = max(FIRST_CAPACITY, 2 * capacity)
        for name, kind in _SCALARS:
            self._grow(name, np.zeros(larger, kind))
        for name, kind in _CELLS:
            self._grow(name, np.zeros((larger, len(step.ids)), kind))
        for name, values in (("top_ids", step.top_ids), ("top_p", step.top_p)):
            if values is not None:
                self._grow(name, np.zeros((larger, *values.shape), values.dtype))

    def _grow(self, name: str, room: npt.NDArray[Any]) -> None:
        if name in self._arrays:
            room[: self._count] = self._arrays[name]
        self._arrays[name] = room

    def take(self, seen: int) -> tuple[int, Trace] | None:
        """All steps so far and the number that says so, if there are others than when that number
        was `seen`; else None. Readers do not take from each other."""
        with self._lock:
            if self._version == seen or self._count == 0:
                return None
            return self._version, self._trace()

    def latest(self, reply_id: str) -> Trace | None:
        """All steps of this reply, None when it is not the one held or has none yet."""
        with self._lock:
            if self._reply_id != reply_id or self._count == 0:
                return None
            return self._trace()

    def _trace(self) -> Trace:
        views: dict[str, Any] = {name: array[: self._count] for name, array in self._arrays.items()}
        return Trace(**views, header=replace(self._header, pieces=dict(self._pieces)))

    @property
    def reply_id(self) -> str:
        """Whose steps these are; "" before the first reply."""
        return self._reply_id
