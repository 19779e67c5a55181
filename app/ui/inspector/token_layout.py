"""Where each position of the inspector's canvas lies: one place for the whole trace.

It knows that a position must not move while a person scrubs: its width comes from the token it ends
with, and a longer guess is cut short. It measures text through a function it is given and refuses
to know fonts and widgets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

PADDING = 5.0  # px on each side of a token
LEAST = 28.0  # px, so that a mark and two letters fit, also of a longer guess
GAP = 2.0
LINE = 32.0  # px from line to line
CELL = 28.0  # px, a cell's height
ELLIPSIS = "…"
LONGEST = 48  # characters of one token that are shown


def shown(text: str) -> str:
    """A token's text on one line, with marks for what cannot be seen."""
    if len(text) > LONGEST:
        text = text[:LONGEST] + ELLIPSIS
    if text and not text.strip(" "):
        return "␣" * len(text)
    return text.replace("\r", "").replace("\n", "↵").replace("\t", "⇥")


class TokenLayout:
    """Boxes of positions 0..P-1: `x`, `y`, `width` in px, every cell `CELL` high."""

    def __init__(self, measure: Callable[[str], float]) -> None:
        self._measure = measure
        self._width = 0.0
        self._texts: list[str] = []
        self.x: list[float] = []
        self.y: list[float] = []
        self.width: list[float] = []
        self.height = LINE

    def flow(self, texts: Sequence[str], width: float) -> int:
        """Lays out the texts that positions end with, in `width` px. The first position that has
        moved or is new."""
        same = 0
        if width == self._width:
            limit = min(len(texts), len(self._texts))
            while same < limit and texts[same] == self._texts[same]:
                same += 1
        kept = max(0, same - 1)  # whether its word goes on is decided by what follows
        while kept > 0 and self.y[kept] == self.y[kept - 1]:
            kept -= 1
        y = self.y[kept] if kept < len(self.y) else 0.0
        del self.x[kept:], self.y[kept:], self.width[kept:]
        self._width, self._texts = width, list(texts)
        x = 0.0
        for text in self._texts[kept:]:
            needed = self._needed(text)
            if x > 0 and x + needed > width:
                x, y = 0.0, y + LINE
            self.x.append(x)
            self.y.append(y)
            self.width.append(min(needed, width))
            x += needed + GAP
            if text.endswith("\n"):
                x, y = 0.0, y + LINE
        self.height = (self.y[-1] if self.y else 0.0) + LINE
        return same

    def _needed(self, text: str) -> float:
        return max(LEAST, self._measure(shown(text)) + 2 * PADDING)

    def between(self, top: float, bottom: float) -> range:
        """Positions on lines that touch top..bottom."""
        return range(bisect_right(self.y, top - LINE), bisect_left(self.y, bottom))

    def at(self, x: float, y: float) -> int | None:
        """The position under a point, None in a gap."""
        for position in self.between(y, y + 0.5):
            left, top = self.x[position], self.y[position]
            if top <= y < top + CELL and left <= x < left + self.width[position]:
                return position
        return None

    def beside(self, position: int, lines: int) -> int:
        """The position nearest above (lines < 0) or below, or the position itself at an end."""
        middle = self.x[position] + self.width[position] / 2
        y = self.y[position] + lines * LINE
        if y < 0:
            return position
        best = position
        distance = float("inf")
        first = bisect_left(self.y, y)
        if first == len(self.y):
            return position
        if self.y[first] != y:  # an empty line: on to the next that holds something
            y = self.y[first if lines > 0 else first - 1]
            first = bisect_left(self.y, y)
        last = bisect_right(self.y, y)
        for other in range(first, last):
            away = abs(self.x[other] + self.width[other] / 2 - middle)
            if away < distance:
                best, distance = other, away
        return best
