"""Two recorded replies side by side: where they part, cell by cell, and why one took longer.

Positions are aligned by their absolute place; steps by their block and their number in it. Knows
arrays; the sentences are `engine.trace.why`'s. Refuses to guess: what cannot be aligned is None,
and `notes` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from engine.trace.drag import Drag, drag_of
from engine.trace.numbers import TraceNumbers, numbers_of
from engine.trace.reading import SETTLED, BlockSpan, kept_length, spans_of, text_of
from engine.trace.trace import Trace
from engine.types import TokenState


class Difference(IntEnum):
    """What a cell of the raster says of the two traces."""

    SAME = 0  # same token, same state
    STATE = 1  # same token, but open in one and accepted in the other
    GUESS = 2  # another token, open in both or in one
    TOKEN = 3  # another accepted token
    ONLY_A = 4  # b's block had ended, or has no such block
    ONLY_B = 5


@dataclass(frozen=True, eq=False)
class DifferenceRaster:
    """R rows, one for each step of each block that either trace has. cells uint8 [R, L]
    (`Difference`). confidence float32 [R, L]: a's minus b's; NaN where either was not judged.
    block_start, step int32 [R]: absolute, and the step's number in its block. row_a, row_b int64
    [R]: rows of the traces, -1 where there is none."""

    cells: npt.NDArray[np.uint8]
    confidence: npt.NDArray[np.float32]
    block_start: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    row_a: npt.NDArray[np.int64]
    row_b: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Divergence:
    """The gravest difference of the first step in which the two differ. position: absolute.
    block_start, step: the block's place and the step's number in it. kind: of the cell. token_*,
    state_*, confidence_*: of both there; None for a confidence that was not judged."""

    position: int
    block_start: int
    step: int
    kind: Difference
    token_a: int
    token_b: int
    state_a: TokenState
    state_b: TokenState
    confidence_a: float | None
    confidence_b: float | None


@dataclass(frozen=True, eq=False)
class FinalTokens:
    """What both hold at the end, P positions that either trace has. position int64 [P]: absolute.
    a, b int64 [P]: ids; -1 where a trace has no such position, or no accepted token in it.
    forward_a, forward_b int64 [P]: decode forwards when the token that stays was accepted; -1
    likewise. open_a, open_b int64 [P]: steps of its block after which the position was open.
    different bool [P]."""

    position: npt.NDArray[np.int64]
    a: npt.NDArray[np.int64]
    b: npt.NDArray[np.int64]
    forward_a: npt.NDArray[np.int64]
    forward_b: npt.NDArray[np.int64]
    open_a: npt.NDArray[np.int64]
    open_b: npt.NDArray[np.int64]
    different: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BlockSteps:
    """Steps that both spent on the block at `start`; None where a trace has none there."""

    start: int
    a: int | None
    b: int | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """a, b: figures of each. drag_a, drag_b: what cost each its steps. diverged: the first step in
    which they differ, None when none does or `raster` is None. first_token: absolute position of
    the first final token that differs. raster: None where blocks do not lie in the same places.
    blocks: empty then. slower: by tokens per forward ("a", "b"), None when equal or unknown.
    notes: sentences on what could not be aligned or should be known before the rest is read."""

    a: TraceNumbers
    b: TraceNumbers
    drag_a: Drag
    drag_b: Drag
    final: FinalTokens
    first_token: int | None
    diverged: Divergence | None
    raster: DifferenceRaster | None
    blocks: tuple[BlockSteps, ...]
    slower: str | None
    notes: tuple[str, ...]


def compare(a: Trace, b: Trace) -> Comparison:
    """Two traces of at least one step each. Raises ValueError for an empty one."""
    if len(a) == 0 or len(b) == 0:
        raise ValueError("a trace without steps cannot be compared")
    keys = _Keys(a, b)
    raster, blocks = None, ()
    if _same_grid(a, b):
        pairs = tuple(_paired(spans_of(a), spans_of(b)))
        raster = _raster(a, b, pairs, keys)
        blocks = tuple(_block_steps(one, other) for one, other in pairs)
    final = _final(a, b, keys)
    first = int(final.position[final.different.argmax()]) if final.different.any() else None
    numbers_a, numbers_b = numbers_of(a), numbers_of(b)
    return Comparison(
        a=numbers_a,
        b=numbers_b,
        drag_a=drag_of(a),
        drag_b=drag_of(b),
        final=final,
        first_token=first,
        diverged=None if raster is None else _divergence(a, b, raster),
        raster=raster,
        blocks=blocks,
        slower=_slower(numbers_a, numbers_b),
        notes=tuple(_notes(a, b, keys)),
    )


class _Keys:
    """Token ids as numbers that mean the same in both traces: the ids themselves, or, for two
    vocabularies, a number for each text."""

    def __init__(self, a: Trace, b: Trace) -> None:
        mine, other = a.header, b.header
        sizes = {mine.vocab_size, other.vocab_size} - {None}
        shared = mine.pieces.keys() & other.pieces.keys()
        self.by_text = len(sizes) > 1 or any(mine.pieces[i] != other.pieces[i] for i in shared)
        self._numbers: dict[str, int] = {}

    def of(self, trace: Trace, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        if not self.by_text:
            return ids.astype(np.int64)
        tokens, index = np.unique(ids, return_inverse=True)
        numbers = [
            -1 if token < 0 else self._numbers.setdefault(text_of(trace, token), len(self._numbers))
            for token in tokens.tolist()
        ]
        return np.array(numbers, dtype=np.int64)[index].reshape(ids.shape)


def _same_grid(a: Trace, b: Trace) -> bool:
    """Whether blocks of both begin in the same places."""
    length = a.ids.shape[1]
    return (
        length == b.ids.shape[1] and (int(a.block_start[0]) - int(b.block_start[0])) % length == 0
    )


def _paired(
    a: tuple[BlockSpan, ...], b: tuple[BlockSpan, ...]
) -> Iterator[tuple[BlockSpan | None, BlockSpan | None]]:
    ours, theirs = {s.start: s for s in a}, {s.start: s for s in b}
    for start in sorted(ours.keys() | theirs.keys()):
        yield ours.get(start), theirs.get(start)


def _block_steps(a: BlockSpan | None, b: BlockSpan | None) -> BlockSteps:
    either = a or b
    assert either is not None
    return BlockSteps(either.start, a.steps if a else None, b.steps if b else None)


def _raster(
    a: Trace,
    b: Trace,
    pairs: tuple[tuple[BlockSpan | None, BlockSpan | None], ...],
    keys: _Keys,
) -> DifferenceRaster:
    rows = [row for one, other in pairs for row in _aligned(a, b, one, other)]
    start = np.array([r[0] for r in rows], dtype=np.int32)
    step = np.array([r[1] for r in rows], dtype=np.int32)
    row_a = np.array([r[2] for r in rows], dtype=np.int64)
    row_b = np.array([r[3] for r in rows], dtype=np.int64)
    both = np.flatnonzero((row_a >= 0) & (row_b >= 0))
    cells = np.full((len(rows), a.ids.shape[1]), Difference.SAME, dtype=np.uint8)
    cells[row_b < 0] = Difference.ONLY_A
    cells[row_a < 0] = Difference.ONLY_B
    confidence = np.full(cells.shape, np.nan, dtype=np.float32)
    at_a, at_b = row_a[both], row_b[both]
    cells[both] = _cells(
        keys.of(a, a.ids[at_a]), keys.of(b, b.ids[at_b]), a.state[at_a], b.state[at_b]
    )
    confidence[both] = a.confidence[at_a] - b.confidence[at_b]
    return DifferenceRaster(cells, confidence, start, step, row_a, row_b)


def _aligned(
    a: Trace, b: Trace, one: BlockSpan | None, other: BlockSpan | None
) -> Iterator[tuple[int, int, int, int]]:
    """(block's place, step, row of a, row of b) of every step of a block that either has."""
    rows_a = _rows_by_step(a, one)
    rows_b = _rows_by_step(b, other)
    either = one or other
    assert either is not None
    for step in sorted(rows_a.keys() | rows_b.keys()):
        yield either.start, step, rows_a.get(step, -1), rows_b.get(step, -1)


def _rows_by_step(trace: Trace, span: BlockSpan | None) -> dict[int, int]:
    if span is None:
        return {}
    return {int(trace.step[row]): row for row in range(span.first, span.last + 1)}


def _cells(
    key_a: npt.NDArray[np.int64],
    key_b: npt.NDArray[np.int64],
    state_a: npt.NDArray[np.uint8],
    state_b: npt.NDArray[np.uint8],
) -> npt.NDArray[np.uint8]:
    """`Difference` of each cell. A mask's id says nothing: two masked cells are the same."""
    open_a = np.isin(state_a, (TokenState.MASKED, TokenState.DRAFT))
    open_b = np.isin(state_b, (TokenState.MASKED, TokenState.DRAFT))
    unguessed = (state_a == TokenState.MASKED) & (state_b == TokenState.MASKED)
    other = (key_a != key_b) & ~unguessed
    cells = np.full(key_a.shape, Difference.SAME, dtype=np.uint8)
    cells[open_a != open_b] = Difference.STATE
    cells[other & (open_a | open_b)] = Difference.GUESS
    cells[other & ~open_a & ~open_b] = Difference.TOKEN
    return cells


def _divergence(a: Trace, b: Trace, raster: DifferenceRaster) -> Divergence | None:
    differs = raster.cells != Difference.SAME
    rows = np.flatnonzero(differs.any(axis=1))
    paired = rows[(raster.row_a[rows] >= 0) & (raster.row_b[rows] >= 0)]
    if not paired.size:
        return None
    row = int(paired[0])
    column = int(raster.cells[row].argmax())  # of the differences in a step, the gravest
    at_a, at_b = int(raster.row_a[row]), int(raster.row_b[row])
    return Divergence(
        position=int(raster.block_start[row]) + column,
        block_start=int(raster.block_start[row]),
        step=int(raster.step[row]),
        kind=Difference(int(raster.cells[row, column])),
        token_a=int(a.ids[at_a, column]),
        token_b=int(b.ids[at_b, column]),
        state_a=TokenState(int(a.state[at_a, column])),
        state_b=TokenState(int(b.state[at_b, column])),
        confidence_a=_known(a.confidence[at_a, column]),
        confidence_b=_known(b.confidence[at_b, column]),
    )


def _known(value: np.float32) -> float | None:
    return None if np.isnan(value) else float(value)


def _final(a: Trace, b: Trace, keys: _Keys) -> FinalTokens:
    origin = min(int(a.block_start[0]), int(b.block_start[0]))
    end = max(int(t.block_start[-1]) + t.ids.shape[1] for t in (a, b))
    token_a, forward_a, open_a = _held(a, origin, end)
    token_b, forward_b, open_b = _held(b, origin, end)
    here = np.flatnonzero((token_a >= 0) | (token_b >= 0))
    token_a, token_b = token_a[here], token_b[here]
    key_a, key_b = keys.of(a, token_a), keys.of(b, token_b)
    return FinalTokens(
        position=here.astype(np.int64) + origin,
        a=token_a.astype(np.int64),
        b=token_b.astype(np.int64),
        forward_a=forward_a[here],
        forward_b=forward_b[here],
        open_a=open_a[here],
        open_b=open_b[here],
        different=key_a != key_b,
    )


def _held(
    trace: Trace, origin: int, end: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Accepted token, forward and open steps of every place from `origin` to `end`, up to the stop
    token."""
    tokens = np.full(end - origin, -1, dtype=np.int32)
    forwards = np.full(end - origin, -1, dtype=np.int64)
    opened = np.zeros(end - origin, dtype=np.int64)
    length = trace.ids.shape[1]
    for span in spans_of(trace):
        kept = kept_length(trace, span)
        place = slice(span.start - origin, span.start - origin + kept)
        ids, state = trace.ids[span.rows, :kept], trace.state[span.rows, :kept]
        held = np.isin(state, SETTLED)
        opened[place] = (~held & (state != TokenState.PROMPT)).sum(axis=0)
        stays = held & (ids == ids[-1]) & held[-1]
        since = np.logical_and.accumulate(stays[::-1], axis=0).sum(axis=0)
        row = np.minimum(span.last + 1 - since, span.last)
        tokens[place] = np.where(held[-1], ids[-1], -1)
        forwards[place] = np.where(held[-1], trace.forwards[row], -1)
        if kept < length:
            break
    return tokens, forwards, opened


def _slower(a: TraceNumbers, b: TraceNumbers) -> str | None:
    one, other = a["tpf"].value, b["tpf"].value
    if one is None or other is None or one == other:
        return None
    return "a" if one < other else "b"


def _notes(a: Trace, b: Trace, keys: _Keys) -> Iterator[str]:
    prompt_a, prompt_b = a.header.prompt_ids, b.header.prompt_ids
    if not prompt_a or not prompt_b:
        yield "Whether both answer the same prompt is not known: a trace does not hold its prompt."
    elif prompt_a != prompt_b:
        yield "The prompts differ, so that the same position need not mean the same place in both."
    for name, child, other in (("B", b, a), ("A", a, b)):
        parent = child.header.parent
        if parent is not None and parent.trace_id == other.header.trace_id:
            rival = "A" if name == "B" else "B"
            yield f"{name} is a fork of {rival}, from its step {parent.step + 1} on."
    if keys.by_text:
        yield "The two vocabularies differ: tokens are compared by their text."
    if a.header.mask_id != b.header.mask_id and not keys.by_text:
        yield "The two models use different masks."
    if not _same_grid(a, b):
        yield (
            f"Blocks of {a.ids.shape[1]} from position {int(a.block_start[0])} and blocks of "
            f"{b.ids.shape[1]} from {int(b.block_start[0])} do not lie in the same places: steps "
            "cannot be compared cell by cell, final tokens can."
        )
    for name, trace in (("A", a), ("B", b)):
        if trace.header.stats is None:
            yield f"{name} does not hold the end of its reply: it has no TPF."
