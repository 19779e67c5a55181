"""How long a frame of the inspector takes while a large trace is scrubbed, and how large it is.

Measures the GUI thread from inside, on the whole page as a person gets it (1280 x 800 and 1920 x
1080, no screen): a frame = moving the selection until every view has painted. Knows a made-up trace
of the size the project promises to hold (2,048 tokens, 1,500 steps) and refuses to judge: the limit
it prints (16 ms) is the project's own.

Usage: python -m bench.inspector_paint [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PySide6.QtWidgets import QApplication

from app.backend.files import AppFolders
from app.desktop import Desktop, build, make_application
from app.models.inspector import Source, trace_bytes
from app.models.inspector_data import InspectorData
from app.models.inspector_fills import FILL_KEYS
from app.ui.main_window import MainWindow
from engine.fake import FakeLoader
from engine.trace import Trace, TraceHeader, open_trace, save_trace
from engine.types import TokenState

LIMIT_MS = 16
FRAMES = 300
SIZES = ((1280, 800), (1920, 1080))
LARGE_PIECES = {i: (" word", " a", "ing", " token", ".", " of", "\n")[i % 7] for i in range(400)}


def large_trace(positions: int = 2048, steps: int = 1500, length: int = 32) -> Trace:
    """`positions` over `steps` in blocks of `length`, each position accepted once, a few edited."""
    blocks = positions // length
    bounds = np.linspace(0, steps, blocks + 1).astype(int)
    block = np.repeat(np.arange(blocks), np.diff(bounds))
    step = np.arange(steps) - bounds[:-1][block]
    counts = np.diff(bounds)[block]
    rng = np.random.default_rng(7)
    due = (rng.random((blocks, length)) * 0.9 * np.diff(bounds)[:, None]).astype(int)
    committed = step[:, None] >= due[block]
    edit_at = np.where(rng.random((blocks, length)) < 0.06, due + 1, 10_000)
    edited = step[:, None] >= edit_at[block]
    final = rng.integers(10, 400, (blocks, length))[block]
    guess = rng.integers(10, 400, (steps, length))
    share = np.clip((step[:, None] + 1) / (due[block] + 1), 0, 1)
    confidence = np.clip(0.2 + 0.75 * share + rng.normal(0, 0.05, share.shape), 0, 1)
    happens = (step[:, None] == edit_at[block]) & (edit_at[block] < counts[:, None])
    state = np.where(
        edited,
        TokenState.EDITED,
        np.where(committed, TokenState.COMMITTED, TokenState.DRAFT),
    )
    return Trace(
        block=block.astype(np.int32),
        step=step.astype(np.int32),
        block_start=(block * length).astype(np.int32),
        forwards=np.arange(1, steps + 1, dtype=np.int32),
        seconds=np.cumsum(0.002 + 0.001 * rng.random(steps)),
        ids=np.where(committed, final, guess).astype(np.int32),
        edited_from=np.where(happens, final % 390 + 5, -1).astype(np.int32),
        state=state.astype(np.uint8),
        confidence=confidence.astype(np.float32),
        entropy=(5 * (1 - confidence) ** 2).astype(np.float32),
        header=TraceHeader(
            model_name="large", vocab_size=400, block_length=length, pieces=LARGE_PIECES
        ),
    )


def measure(frame: Callable[[int], None], frames: int = FRAMES) -> dict[str, float]:
    """Times of `frame(0..)`, each until everything is painted, in ms."""
    times = []
    for index in range(frames):
        begun = time.perf_counter()
        frame(index)
        QApplication.processEvents()
        times.append((time.perf_counter() - begun) * 1000)
    cuts = statistics.quantiles(times, n=100)
    found = {"median": cuts[49], "p95": cuts[94], "max": max(times)}
    return {name: round(value, 2) for name, value in found.items()}


def grow(window: MainWindow, trace: Trace, frame: int) -> None:
    """What the timer does while a reply is written: the trace as it was after so many steps."""
    model, steps = window.inspector, 1000 + 4 * frame
    arrays = {k: v[:steps] for k, v in vars(trace).items() if isinstance(v, np.ndarray)}
    now = replace(trace, **arrays)
    if frame == 0:
        model.show(now, Source.LIVE, "large")
    else:
        model.extend(now)


def phases(desktop: Desktop, trace: Trace) -> dict[str, dict[str, float]]:
    """Frames of everything that is done with a trace again and again."""
    window, model = desktop.window, desktop.window.inspector
    page = window.inspector_page
    model.show(trace, Source.FILE, "large.dntrace")
    found = {"opened (once)": measure(lambda i: page.repaint(), 2)}
    rng = np.random.default_rng(1)
    anywhere = rng.integers(0, len(trace), FRAMES).tolist()
    within = rng.integers(0, trace.ids.shape[1], FRAMES).tolist()

    def seen(position: int) -> None:
        model.select(position=position)

    found["play, a step a frame"] = measure(lambda i: model.select(step=600 + i))
    found["scrub, anywhere"] = measure(lambda i: model.scrub(anywhere[i]))
    found["positions, in a block"] = measure(lambda i: seen(800 + within[i]))
    found["step and position"] = measure(
        lambda i: model.select(anywhere[i], int(trace.block_start[anywhere[i]]) + within[i])
    )
    page.axes.choose_block_only(True)
    found["play, one block large"] = measure(lambda i: model.select(step=600 + i))
    page.axes.choose_block_only(False)
    found["live, 4 steps more a frame"] = measure(lambda i: grow(window, trace, i), 100)
    model.show(trace, Source.FILE, "large.dntrace")
    found["another colour (not every frame)"] = measure(
        lambda i: model.choose_fill(FILL_KEYS[i % len(FILL_KEYS)]), 24
    )
    return found


def memory(trace: Trace, folder: Path) -> dict[str, float]:
    """Bytes of an open trace's arrays, with all that its views derive, over its file's bytes."""
    path = folder / "large.dntrace"
    save_trace(trace, path)
    opened = open_trace(path)
    data = InspectorData(opened)
    derived = (data.settled, data.newly_settled, data.remasked, data.edited, data.commit_step)
    total = trace_bytes(opened) + sum(a.nbytes for a in (*derived, data.edits, data.age))
    size = path.stat().st_size
    return {
        "file MB": round(size / 1e6, 3),
        "open MB": round(total / 1e6, 3),
        "open / file": round(total / size, 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.inspector_paint", description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    app = make_application()
    trace = large_trace()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folders = AppFolders(folder / "data", folder / "config", folder / "logs")
        desktop = build(app, folders, FakeLoader())
        desktop.window.show()
        desktop.window.rail.choose("inspector")
        for width, height in SIZES:
            desktop.window.resize(width, height)
            QApplication.processEvents()
            results[f"{width} x {height}"] = found = phases(desktop, trace)
            print(f"{width} x {height}, ms a frame (limit {LIMIT_MS})")
            for name, figures in found.items():
                print(f"  {name:<36}" + "".join(f"{v:>9.2f}" for v in figures.values()))
        held = memory(trace, folder)
        print(", ".join(f"{name} {value}" for name, value in held.items()))
        desktop.window.close()
    if options.json:
        figures = {
            "command": "python -m bench.inspector_paint --json FILE",
            "cores": os.cpu_count(),
            "load average": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
            "python": platform.python_version(),
            "trace": "2,048 tokens, 1,500 steps, made up",
            "limit in ms": LIMIT_MS,
            "ms a frame": results,
            "memory": held,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
