"""A recorded reply as the inspector's views ask for it: by step, by position, and by what changed.

It knows how the rows of a `Trace` (one a step, of one block each) become a canvas of all positions:
before its block begins a position is not there yet, after its block's last step it keeps what that
step left. It knows numpy alone and refuses to know Qt, colours and where a trace came from. Nothing
of steps x positions is ever built: a long reply would need many times its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from engine.trace import Trace
from engine.types import TokenState

SETTLED = (TokenState.COMMITTED, TokenState.EDITED)
BeforeAfter = tuple[int, int]  # token ids


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of one block: rows first..last of the trace (both included), and the
    block's first position, counted from the reply's first block."""

    block: int
    first: int
    last: int
    begin: int


@dataclass(frozen=True, eq=False)
class CanvasState:
    """All P positions after one step. there bool [P]: the position's block has begun. row, column
    intp [P]: where its cell lies in the trace (row of the block's first step where not there)."""

    there: npt.NDArray[np.bool_]
    row: npt.NDArray[np.intp]
    column: npt.NDArray[np.intp]


@dataclass(frozen=True)
class Moment:
    """One position after one step of its block. before: the id an edit of this very step replaced.
    top: (id, probability) of the captured candidates, best first; None = not captured."""

    step: int
    token: int
    state: TokenState
    confidence: float
    entropy: float
    before: int | None
    top: tuple[tuple[int, float], ...] | None


class InspectorData:
    """An indexed trace. All steps are rows of the trace (0..S-1), all positions are counted from
    the reply's first block (0..P-1)."""

    def __init__(self, trace: Trace) -> None:
        """Raises ValueError when the trace holds no step."""
        if len(trace) == 0:
            raise ValueError("a trace without steps cannot be looked at")
        self.trace = trace
        self.pieces = trace.header.pieces
        self.length = int(trace.ids.shape[1])
        self.steps = len(trace)
        self.segments = _segments(trace)
        self.positions = max(s.begin for s in self.segments) + self.length
        self.first_position = int(trace.block_start[0])
        owner = np.full(self.positions, -1, dtype=np.intp)
        for index, segment in enumerate(self.segments):
            owner[segment.begin : segment.begin + self.length] = index
        self._owner = owner
        held = np.maximum(owner, 0)
        begins = np.array([s.begin for s in self.segments], dtype=np.intp)
        self._first = np.array([s.first for s in self.segments], dtype=np.intp)[held]
        self._first[owner < 0] = self.steps  # no block ever covers it
        self._last = np.array([s.last for s in self.segments], dtype=np.intp)[held]
        self._column = np.arange(self.positions, dtype=np.intp) - begins[held]
        self._column[owner < 0] = 0

    # where things are

    def segment_at(self, step: int) -> Segment:
        """The block that `step` works on."""
        return self.segments[int(self._segment_of_step[step])]

    def segment_of(self, position: int) -> Segment | None:
        """The block a position lies in."""
        owner = int(self._owner[position])
        return None if owner < 0 else self.segments[owner]

    @cached_property
    def _segment_of_step(self) -> npt.NDArray[np.int32]:
        index = np.zeros(self.steps, dtype=np.int32)
        index[[s.first for s in self.segments[1:]]] = 1
        return np.cumsum(index, dtype=np.int32)

    def canvas(self, step: int) -> CanvasState:
        """Every position as it stands after `step`."""
        there = self._first <= step
        row = np.where(there, np.minimum(self._last, step), np.minimum(self._first, self.steps - 1))
        return CanvasState(there, row, self._column)

    def cells(
        self, steps: npt.NDArray[np.intp], positions: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """(there, row, column) of a grid [positions, steps], as in `CanvasState`."""
        first, last = self._first[positions, None], self._last[positions, None]
        there = first <= steps[None, :]
        row = np.where(there, np.minimum(last, steps[None, :]), 0)
        return there, row, np.broadcast_to(self._column[positions, None], row.shape)

    def text(self, token: int) -> str:
        """Display text of a token id; its number where the trace does not say."""
        return self.pieces.get(token, f"#{token}")

    def hides(self, state: TokenState) -> bool:
        """Whether a cell in this state holds no token worth showing: a mask. A canvas of noise has
        random tokens there instead."""
        return state == TokenState.MASKED and self.trace.header.mask_id >= 0

    # one position

    def now(self, step: int, position: int) -> Moment | None:
        """The position after `step`, or None when its block has not begun."""
        segment = self.segment_of(position)
        if segment is None or step < segment.first:
            return None
        return self._moment(min(step, segment.last), position - segment.begin)

    def history(self, position: int) -> tuple[Moment, ...]:
        """The position after every step of its block."""
        segment = self.segment_of(position)
        if segment is None:
            return ()
        column = position - segment.begin
        return tuple(self._moment(row, column) for row in range(segment.first, segment.last + 1))

    def _moment(self, row: int, column: int) -> Moment:
        trace = self.trace
        before = int(trace.edited_from[row, column])
        return Moment(
            step=row,
            token=int(trace.ids[row, column]),
            state=TokenState(int(trace.state[row, column])),
            confidence=float(trace.confidence[row, column]),
            entropy=float(trace.entropy[row, column]),
            before=before if before >= 0 else None,
            top=self._top(row, column),
        )

    def _top(self, row: int, column: int) -> tuple[tuple[int, float], ...] | None:
        ids, p = self.trace.top_ids, self.trace.top_p
        if ids is None or p is None:
            return None
        found = [
            (int(token), float(share))
            for token, share in zip(ids[row, column], p[row, column], strict=True)
            if token >= 0 and not np.isnan(share)
        ]
        return tuple(found) or None

    # what changed, a value a cell [S, L]

    @cached_property
    def settled(self) -> npt.NDArray[np.bool_]:
        """Cells that hold an accepted token."""
        return np.isin(self.trace.state, SETTLED)

    @cached_property
    def newly_settled(self) -> npt.NDArray[np.bool_]:
        """Cells accepted in this very step."""
        before = np.zeros_like(self.settled)
        before[1:] = self.settled[:-1]
        before[[s.first for s in self.segments]] = False
        return self.settled & ~before

    @cached_property
    def remasked(self) -> npt.NDArray[np.bool_]:
        """Cells whose accepted token was taken back in this step."""
        before = np.zeros_like(self.settled)
        before[1:] = self.settled[:-1]
        before[[s.first for s in self.segments]] = False
        return before & ~self.settled

    @cached_property
    def edited(self) -> npt.NDArray[np.bool_]:
        """Cells whose accepted token was replaced in this step."""
        return self.trace.edited_from >= 0

    @cached_property
    def commit_step(self) -> npt.NDArray[np.int16]:
        """Step of its block (0 = first) in which the cell's token was accepted; -1 = it is not."""
        local = np.where(self.newly_settled, self._local[:, None], -1).astype(np.int16)
        local = self._since_block_start(local)
        return np.where(self.settled, local, np.int16(-1))

    @cached_property
    def edits(self) -> npt.NDArray[np.int16]:
        """How often the cell was edited so far in its block."""
        total = np.cumsum(self.edited, axis=0, dtype=np.int32)
        for segment in reversed(self.segments[1:]):
            total[segment.first : segment.last + 1] -= total[segment.first - 1]
        return total.astype(np.int16)

    @cached_property
    def age(self) -> npt.NDArray[np.int16]:
        """Steps since the cell last showed another token or state; 0 = it changed in this step."""
        ids, state = self.trace.ids, self.trace.state
        changed = np.ones(ids.shape, dtype=np.bool_)
        changed[1:] = (ids[1:] != ids[:-1]) | (state[1:] != state[:-1])
        changed[[s.first for s in self.segments]] = True
        local = self._since_block_start(
            np.where(changed, self._local[:, None], -1).astype(np.int16)
        )
        return self._local[:, None] - local

    @property
    def margin(self) -> npt.NDArray[np.float32] | None:
        """Probability of the best candidate minus the second's; None where not captured."""
        p = self.trace.top_p
        if p is None or p.shape[2] < 2:
            return None
        return p[:, :, 0] - p[:, :, 1]

    @property
    def _local(self) -> npt.NDArray[np.int16]:
        return self.trace.step.astype(np.int16)

    def _since_block_start(self, values: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Running maximum down the steps of each block."""
        for segment in self.segments:
            rows = slice(segment.first, segment.last + 1)
            np.maximum.accumulate(values[rows], axis=0, out=values[rows])
        return values


def _segments(trace: Trace) -> tuple[Segment, ...]:
    cuts = np.flatnonzero(np.diff(trace.block) != 0) + 1
    firsts = [0, *(int(c) for c in cuts)]
    lasts = [*(f - 1 for f in firsts[1:]), len(trace) - 1]
    origin = int(trace.block_start.min())
    return tuple(
        Segment(int(trace.block[a]), a, b, int(trace.block_start[a]) - origin)
        for a, b in zip(firsts, lasts, strict=True)
    )
