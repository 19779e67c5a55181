"""The record of a training run: points over steps in one JSON file, and a plain chart of them.

Knows what a point is and how it is kept over the pieces of a run. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Point:
    """Means since the point before. seconds: training time of the run so far. tokens: positions
    computed so far; answer_tokens: of them in noisy copies of answers. accuracy: of the choices at
    masked positions. valid_*: None where not measured at this point. load_entropy: mean over
    layers, 1 = every expert gets the same load; load_min: smallest share of an even load."""

    step: int
    seconds: float
    progress: float
    rate: float
    loss: float
    accuracy: float
    grad_norm: float
    tokens_per_second: float
    tokens: int
    epochs: float
    load_entropy: float
    load_min: float
    quantised: bool
    valid_loss: float | None = None
    valid_accuracy: float | None = None

    def line(self) -> str:
        """One line for a terminal."""
        text = (
            f"step {self.step:6d}  {self.seconds:6.1f} s  {100 * self.progress:5.1f} %  "
            f"loss {self.loss:.4f}  right {100 * self.accuracy:5.2f} %  lr x{self.rate:.3f}  "
            f"|g| {self.grad_norm:.2f}  {self.tokens_per_second / 1e6:.2f} M tok/s  "
            f"epoch {self.epochs:.2f}  load {self.load_entropy:.3f}/{self.load_min:.2f}"
        )
        if self.quantised:
            text += "  NVFP4"
        if self.valid_loss is not None and self.valid_accuracy is not None:
            text += f"  | valid {self.valid_loss:.4f}, right {100 * self.valid_accuracy:.2f} %"
        return text


class Curve:
    """Points of a run and facts about its pieces; `save` replaces the file at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: list[dict[str, Any]] = []
        self.pieces: list[dict[str, Any]] = []

    def load(self, up_to_step: int) -> None:
        """Takes over the file of an earlier piece, without points after `up_to_step`."""
        if self.path.exists():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            self.pieces = kept["pieces"]
            self.points = [p for p in kept["points"] if p["step"] <= up_to_step]

    def add(self, point: Point) -> None:
        self.points.append({k: _short(v) for k, v in asdict(point).items() if v is not None})

    def as_json(self) -> dict[str, Any]:
        return {"pieces": self.pieces, "points": self.points}

    def save(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.as_json()) + "\n", encoding="utf-8")
        part.replace(self.path)


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def svg(points: Sequence[dict[str, Any]], width: int = 640, height: int = 300) -> str:
    """Training and validation loss over training seconds as an SVG drawing, loss on a log scale."""
    left, bottom = 48, 32
    train = [(p["seconds"], p["loss"]) for p in points]
    valid = [(p["seconds"], p["valid_loss"]) for p in points if "valid_loss" in p]
    low = min(y for _, y in train + valid)
    high = max(y for _, y in train + valid)
    last = max(x for x, _ in train)
    span = max(log(high / low), 1e-9)

    def place(x: float, y: float) -> str:
        across = left + (width - left - 8) * x / max(last, 1e-9)
        down = 8 + (height - bottom - 8) * log(high / y) / span
        return f"{across:.1f},{down:.1f}"

    def line(data: list[tuple[float, float]], colour: str) -> str:
        path = " ".join(place(x, y) for x, y in data)
        return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>'

    def label(x: float, y: float, text: str, anchor: str = "start") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'

    ticks = [low * (high / low) ** (n / 4) for n in range(5)]
    marks = [
        label(left - 6, float(place(0, y).split(",")[1]) + 4, f"{y:.2f}", "end") for y in ticks
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        line(train, "#7a869a"),
        line(valid, "#0b5fff") if valid else "",
        *marks,
        label(left, height - 10, "0 s"),
        label(width - 8, height - 10, f"{last:.0f} s of training", "end"),
        label(width - 8, 20, "grey: training loss, blue: validation loss (masked)", "end"),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"
