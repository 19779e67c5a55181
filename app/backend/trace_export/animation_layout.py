"""Where each token of a reply stands in its animation: lines of columns, fixed by the final text,
so that nothing moves while it comes into focus.

Knows texts and columns. Refuses to know pixels and states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.backend.trace_export.lettering import columns, visible
from engine.trace import Trace
from engine.trace.reading import BlockSpan, kept_length, spans_of, text_of

LINE_COLUMNS = 76


@dataclass(frozen=True)
class Place:
    """A token's cell. line, begin, width: in lines and columns. span: index of its block. column:
    of the trace's arrays."""

    line: int
    begin: int
    width: int
    span: int
    column: int


@dataclass(frozen=True)
class AnimationLayout:
    """spans: blocks of the trace that the reply reaches. places: in the order of the text. lines:
    how many."""

    spans: tuple[BlockSpan, ...]
    places: tuple[Place, ...]
    lines: int


def lay_out(trace: Trace) -> AnimationLayout:
    """Every position up to and including the final text's first stop token."""
    spans = _reached(trace)
    cells = list(_cells(trace, spans))
    places: list[Place] = []
    line = at = 0
    for word in _words(cells):
        width = sum(cell.width for cell in word)
        if at and at + width > LINE_COLUMNS:
            line, at = line + 1, 0
        for cell in word:
            if at and at + cell.width > LINE_COLUMNS:  # a word longer than a line
                line, at = line + 1, 0
            places.append(Place(line, at, cell.width, cell.span, cell.column))
            at += cell.width
            if cell.ends_line:
                line, at = line + 1, 0
    return AnimationLayout(spans, tuple(places), line + (1 if at or not line else 0))


@dataclass(frozen=True)
class _Cell:
    width: int
    span: int
    column: int
    begins_word: bool
    ends_line: bool


def _reached(trace: Trace) -> tuple[BlockSpan, ...]:
    found: list[BlockSpan] = []
    for span in spans_of(trace):
        found.append(span)
        if kept_length(trace, span) < trace.ids.shape[1]:
            break
    return tuple(found)


def _cells(trace: Trace, spans: tuple[BlockSpan, ...]) -> Iterator[_Cell]:
    for index, span in enumerate(spans):
        for column in range(kept_length(trace, span)):
            text = text_of(trace, int(trace.ids[span.last, column]))
            width = min(max(1, columns(visible(text))), LINE_COLUMNS)
            yield _Cell(width, index, column, text[:1].isspace(), "\n" in text)


def _words(cells: list[_Cell]) -> Iterator[list[_Cell]]:
    """Tokens that belong to one word: it begins with a space, and ends before the next one."""
    word: list[_Cell] = []
    for cell in cells:
        if word and (cell.begins_word or word[-1].ends_line):
            yield word
            word = []
        word.append(cell)
    if word:
        yield word
