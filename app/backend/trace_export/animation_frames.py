"""A reply coming into focus, as pictures of palette indices: each step changes only the lines in
which something changed.

Knows how a state is drawn: a bar for a mask, blurred slanted text for an open guess (the less
blurred the surer), plain text when accepted, a tick above an edit. Refuses to know file formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from app.backend.palette import Colors, rgb
from app.backend.trace_export.animation_layout import LINE_COLUMNS, Place, lay_out
from app.backend.trace_export.lettering import COLUMN, LINE, draw_columns, label, visible
from app.backend.trace_export.writing import ExportError
from engine.trace import Trace
from engine.trace.reading import text_of
from engine.types import TokenState

MARGIN = 24
HEAD = 44  # px above the text, for the facts of the step
FOOT = 28
MOST_PIXELS = 16_383  # WebP's largest side
SHADES = 40
BLURS = 6  # degrees of blur of a guess
INKS = ("text", "draft", "edited", "muted", "accent")
TICK = 3
MOST_CHARACTERS = 200  # of a token: it is drawn as narrow as its cell
SAME = 255  # no colour: the point is as in the frame before
Indices = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Frame:
    """What changes on the picture: indices uint8 [h, w] at (x, y), `SAME` where it stays as it was.
    seconds: how long it is shown."""

    indices: Indices
    x: int
    y: int
    seconds: float


@dataclass(frozen=True)
class Pace:
    """steps_per_second: of the recording, in the animation. every: only each n-th step has a frame.
    hold: seconds that the last frame stays."""

    steps_per_second: float = 10.0
    every: int = 1
    hold: float = 3.0


def palette_of(colors: Colors) -> bytes:
    """256 x 3 bytes: the ground, then `SHADES` of every ink on it."""
    ground = np.array(rgb(colors.window), dtype=np.float64)
    table = np.zeros((256, 3), dtype=np.uint8)
    table[0] = ground
    for number, ink in enumerate(INKS):
        shares = (np.arange(1, SHADES + 1) / SHADES)[:, None]
        shade = ground + (np.array(rgb(getattr(colors, ink))) - ground) * shares
        table[1 + number * SHADES : 1 + (number + 1) * SHADES] = np.round(shade)
    return table.tobytes()


class Animation:
    """The frames of a trace. size: (width, height) px. count: how many frames there will be."""

    def __init__(self, trace: Trace, pace: Pace) -> None:
        """Raises ExportError `export.too_large` for a text too long for a picture."""
        self._trace, self._pace = trace, pace
        self._layout = lay_out(trace)
        height = HEAD + self._layout.lines * LINE + FOOT
        self.size = (2 * MARGIN + LINE_COLUMNS * COLUMN, height)
        if height > MOST_PIXELS:
            raise ExportError(
                "export.too_large",
                f"This reply has {self._layout.lines:,} lines, too many for one picture.",
                "Export it as a page (html) or as CSV.",
            )
        self._last_step = self._layout.spans[-1].last
        self._steps = sorted({*range(0, self._last_step + 1, pace.every), self._last_step})
        self.count = 1 + len(self._steps)
        self._by_line: list[list[Place]] = [[] for _ in range(self._layout.lines)]
        for place in self._layout.places:
            self._by_line[place.line].append(place)

    def frames(self) -> Iterator[Frame]:
        """The whole picture before the first step, then what each shown step changes."""
        width, height = self.size
        canvas = np.zeros((height, width), dtype=np.uint8)
        shown: list[tuple[object, ...]] = [()] * self._layout.lines
        self._paint(canvas, -1, shown)
        stay = self._pace.every / self._pace.steps_per_second
        yield Frame(canvas.copy(), 0, 0, stay)
        for step in self._steps:
            before = canvas.copy()
            self._paint(canvas, step, shown)
            last = step == self._last_step
            yield _changed(before, canvas, self._pace.hold if last else stay)

    def _paint(self, canvas: Indices, step: int, shown: list[tuple[object, ...]]) -> None:
        for line, places in enumerate(self._by_line):
            looks = tuple(self._look(step, place) for place in places)
            if looks == shown[line]:
                continue
            shown[line] = looks
            top = HEAD + line * LINE
            canvas[top : top + LINE] = _line(places, looks, canvas.shape[1])
        self._paint_head(canvas, step)

    def _look(self, step: int, place: Place) -> _Look:
        span = self._layout.spans[place.span]
        trace, row = self._trace, min(max(step, span.first), span.last)
        prompt = trace.state[row, place.column] == TokenState.PROMPT
        if step < span.first and not prompt:
            return _Look("", "muted", 0, bar=True)
        token = int(trace.ids[row, place.column])
        state = TokenState(int(trace.state[row, place.column]))
        text = visible(text_of(trace, token)[:MOST_CHARACTERS])
        if state is TokenState.MASKED:
            return _Look("", "muted", 0, bar=True)
        if state is TokenState.DRAFT:
            return _Look(text, "draft", _blur(float(trace.confidence[row, place.column])))
        if prompt or token in trace.header.stop_ids or text == visible("\n"):
            return _Look(text, "muted", 0)
        return _Look(text, "edited" if state is TokenState.EDITED else "text", 0)

    def _paint_head(self, canvas: Indices, step: int) -> None:
        """Model and step above the text, and how far the recording is as a line under it."""
        width = canvas.shape[1]
        image = Image.new("L", (width, HEAD))
        draw = ImageDraw.Draw(image)
        draw.text((MARGIN, 12), visible(self._trace.header.model_name[:60]), fill=255, font=label())
        draw.text((width - MARGIN, 12), self._fact(step), fill=255, font=label(), anchor="ra")
        canvas[:HEAD] = _shades(np.asarray(image), "muted")
        share = (step + 1) / (self._last_step + 1)
        bottom = canvas.shape[0] - 12
        canvas[bottom : bottom + 2, MARGIN : width - MARGIN] = _ink("muted") + SHADES // 4
        end = MARGIN + round((width - 2 * MARGIN) * share)
        canvas[bottom : bottom + 2, MARGIN:end] = _ink("accent") + SHADES - 1

    def _fact(self, step: int) -> str:
        total = self._last_step + 1
        if step < 0:
            return f"before the first of {total:,} steps"
        block, seconds = int(self._trace.block[step]), float(self._trace.seconds[step])
        return f"step {step + 1:,} of {total:,}, block {block + 1:,}, {seconds:.2f} s"


@dataclass(frozen=True)
class _Look:
    """How a cell is drawn. blur: 0 = sharp and upright; 1..BLURS = a guess."""

    text: str
    ink: str
    blur: int
    bar: bool = False


def _blur(confidence: float) -> int:
    """1 for a sure guess, BLURS for one of no or unknown confidence."""
    if np.isnan(confidence):
        return BLURS
    return 1 + round((1 - min(max(confidence, 0.0), 1.0)) * (BLURS - 1))


def _line(places: list[Place], looks: tuple[_Look, ...], width: int) -> Indices:
    """uint8 [LINE, width]: where cells meet, the stronger shade wins."""
    line = np.zeros((LINE, width), dtype=np.uint8)
    strength = np.zeros((LINE, width), dtype=np.uint8)
    for place, look in zip(places, looks, strict=True):
        cover, pad = _cover(look, place.width)
        left = MARGIN + place.begin * COLUMN - pad
        target = (slice(None), slice(left, left + cover.shape[1]))
        shades = _shades(cover, look.ink)
        stronger = cover > strength[target]
        line[target] = np.where(stronger, shades, line[target])
        strength[target] = np.maximum(strength[target], cover)
    return line


@lru_cache(maxsize=4096)
def _cover(look: _Look, width: int) -> tuple[Indices, int]:
    """Coverage uint8 [LINE, w] of a cell `width` columns wide, and by how many px it reaches beyond
    its left edge."""
    wide = width * COLUMN
    if look.bar:
        image = Image.new("L", (wide, LINE))
        box = [1, LINE // 2 - 3, max(2, wide - 3), LINE // 2 + 3]
        ImageDraw.Draw(image).rounded_rectangle(box, radius=3, fill=90)
        return np.asarray(image), 0
    image = draw_columns(look.text)
    if image.width > wide:  # nothing moves: a longer guess is drawn narrower
        image = image.resize((wide, LINE), Image.Resampling.BOX)
    pad = 8 if look.blur else 0
    whole = Image.new("L", (wide + 2 * pad, LINE))
    whole.paste(image, (pad, 0))
    if look.blur:
        slant = (1.0, 0.2, -0.2 * LINE * 0.72, 0.0, 1.0, 0.0)
        whole = whole.transform(
            whole.size, Image.Transform.AFFINE, slant, Image.Resampling.BILINEAR
        )
        radius = 3.0 * (look.blur - 1) / (BLURS - 1)
        whole = whole.filter(ImageFilter.GaussianBlur(radius))
    elif look.ink == "edited":
        middle = whole.width // 2
        tick = Image.new("L", whole.size)
        ImageDraw.Draw(tick).polygon(
            [(middle - TICK, 1), (middle + TICK, 1), (middle, 1 + TICK)], fill=255
        )
        whole = ImageChops.lighter(whole, tick)
    return np.asarray(whole), pad


def _ink(name: str) -> int:
    """The first (weakest) index of an ink."""
    return 1 + INKS.index(name) * SHADES


def _shades(cover: Indices, ink: str) -> Indices:
    """Palette indices of a coverage."""
    level = (cover.astype(np.uint16) * SHADES + 127) // 255
    return np.where(level > 0, level + (_ink(ink) - 1), 0).astype(np.uint8)


def _changed(before: Indices, after: Indices, seconds: float) -> Frame:
    """The smallest box that holds every change; one point where there is none. Its corner is even,
    as WebP needs it."""
    rows, cols = (np.flatnonzero((before != after).any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return Frame(np.full((1, 1), SAME, dtype=np.uint8), 0, 0, seconds)
    y, x = int(rows[0]) // 2 * 2, int(cols[0]) // 2 * 2
    box = (slice(y, rows[-1] + 1), slice(x, cols[-1] + 1))
    return Frame(np.where(before[box] == after[box], SAME, after[box]), x, y, seconds)
