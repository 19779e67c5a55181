"""The raster of a trace as a PNG: steps to the right, positions downwards, on a fixed scale that is
drawn beside it.

Knows one picture. Where a trace has more steps or positions than the picture has points, it shows
every second, third, ... of them, and says so on it.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from app.backend.palette import Colors, rgb
from app.backend.scales import LEVELS, NOT_CAPTURED, NOT_YET
from app.backend.trace_export.lettering import label, visible
from app.backend.trace_export.scales import Fill, FixedScale, scale_for, values_of
from engine.trace import Trace
from engine.trace.reading import spans_of

MOST_POINTS = 3000  # of the plot, each way
WANTED = (720, 480)  # px that a small trace is enlarged to, at least about
LARGEST_CELL = 24
LEFT, TOP, RIGHT, BOTTOM = 64, 64, 24, 88
SCALE_WIDTH = 200
HATCH = 6
LEAST_MARKED = 4  # px of a cell that has room for a mark
Rgb = npt.NDArray[np.uint8]


def write_png(trace: Trace, file: BinaryIO, fill: Fill, colors: Colors) -> None:
    """An RGB PNG of at most a few thousand points each way."""
    draw_raster(trace, fill, colors).save(file, format="PNG")


def draw_raster(trace: Trace, fill: Fill, colors: Colors) -> Image.Image:
    scale = scale_for(trace, fill)
    positions = int(trace.block_start[-1] - trace.block_start[0]) + trace.ids.shape[1]
    every_step = -(-len(trace) // MOST_POINTS)
    every_position = -(-positions // MOST_POINTS)
    steps = np.arange(0, len(trace), every_step)
    places = np.arange(0, positions, every_position)
    levels = _levels(trace, fill, scale, steps, places)
    cell = (_cell(len(steps), WANTED[0]), _cell(len(places), WANTED[1]))
    plot = _plot(levels, scale, colors, cell)
    width = max(LEFT + plot.width + RIGHT, LEFT + SCALE_WIDTH + 240)
    image = Image.new("RGB", (width, TOP + plot.height + BOTTOM), rgb(colors.window))
    image.paste(plot, (LEFT, TOP))
    draw = ImageDraw.Draw(image)
    every = (every_step, every_position)
    marked = every == (1, 1) and min(cell) >= LEAST_MARKED
    _block_rules(draw, trace, colors, cell, plot.height, every_step)
    if marked:
        _edit_marks(draw, trace, colors, cell)
    _titles(draw, trace, colors, scale, every, marked=marked)
    _axes(draw, trace, colors, cell, plot.size, every)
    _scale_bar(image, scale, colors, LEFT, TOP + plot.height + 44)
    return image


def _cell(count: int, wanted: int) -> int:
    return max(1, min(LARGEST_CELL, wanted // count))


def _levels(
    trace: Trace,
    fill: Fill,
    scale: FixedScale,
    steps: npt.NDArray[np.intp],
    places: npt.NDArray[np.intp],
) -> npt.NDArray[np.uint8]:
    """uint8 [places, steps]: a block's positions keep what its last step left."""
    values = values_of(trace, fill)
    levels = np.full((len(places), len(steps)), NOT_YET, dtype=np.uint8)
    origin, length = int(trace.block_start[0]), trace.ids.shape[1]
    for span in spans_of(trace):
        begin = span.start - origin
        inside = np.flatnonzero((places >= begin) & (places < begin + length))
        after = np.flatnonzero(steps >= span.first)
        if inside.size and after.size:
            rows = np.minimum(steps[after], span.last)
            picked = values[rows[None, :], (places[inside] - begin)[:, None]]
            levels[inside[:, None], after[None, :]] = scale.levels(picked)
    return levels


def _plot(
    levels: npt.NDArray[np.uint8], scale: FixedScale, colors: Colors, cell: tuple[int, int]
) -> Image.Image:
    table = np.zeros((NOT_YET + 1, 3), dtype=np.uint8)
    table[:LEVELS] = scale.colors()
    table[NOT_CAPTURED], table[NOT_YET] = rgb(colors.surface), rgb(colors.window)
    large = np.repeat(np.repeat(levels, cell[1], axis=0), cell[0], axis=1)
    pixels: Rgb = table[large]
    y, x = np.ogrid[: large.shape[0], : large.shape[1]]
    pixels[(large == NOT_CAPTURED) & ((x + y) % HATCH == 0)] = rgb(colors.muted)
    return Image.fromarray(pixels)


def _block_rules(
    draw: ImageDraw.ImageDraw,
    trace: Trace,
    colors: Colors,
    cell: tuple[int, int],
    height: int,
    every: int,
) -> None:
    """A line where a block begins."""
    for span in spans_of(trace)[1:]:
        x = LEFT + -(-span.first // every) * cell[0]
        draw.line([(x, TOP), (x, TOP + height - 1)], fill=rgb(colors.line))


def _edit_marks(
    draw: ImageDraw.ImageDraw, trace: Trace, colors: Colors, cell: tuple[int, int]
) -> None:
    """A dot in each cell whose token was edited in its step."""
    origin, size = int(trace.block_start[0]), min(cell) // 4
    for row, column in np.argwhere(trace.edited_from >= 0).tolist():
        x = LEFT + row * cell[0] + cell[0] // 2
        y = TOP + (int(trace.block_start[row]) - origin + column) * cell[1] + cell[1] // 2
        draw.ellipse([x - size, y - size, x + size, y + size], fill=rgb(colors.edited))


def _titles(
    draw: ImageDraw.ImageDraw,
    trace: Trace,
    colors: Colors,
    scale: FixedScale,
    every: tuple[int, int],
    *,
    marked: bool,
) -> None:
    name = trace.header.model_name or "a model that the trace does not name"
    title = f"{scale.name} of every position after every step, {name}"
    facts = [f"{len(trace):,} steps", f"TPF {_tpf(trace)}"]
    facts += [
        f"one {what} of {n} is shown"
        for n, what in zip(every, ("step", "position"), strict=True)
        if n > 1
    ]
    if marked and (trace.edited_from >= 0).any():
        facts.append("a dot marks an edit")
    draw.text((LEFT, 14), visible(title[:120]), fill=rgb(colors.text), font=label(14))
    draw.text((LEFT, 36), ", ".join(facts), fill=rgb(colors.muted), font=label())


def _tpf(trace: Trace) -> str:
    stats = trace.header.stats
    return "not known" if stats is None else f"{stats.tpf:.2f}"


def _axes(
    draw: ImageDraw.ImageDraw,
    trace: Trace,
    colors: Colors,
    cell: tuple[int, int],
    size: tuple[int, int],
    every: tuple[int, int],
) -> None:
    ink, font = rgb(colors.muted), label()
    for index in _ticks(size[0] // cell[0], cell[0], 56):
        x = LEFT + index * cell[0] + cell[0] / 2
        draw.text((x, TOP + size[1] + 4), str(index * every[0]), fill=ink, font=font, anchor="ma")
    draw.text((LEFT + size[0], TOP + size[1] + 20), "step", fill=ink, font=font, anchor="ra")
    origin = int(trace.block_start[0])
    for index in _ticks(size[1] // cell[1], cell[1], 24):
        y = TOP + index * cell[1] + cell[1] / 2
        text = str(origin + index * every[1])
        draw.text((LEFT - 6, y), text, fill=ink, font=font, anchor="rm")
    draw.text((LEFT - 6, TOP - 10), "position", fill=ink, font=font, anchor="rs")


def _ticks(count: int, cell: int, apart: int) -> range:
    """Indices to label, at least `apart` px apart, a round number of cells from each other."""
    least = -(-apart // cell)
    for power in (1, 10, 100, 1000):
        for step in (power, 2 * power, 4 * power, 5 * power):
            if step >= least:
                return range(0, count, step)
    return range(0, count, 10_000)


def _scale_bar(image: Image.Image, scale: FixedScale, colors: Colors, x: int, y: int) -> None:
    draw = ImageDraw.Draw(image)
    shades = scale.colors()
    for column in range(SCALE_WIDTH):
        shade = shades[column * (LEVELS - 1) // (SCALE_WIDTH - 1)]
        draw.line([(x + column, y), (x + column, y + 11)], fill=shade)
    ink, font = rgb(colors.muted), label()
    for tick in scale.ticks:
        at = x + scale.place(tick) * (SCALE_WIDTH - 1)
        draw.text((at, y + 14), f"{tick:.3g}", fill=ink, font=font, anchor="ma")
    unit = f", {scale.unit}" if scale.unit else ""
    draw.text((x + SCALE_WIDTH + 12, y + 6), scale.name + unit, fill=ink, font=font, anchor="lm")
    at = x + SCALE_WIDTH + 112
    draw.rectangle([at, y, at + 23, y + 11], fill=rgb(colors.surface))
    for column in range(24):
        for row in range(12):
            if (column + row) % HATCH == 0:
                draw.point((at + column, y + row), fill=ink)
    draw.text((at + 32, y + 6), "not captured", fill=ink, font=font, anchor="lm")
