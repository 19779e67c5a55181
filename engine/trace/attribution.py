"""Which earlier tokens a step's confidence rests on: the question, and the answer.

Knows how the canvas before a step is read back from a trace, and which tokens can be taken away.
How the step is run without them is the engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.trace.errors import TraceError
from engine.trace.trace import Trace
from engine.types import TokenState

SETTLED = (TokenState.COMMITTED, TokenState.EDITED)
# Tokens of the step's own block, those of the block before, too, or of the whole reply so far.
Reach = Literal["block", "near", "reply"]


@dataclass(frozen=True, eq=False)
class Attribution:
    """Of `token` at `position` (absolute) in a step (row of the trace). confidence: its probability
    when the step is run again as it was (plain softmax). positions, tokens int32 [N]: what had been
    accepted before, by position. without float32 [N]: the token's probability with one of them
    masked, all else equal."""

    step: int
    position: int
    token: int
    confidence: float
    positions: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    without: npt.NDArray[np.float32]

    @property
    def effect(self) -> npt.NDArray[np.float32]:
        """float32 [N]: what each token adds to the confidence; below 0 = it speaks against it."""
        return (np.float32(self.confidence) - self.without).astype(np.float32)


@dataclass(frozen=True, eq=False)
class StepInput:
    """What a step's forward read. start: of its block; within: forwards the block had taken. before
    int64 [start]: all final tokens before the block. canvas int64 [L], settled bool [L]: tokens of
    the block, and which of them stood there; the others were masks or noise. given: settled
    positions of the prompt."""

    start: int
    within: int
    before: npt.NDArray[np.int64]
    canvas: npt.NDArray[np.int64]
    settled: npt.NDArray[np.bool_]
    given: npt.NDArray[np.bool_]


def step_input(trace: Trace, row: int, position: int) -> StepInput:
    """Read back from the arrays. Raises TraceError `trace.attribution` for a step or a position
    that cannot be asked about, or steps that were not recorded."""
    if not 0 <= row < len(trace):
        raise _refused(f"Step {row} is not in this trace.", "Choose another step")
    start, length = int(trace.block_start[row]), trace.ids.shape[1]
    column = position - start
    if not 0 <= column < length:
        raise _refused(
            f"Position {position} is not in the block that step {row} works on.",
            f"Choose a position from {start} to {start + length - 1}",
        )
    if trace.state[row, column] == TokenState.PROMPT:
        raise _refused(f"Position {position} belongs to the prompt.", "Choose another one")
    given = trace.state[row] == TokenState.PROMPT
    within = int(trace.step[row])
    settled, canvas = given.copy(), trace.ids[row].astype(np.int64)
    if within:
        if (
            row == 0
            or trace.block[row - 1] != trace.block[row]
            or trace.step[row - 1] != within - 1
        ):
            raise _refused(f"The step before step {row} was not recorded.", "Choose another step")
        canvas = trace.ids[row - 1].astype(np.int64)
        settled |= np.isin(trace.state[row - 1], SETTLED)
    for parent in trace.header.ancestry:
        _apply(
            parent.change.force,
            parent.block_start,
            parent.block_step,
            start,
            within,
            canvas,
            settled,
        )
        if (parent.block_start, parent.block_step) == (start, within):
            for taken in parent.change.mask:
                settled[taken - start] = False
    before = _before(trace, row)
    if len(before) != start:
        raise _refused("The reply's first blocks were not recorded.", "Record the reply again")
    return StepInput(start, within, before, canvas, settled, given)


def _apply(
    forced: tuple[tuple[int, int], ...],
    block_start: int,
    block_step: int,
    start: int,
    within: int,
    canvas: npt.NDArray[np.int64],
    settled: npt.NDArray[np.bool_],
) -> None:
    """Tokens a fork put there at the start of just this step."""
    for position, token in forced:
        column, now = position - start, block_step if block_start == start else 0
        if 0 <= column < len(canvas) and now == within:
            canvas[column], settled[column] = token, True


def _before(trace: Trace, row: int) -> npt.NDArray[np.int64]:
    prompt = np.array(trace.header.prompt_ids, dtype=np.int64)
    first = int(trace.block_start[0])
    parts = [prompt[:first]]
    for block in range(int(trace.block[0]), int(trace.block[row])):
        rows = trace.steps_of(block)
        if not rows.size:
            raise _refused(f"No step of block {block} was recorded.", "Choose an earlier step")
        last = rows[-1]
        left = ~np.isin(trace.state[last], (*SETTLED, TokenState.PROMPT))
        parts.append(np.where(left, trace.header.mask_id, trace.ids[last]).astype(np.int64))
    return np.concatenate(parts)


def _refused(problem: str, action: str) -> TraceError:
    return TraceError("trace.attribution", problem, f"{action}.")
