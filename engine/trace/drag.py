"""What cost a recorded reply its steps: positions that stayed open, edits that came to nothing,
blocks that ran out of steps.

Knows one trace. Refuses to know words beyond a token's text: sentences are the comparison's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.trace.reading import (
    BlockSpan,
    Changes,
    changes_of,
    end_of,
    kept_length,
    settled,
    spans_of,
)
from engine.trace.trace import Trace
from engine.types import TokenState

MOST_NAMED = 10


@dataclass(frozen=True)
class Stubborn:
    """A position that stayed open for long. position: absolute. open_steps: steps of its block
    after which it held no accepted token. block_steps: all of the block's. entropy: mean over those
    steps, nats; None where no forward judged it. guesses: different tokens it was guessed to be in
    them; token: what it holds at the end. open_at_end: it was never accepted for good."""

    position: int
    block: int
    open_steps: int
    block_steps: int
    entropy: float | None
    guesses: int
    token: int
    open_at_end: bool


@dataclass(frozen=True)
class Undone:
    """An edit that a later edit of the same position took back. Steps are the block's own (0 =
    first): in `step` the token `before` gave way to `between`, in `undone_step` it returned."""

    position: int
    block: int
    step: int
    undone_step: int
    before: int
    between: int


@dataclass(frozen=True)
class Drag:
    """stubborn: longest open first, at most `MOST_NAMED`, those alone that were open after at least
    one step. undone: by position, then step. idle_steps: steps that accepted nothing, edited
    nothing and took nothing back (checks that a block is done are among them). undone_steps: steps
    that did nothing but edits that came to nothing, and taking them back. capped: blocks whose
    steps ran out."""

    stubborn: tuple[Stubborn, ...]
    undone: tuple[Undone, ...]
    idle_steps: int
    undone_steps: int
    capped: tuple[int, ...]


def drag_of(trace: Trace) -> Drag:
    spans = spans_of(trace)
    changes = changes_of(trace, spans)
    undone = _undone(trace, spans, changes)
    idle = ~(changes.accepted | changes.edited | changes.taken_back).any(axis=1)
    return Drag(
        stubborn=_stubborn(trace, spans),
        undone=undone,
        idle_steps=int(idle.sum()),
        undone_steps=_vain_steps(trace, spans, changes, undone),
        capped=tuple(s.block for s in spans if end_of(trace, s, last=s is spans[-1]) == "cap"),
    )


def _stubborn(trace: Trace, spans: tuple[BlockSpan, ...]) -> tuple[Stubborn, ...]:
    open_ = ~settled(trace) & (trace.state != TokenState.PROMPT)
    counts = [
        open_[span.rows, : kept_length(trace, span)].sum(axis=0) for span in spans
    ]  # what lies behind a stop token was never owed to the reply
    found = [
        (int(count[column]), index, int(column))
        for index, count in enumerate(counts)
        for column in np.argsort(-count, kind="stable")[:MOST_NAMED]
        if count[column] > 0
    ]
    found.sort(key=lambda item: (-item[0], item[1], item[2]))
    return tuple(
        _stubborn_at(trace, spans[index], column, open_[spans[index].rows, column])
        for _, index, column in found[:MOST_NAMED]
    )


def _stubborn_at(
    trace: Trace, span: BlockSpan, column: int, open_: npt.NDArray[np.bool_]
) -> Stubborn:
    entropy = trace.entropy[span.rows, column][open_]
    entropy = entropy[~np.isnan(entropy)]
    drafts = trace.state[span.rows, column] == TokenState.DRAFT
    return Stubborn(
        position=span.start + column,
        block=span.block,
        open_steps=int(open_.sum()),
        block_steps=span.steps,
        entropy=float(entropy.mean(dtype=np.float64)) if entropy.size else None,
        guesses=len(np.unique(trace.ids[span.rows, column][drafts])),
        token=int(trace.ids[span.last, column]),
        open_at_end=bool(open_[-1]),
    )


def _undone(trace: Trace, spans: tuple[BlockSpan, ...], changes: Changes) -> tuple[Undone, ...]:
    found: list[Undone] = []
    for span in spans:
        edited = changes.edited[span.rows]
        for column in np.flatnonzero(edited.any(axis=0)).tolist():
            rows = span.first + np.flatnonzero(edited[:, column])
            found += _undone_at(trace, span, column, rows)
    return tuple(found)


def _undone_at(
    trace: Trace, span: BlockSpan, column: int, rows: npt.NDArray[np.intp]
) -> Iterator[Undone]:
    """rows: of the trace, in which the position was edited."""
    given_up: dict[int, tuple[int, int]] = {}  # token: (step, what came instead)
    replaced = trace.edited_from[rows, column].tolist()
    came = trace.ids[rows, column].tolist()
    for before, after, step in zip(replaced, came, trace.step[rows].tolist(), strict=True):
        if after in given_up:
            first, between = given_up.pop(after)
            yield Undone(span.start + column, span.block, first, step, after, between)
        given_up[before] = (step, after)


def _vain_steps(
    trace: Trace, spans: tuple[BlockSpan, ...], changes: Changes, undone: tuple[Undone, ...]
) -> int:
    """Steps in which every edit belongs to an undone pair and nothing else happened."""
    useful = changes.edited.copy()
    by_block = {span.block: span for span in spans}
    for edit in undone:
        span = by_block[edit.block]
        for step in (edit.step, edit.undone_step):
            row = span.first + int(np.searchsorted(trace.step[span.rows], step))
            useful[row, edit.position - span.start] = False
    quiet = ~(useful | changes.accepted | changes.taken_back).any(axis=1)
    return int((quiet & changes.edited.any(axis=1)).sum())
