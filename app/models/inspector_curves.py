"""What happened at each step of a recorded reply, as numbers on one time axis, and as marks.

It knows the definitions of the curves and which steps are worth a mark. It refuses to know how they
are drawn. A number that was not recorded is NaN, never 0.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from app.models.inspector_data import InspectorData
from engine.types import TokenState

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curves:
    """All float64 [S], one number a step.

    seconds: since the first decode forward began, at the end of the step. milliseconds: of the
    step, from the end of the one before (a cache commit between two blocks is in it).
    entropy_mean, entropy_max (nats), confidence_mean, confidence_min: over the positions that are
    still open in the step or were accepted in it (block-local: no other block is judged);
    confidence is of the token shown. committed: tokens accepted in the step, block-local.
    tpf: tokens accepted so far per decode forward so far, those behind the first stop token left
    out: at the reply's end it is the reply's TPF.
    """

    seconds: Numbers
    milliseconds: Numbers
    entropy_mean: Numbers
    entropy_max: Numbers
    confidence_mean: Numbers
    confidence_min: Numbers
    committed: Numbers
    tpf: Numbers


def curves_of(data: InspectorData) -> Curves:
    trace = data.trace
    seconds = trace.seconds.astype(np.float64)
    live = (trace.state != TokenState.PROMPT) & (~data.settled | data.newly_settled)
    entropy = np.where(live, trace.entropy, np.nan).astype(np.float64)
    confidence = np.where(live, trace.confidence, np.nan).astype(np.float64)
    committed = data.newly_settled.sum(axis=1).astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step that judged nothing: NaN is meant
        return Curves(
            seconds=seconds,
            milliseconds=np.diff(seconds, prepend=0.0) * 1000,
            entropy_mean=np.nanmean(entropy, axis=1),
            entropy_max=np.nanmax(entropy, axis=1),
            confidence_mean=np.nanmean(confidence, axis=1),
            confidence_min=np.nanmin(confidence, axis=1),
            committed=committed,
            tpf=_kept(data) / np.maximum(trace.forwards, 1),
        )


def _kept(data: InspectorData) -> Numbers:
    """[S]: accepted tokens of the reply after each step, up to the first stop token."""
    stops = data.settled & np.isin(data.trace.ids, data.trace.header.stop_ids)
    ended = np.asarray(stops.any(axis=1))
    width = np.where(ended, stops.argmax(axis=1) + 1, data.length)
    within = np.arange(data.length)[None, :] < width[:, None]
    kept = (data.settled & within).sum(axis=1).astype(np.float64)
    before = 0.0
    for segment in data.segments:
        rows = slice(segment.first, segment.last + 1)
        kept[rows] += before
        before = float(kept[segment.last])
        if bool(np.take(ended, segment.last)):
            kept[segment.last + 1 :] = before
            break
    return kept


class MarkKind(Enum):
    BLOCK = "block"  # a block's first step
    EDIT = "edit"  # accepted tokens were replaced
    REMASK = "remask"  # accepted tokens were taken back
    CAP = "cap"  # a block's last step left positions open
    STOP = "stop"  # a stop token was accepted
    DOUBT = "doubt"  # accepted tokens fell below `DOUBTED`
    GAP = "gap"  # steps before this one were not recorded


@dataclass(frozen=True)
class Mark:
    """Something that happened in a step. count: of the positions it happened to; block's number for
    BLOCK. position: the first of them."""

    kind: MarkKind
    step: int
    count: int
    position: int


DOUBTED = 0.5  # of the confidence in a token that has been accepted
# how a reply ends whose last block is as finished as it will ever be
ENDED = ("stop_token", "length", "did_not_converge")


def marks_of(data: InspectorData) -> tuple[Mark, ...]:
    """All marks, in the order of their steps."""
    marks = [Mark(MarkKind.BLOCK, s.first, s.block, s.begin) for s in data.segments]
    stops = np.isin(data.trace.ids, data.trace.header.stop_ids) & data.newly_settled
    for kind, cells in (
        (MarkKind.EDIT, data.edited),
        (MarkKind.REMASK, data.remasked),
        (MarkKind.STOP, stops),
        (MarkKind.DOUBT, _newly_doubted(data)),
    ):
        for step in np.flatnonzero(cells.any(axis=1)).tolist():
            begin = data.segment_at(step).begin
            count, column = int(cells[step].sum()), int(cells[step].argmax())
            marks.append(Mark(kind, step, count, begin + column))
    for step, missing in _gaps(data):
        marks.append(Mark(MarkKind.GAP, step, missing, data.segment_at(step).begin))
    ended = data.trace.header.reason in ENDED
    for segment in data.segments if ended else data.segments[:-1]:
        open_ = np.isin(data.trace.state[segment.last], (TokenState.MASKED, TokenState.DRAFT))
        if open_.any():
            column = int(open_.argmax())
            marks.append(Mark(MarkKind.CAP, segment.last, int(open_.sum()), segment.begin + column))
    return tuple(sorted(marks, key=lambda mark: (mark.step, mark.kind.value)))


def _newly_doubted(data: InspectorData) -> npt.NDArray[np.bool_]:
    """bool [S, L]: accepted in an earlier step, and in this one for the first time in a row judged
    below `DOUBTED`."""
    kept = data.settled & ~data.newly_settled
    doubted = kept & (data.trace.confidence < DOUBTED)
    before = np.zeros_like(doubted)
    before[1:] = doubted[:-1]
    before[[s.first for s in data.segments]] = False
    return doubted & ~before


def _gaps(data: InspectorData) -> list[tuple[int, int]]:
    """(step, how many before it are missing): where a block's steps do not follow each other."""
    numbers = data.trace.step.astype(np.int64)
    expected = np.zeros_like(numbers)
    expected[1:] = numbers[:-1] + 1
    expected[[s.first for s in data.segments]] = 0
    missing = numbers - expected
    return [(int(step), int(missing[step])) for step in np.flatnonzero(missing > 0)]


def commit_front(data: InspectorData) -> npt.NDArray[np.intp]:
    """intp [S]: the first position that is still open after each step; one past the block when none
    is."""
    done = data.settled | (data.trace.state == TokenState.PROMPT)
    front = np.where(done.all(axis=1), data.length, np.argmin(done, axis=1))
    for segment in data.segments:
        front[segment.first : segment.last + 1] += segment.begin
    return front
