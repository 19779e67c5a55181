"""Where each token of a canvas lies: words are kept whole, lines are at most as wide as the column.

It knows cells, widths and line breaks. It measures text through a function it is given, so it
refuses to know fonts and widgets. Finished blocks are laid out once; only the blocks that can still
change are laid out again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.models.snapshot import BlockView, Cell
from engine.types import TokenState

MASKED_CHARACTERS = 5  # a token is about four characters and a space
RETURN_MARK = "↵"
END_MARK = "·"


@dataclass(frozen=True)
class Placed:
    """A cell on the page, logical pixels from the canvas's corner. text: what is drawn (may differ
    from the cell's).

    index: (block, position in the block).
    """

    cell: Cell
    text: str
    x: float
    y: float
    width: float
    index: tuple[int, int]


def _line_of(placed: Placed) -> float:
    return placed.y


@dataclass(frozen=True)
class _Cursor:
    x: float = 0.0
    y: float = 0.0


class CanvasLayout:
    """Flows blocks of cells into lines. `measure(text)` gives the width of text in the canvas's
    font.
    """

    def __init__(self, measure: Callable[[str], float], line_height: float) -> None:
        self._measure = measure
        self._line_height = line_height
        self._width = 0.0
        self._done: list[BlockView] = []  # finished blocks already in _kept
        self._kept: list[Placed] = []
        self._kept_end = _Cursor()
        self.placed: list[Placed] = []
        self.height = line_height
        self.settled_height = 0.0  # above this nothing can change any more

    def flow(self, blocks: Sequence[BlockView], width: float) -> None:
        """Lays `blocks` out in `width` logical pixels; the result is in `placed` and `height`."""
        final = [block for block in blocks if block.final]
        if width != self._width or final[: len(self._done)] != self._done:
            self._width, self._done, self._kept, self._kept_end = width, [], [], _Cursor()
        for block in final[len(self._done) :]:
            placed, self._kept_end = self._place(block, self._kept_end)
            self._kept += placed
            self._done.append(block)
        self.placed = list(self._kept)
        cursor = self._kept_end
        for block in blocks:
            if not block.final:
                placed, cursor = self._place(block, cursor)
                self.placed += placed
        self.height = cursor.y + self._line_height
        self.settled_height = self._kept_end.y

    def between(self, top: float, bottom: float) -> list[Placed]:
        """What lies on lines that begin from `top` to `bottom`."""
        first = bisect_left(self.placed, top, key=_line_of)
        return self.placed[first : bisect_right(self.placed, bottom, key=_line_of)]

    def _place(self, block: BlockView, at: _Cursor) -> tuple[list[Placed], _Cursor]:
        placed: list[Placed] = []
        x, y = at.x, at.y
        for word in _words(block.cells):
            widths = [self._cell_width(block.cells[i]) for i in word]
            wrapped = x > 0 and x + sum(widths) > self._width
            if wrapped:
                x, y = 0.0, y + self._line_height
            for i, width in zip(word, widths, strict=True):
                cell = block.cells[i]
                if x > 0 and x + width > self._width:
                    x, y = 0.0, y + self._line_height
                text = shown_text(cell)
                if x == 0 and text.startswith(" ") and (wrapped or text.strip()):
                    text = text.lstrip(" ")
                    width = self._measure(text)
                placed.append(Placed(cell, text, x, y, width, (block.index, i)))
                x += width
                breaks = _breaks(cell)
                if breaks:
                    x, y = 0.0, y + breaks * self._line_height
        return placed, _Cursor(x, y)

    def _cell_width(self, cell: Cell) -> float:
        if cell.state == TokenState.MASKED:
            return self._measure("n" * MASKED_CHARACTERS)
        return self._measure(shown_text(cell))


def shown_text(cell: Cell) -> str:
    """What is drawn for a cell: a draft's line break is a mark, so that lines do not jump while it
    is a guess.
    """
    if cell.special:
        return END_MARK
    text = cell.text.replace("\t", "    ").replace("\r", "")
    if _breaks(cell):
        return text.replace("\n", "")
    return text.replace("\n", RETURN_MARK)


def _breaks(cell: Cell) -> int:
    """How many lines a cell ends: only text that is on the canvas breaks lines."""
    settled = cell.state in (TokenState.COMMITTED, TokenState.EDITED, TokenState.PROMPT)
    return cell.text.count("\n") if settled and not cell.special else 0


def _words(cells: Sequence[Cell]) -> list[list[int]]:
    """Indices of cells that must not be torn apart: a new word begins at a space, a mark, a bar or
    a break.
    """
    words: list[list[int]] = []
    for i, cell in enumerate(cells):
        previous = cells[i - 1] if i else None
        joined = (
            previous is not None
            and not cell.special
            and not previous.special
            and cell.state != TokenState.MASKED
            and previous.state != TokenState.MASKED
            and not cell.text[:1].isspace()
            and not previous.text[-1:].isspace()
        )
        if joined:
            words[-1].append(i)
        else:
            words.append([i])
    return words
