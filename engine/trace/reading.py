"""A trace read block by block: which rows are a block's, what each step changed, what was left.

Knows arrays alone, and holds for every reader (figures, comparison, exports) what "accepted",
"taken back" and "ended" mean. Refuses to know words, colours and files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.trace.trace import Trace
from engine.types import TokenState

Bools = npt.NDArray[np.bool_]
SETTLED = (TokenState.COMMITTED, TokenState.EDITED)
BlockEnd = Literal["complete", "cap", "stop_token", "unfinished"]


@dataclass(frozen=True)
class BlockSpan:
    """Rows first..last of a trace (both included), all of one block. start: the block's first
    absolute position."""

    block: int
    start: int
    first: int
    last: int

    @property
    def steps(self) -> int:
        return self.last - self.first + 1

    @property
    def rows(self) -> slice:
        return slice(self.first, self.last + 1)


@dataclass(frozen=True, eq=False)
class Changes:
    """What each step did, bool [S, L] each. accepted: the position became COMMITTED or EDITED in
    this step. taken_back: it was, and is open again. edited: its accepted token was replaced.
    judged: it is open or was accepted in this step, and a forward judged it (the positions that
    entropy and confidence curves are about)."""

    accepted: Bools
    taken_back: Bools
    edited: Bools
    judged: Bools


def spans_of(trace: Trace) -> tuple[BlockSpan, ...]:
    """The blocks of a trace in order. Empty for a trace without steps."""
    if len(trace) == 0:
        return ()
    cuts = np.flatnonzero(np.diff(trace.block)) + 1
    firsts = [0, *cuts.tolist()]
    lasts = [*(first - 1 for first in firsts[1:]), len(trace) - 1]
    return tuple(
        BlockSpan(int(trace.block[a]), int(trace.block_start[a]), a, b)
        for a, b in zip(firsts, lasts, strict=True)
    )


def settled(trace: Trace) -> Bools:
    """bool [S, L]: cells that hold an accepted token."""
    return (trace.state == TokenState.COMMITTED) | (trace.state == TokenState.EDITED)


def changes_of(trace: Trace, spans: tuple[BlockSpan, ...]) -> Changes:
    now = settled(trace)
    before = np.zeros_like(now)
    before[1:] = now[:-1]
    before[[span.first for span in spans]] = False
    live = ~(now & before) & (trace.state != TokenState.PROMPT)
    return Changes(
        accepted=now & ~before,
        taken_back=before & ~now,
        edited=trace.edited_from >= 0,
        judged=live & ~np.isnan(trace.confidence),
    )


def kept_length(trace: Trace, span: BlockSpan) -> int:
    """Positions of a block that its reply reaches: up to and including the first accepted stop
    token, all where there is none or the trace does not say which tokens stop."""
    row = span.last
    stops = np.isin(trace.ids[row], trace.header.stop_ids)
    stops &= np.isin(trace.state[row], SETTLED)
    return int(stops.argmax()) + 1 if stops.any() else trace.ids.shape[1]


def end_of(trace: Trace, span: BlockSpan, *, last: bool) -> BlockEnd:
    """How a block ended, as far as its trace tells. last: it is the trace's last block.

    complete: every position holds an accepted token. stop_token: every position up to an accepted
    stop token does. cap: its steps ran out, leaving positions open, or the reply says that it did
    not converge. unfinished: the reply was stopped, or the trace ends, within the block.
    """
    reason = trace.header.reason
    if last and reason == "did_not_converge":
        return "cap"
    kept = kept_length(trace, span)
    open_ = np.isin(trace.state[span.last], (TokenState.MASKED, TokenState.DRAFT))
    if not open_.any():
        return "complete"
    if not open_[:kept].any():
        return "stop_token"
    return "unfinished" if last and reason in (None, "stopped") else "cap"


def text_of(trace: Trace, token: int) -> str:
    """Display text of a token id; its number where the trace does not say. "" for -1: no token."""
    return "" if token < 0 else trace.header.pieces.get(token, f"#{token}")
