"""The curve of a threshold sweep as a picture: accuracy against TPF, a line for every model.

Knows figures (`trainer.evaluate.report`) and how they are drawn. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

SIZE = (1200, 800)
LEFT, TOP, RIGHT, BOTTOM = 110, 80, 60, 90
COLOURS = ("#5d6878", "#0b5fff", "#b8541a", "#1d7a46")  # told apart by shape, too
INK, GRID = "#20242c", "#e3e6eb"


def draw(
    measured: Sequence[Mapping[str, Any]], front: Mapping[str, Sequence[float]]
) -> Image.Image:
    """measured: `report`'s rows; front: its thresholds that nothing beats, whose points are filled.
    An RGB image of `SIZE`."""
    image = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(22)
    fast = _range([row["tpf"] for row in measured], 0.5, float("inf"))
    right = _range([100 * row["accuracy"] for row in measured], 2.0, 100.0)

    def place(tpf: float, accuracy: float) -> tuple[float, float]:
        across = (tpf - fast[0]) / (fast[1] - fast[0])
        up = (accuracy - right[0]) / (right[1] - right[0])
        width, height = SIZE[0] - LEFT - RIGHT, SIZE[1] - TOP - BOTTOM
        return LEFT + width * across, SIZE[1] - BOTTOM - height * up

    for n in range(6):
        tpf = fast[0] + (fast[1] - fast[0]) * n / 5
        accuracy = right[0] + (right[1] - right[0]) * n / 5
        pen.line([place(tpf, right[0]), place(tpf, right[1])], GRID, 2)
        pen.line([place(fast[0], accuracy), place(fast[1], accuracy)], GRID, 2)
        x, y = place(tpf, right[0])
        pen.text((x, y + 10), f"{tpf:.1f}", INK, font, anchor="ma")
        x, y = place(fast[0], accuracy)
        pen.text((x - 12, y), f"{accuracy:.0f} %", INK, font, anchor="rm")
    middle = (LEFT + SIZE[0] - RIGHT) / 2
    pen.text((middle, SIZE[1] - 14), "tokens per forward (TPF)", INK, font, anchor="ms")
    pen.text((LEFT, 16), "answers that verify", INK, font)
    for n, model in enumerate(dict.fromkeys(row["model"] for row in measured)):
        rows = sorted((r for r in measured if r["model"] == model), key=lambda r: r["threshold"])
        colour = COLOURS[n % len(COLOURS)]
        points = [place(row["tpf"], 100 * row["accuracy"]) for row in rows]
        if len(points) > 1:
            pen.line(points, colour, 3, joint="curve")
        for row, point in zip(rows, points, strict=True):
            kept = row["threshold"] in front.get(model, ())
            _mark(pen, n, point, colour, kept)
            text = f"{row['threshold']:.2f}"
            pen.text((point[0] + 12, point[1] - 12), text, colour, font, anchor="lb")
        spot = (400.0 + 380 * (n % 2), 22.0 + 28 * (n // 2))
        _mark(pen, n, spot, colour, True)
        pen.text((spot[0] + 18, spot[1]), model[:26], colour, font, anchor="lm")
    return image


def save(report: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of a report as PNG. Raises OSError."""
    draw(report["measured"], report["pareto"]).save(path, "PNG")


def _range(values: Sequence[float], least: float, most: float) -> tuple[float, float]:
    """An axis around values with some room at both ends, never below 0 nor above `most`."""
    low, high = min(values), max(values)
    margin = max(least, 0.15 * (high - low))
    return max(0.0, low - margin), min(most, high + margin)


def _mark(
    pen: ImageDraw.ImageDraw, kind: int, at: tuple[float, float], colour: str, filled: bool
) -> None:
    """A model's mark: circle, square or triangle in turn; hollow where another point beats it."""
    x, y = at
    fill = colour if filled else "white"
    box = (x - 8, y - 8, x + 8, y + 8)
    if kind % 3 == 0:
        pen.ellipse(box, fill, colour, 3)
    elif kind % 3 == 1:
        pen.rectangle(box, fill, colour, 3)
    else:
        pen.polygon([(x, y - 9), (x - 9, y + 8), (x + 9, y + 8)], fill, colour, 3)
