"""A fork of a recorded reply: the same reply up to a step, and something else from there on.

Knows which changes make sense at a step of a trace, and what they add up to over a chain of forks.
How a reply is made to follow them is the engine's business. Refuses what a model could not do, in
words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from engine.trace.errors import TraceError
from engine.trace.header import Change, TraceHeader, TraceParent, new_trace_id, now
from engine.trace.trace import Trace
from engine.types import Capture, StepTaken

EVERYWHERE = -1  # position of a ban that holds at all positions


@dataclass(frozen=True, eq=False)
class Fork:
    """step: row of the trace at whose start `change` is made; len(trace) is not one."""

    trace: Trace
    step: int
    change: Change = field(default_factory=Change)
    capture: Capture = field(default_factory=Capture)


def parent_of(fork: Fork) -> TraceParent:
    """What the fork's own trace will say of where it comes from. Raises TraceError
    `trace.fork_step`."""
    trace, row = fork.trace, fork.step
    if not 0 <= row < len(trace):
        raise TraceError(
            "trace.fork_step",
            f"Step {row} is not in this trace, which has {len(trace)} steps.",
            f"Choose a step from 0 to {len(trace) - 1}.",
        )
    start, step = int(trace.block_start[row]), int(trace.step[row])
    return TraceParent(trace.header.trace_id, row, start, step, fork.change)


def header_of_fork(fork: Fork) -> TraceHeader:
    """The header of the fork's trace before it has run."""
    parent = parent_of(fork)
    return replace(
        fork.trace.header,
        trace_id=new_trace_id(),
        created=now(),
        capture=fork.capture.level,
        top_k=fork.capture.top_k if fork.capture.level in ("top-k", "full") else 0,
        reason=None,
        text="",
        stats=None,
        pieces={},
        ancestry=(*fork.trace.header.ancestry, parent),
    )


def check_change(
    trace: Trace, parent: TraceParent, vocab_size: int, suppressed: int | None
) -> None:
    """Raises TraceError `trace.fork_change` for a change that cannot be made at its step.
    suppressed: the mask id, which stands for "nothing yet" and cannot be forced."""
    change, begin = parent.change, parent.block_start
    length = trace.ids.shape[1]
    prompt = len(trace.header.prompt_ids)
    end = max(prompt + trace.header.max_new_tokens, begin + length)
    forced = [position for position, _ in change.force]
    where = [*forced, *change.mask, *(p for p, _ in change.ban if p != EVERYWHERE)]
    for position in where:
        if position < prompt:
            raise _refused(f"Position {position} belongs to the prompt.", "Edit the prompt instead")
        if position < begin:
            raise _refused(
                f"Position {position} lies in a block that is finished at this step.",
                "Fork at a step of that block",
            )
        if position >= end:
            raise _refused(f"Position {position} lies behind the reply.", "Choose another one")
    for position in change.mask:
        if position >= begin + length:
            raise _refused(
                f"Position {position} lies in a block that has not begun, so nothing stands there.",
                "Fork at a step of that block",
            )
    for _, token in (*change.force, *change.ban):
        if not 0 <= token < vocab_size:
            raise _refused(f"Token {token} is not in the vocabulary.", "Choose another one")
    if any(token == suppressed for _, token in change.force):
        raise _refused("The mask cannot be forced.", "Take the position's token back instead")
    twice = {p for p in forced if forced.count(p) > 1} | (set(forced) & set(change.mask))
    if twice:
        raise _refused(f"Position {min(twice)} is changed twice.", "Keep one of the changes")


def check_same(fork: Fork, step: StepTaken) -> None:
    """Raises TraceError `trace.fork_differs` when a step before the fork is not its parent's."""
    trace = fork.trace
    before = slice(0, fork.step)
    same = (trace.block_start[before] == step.block_start) & (trace.step[before] == step.step)
    rows = np.flatnonzero(same)
    if not rows.size:
        return  # the parent did not record it, or it comes after the fork
    row = int(rows[0])
    pairs = (
        (trace.ids, step.ids),
        (trace.state, step.state),
        (trace.edited_from, step.edited_from),
    )
    if all(np.array_equal(theirs[row], ours) for theirs, ours in pairs):
        return
    raise TraceError(
        "trace.fork_differs",
        f"Here the reply takes another way than the trace at step {row} already, before the fork:"
        " this machine, runtime or model rounds differently.",
        "Record the reply on this machine, then fork that trace.",
    )


def _refused(problem: str, action: str) -> TraceError:
    return TraceError("trace.fork_change", problem, f"{action}.")
