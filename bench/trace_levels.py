"""What recording costs on this computer's processor, level by level, and what asking a trace costs.

    python -m bench.trace_levels [--rounds N] [--json FILE]

The demo answers the same prompts at every level in turn, round after round, so that a busy moment
falls on all of them; a level's cost is the median over the rounds of its time per step over that of
level off in the same round. Steps are counted in the process's own processor time: neighbours do
not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.engine import TorchEngine, load_engine
from engine.paths import demo_folder
from engine.trace import Fork, Trace, open_trace, record, record_fork, save_trace
from engine.types import Capture, Finished, GenerateRequest, Message, TokenState

PROMPTS = ("What is 17 * 24 + 9? Show the working.", "Write a haiku about the sea and a cat.")
LEVELS = {
    "off": Capture("off"),
    "light": Capture("light"),
    "top-k": Capture("top-k", 16),
    "full": Capture("full", 16, (40, 41, 72, 73)),
}


def request(engine: TorchEngine, prompt: str, capture: Capture) -> GenerateRequest:
    """Few tokens a step, so that there are many steps."""
    settings = replace(engine.info.defaults, threshold=1.0)
    return GenerateRequest((Message("user", prompt),), 96, settings, capture)


def time_per_step(engine: TorchEngine, capture: Capture) -> float:
    """Milliseconds of processor time a forward, prefill included."""
    forwards, began = 0, time.process_time()
    for prompt in PROMPTS:
        *_, last = engine.generate(request(engine, prompt, capture))
        assert isinstance(last, Finished)
        forwards += last.stats.forwards
    return 1000 * (time.process_time() - began) / forwards


def measure_levels(engine: TorchEngine, rounds: int) -> dict[str, Any]:
    for capture in LEVELS.values():  # every level's buffers exist before the first round
        time_per_step(engine, capture)
    found: dict[str, list[float]] = {level: [] for level in LEVELS}
    for _ in range(rounds):
        for level, capture in LEVELS.items():
            found[level].append(time_per_step(engine, capture))
    return {
        level: {
            "ms_per_step": round(statistics.median(times), 3),
            "over_off_percent": round(
                100
                * (statistics.median(a / b for a, b in zip(times, found["off"], strict=True)) - 1),
                2,
            ),
        }
        for level, times in found.items()
    }


def measure_files(engine: TorchEngine, folder: Path) -> dict[str, Any]:
    """Bytes a step of each level's file, and what opening takes."""
    found: dict[str, Any] = {}
    for level, capture in LEVELS.items():
        if level == "off":
            continue
        trace = record(engine, request(engine, PROMPTS[0], capture))
        path = folder / f"{level}.dntrace"
        save_trace(trace, path)
        began = time.perf_counter()
        open_trace(path)
        found[level] = {
            "bytes_per_step": path.stat().st_size // len(trace),
            "open_ms": round(1000 * (time.perf_counter() - began), 2),
        }
    return found


def asked_of(trace: Trace) -> tuple[int, int]:
    """The last step, and a position that was open before it."""
    row = len(trace) - 1
    opened = np.flatnonzero(trace.state[row - 1] == TokenState.DRAFT)
    return row, int(trace.block_start[row]) + int(opened[-1])


def measure_questions(engine: TorchEngine) -> dict[str, Any]:
    """Seconds as a person waits for them, neighbours included, and of processor time."""
    trace = record(engine, request(engine, PROMPTS[0], Capture()))
    row, position = asked_of(trace)
    found: dict[str, Any] = {"steps": len(trace), "positions": trace.ids.shape[1]}
    for reach in ("block", "near", "reply"):
        asked = partial(engine.attribute, trace, row, position, reach)
        found[f"attribution_{reach}"] = {"tokens": len(asked().positions), **seconds_of(asked)}
    fork = Fork(trace, len(trace) // 2)
    found["fork"] = seconds_of(partial(record_fork, engine, fork))
    return found


def seconds_of(work: Callable[[], object]) -> dict[str, float]:
    """The median of three."""
    waited, used = [], []
    for _ in range(3):
        began, processor = time.perf_counter(), time.process_time()
        work()
        waited.append(time.perf_counter() - began)
        used.append(time.process_time() - processor)
    return {
        "seconds": round(statistics.median(waited), 2),
        "processor_seconds": round(statistics.median(used), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    engine = load_engine(demo_folder(), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "model": engine.info.name,
            "runtime": engine.info.runtime,
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "rounds": options.rounds,
            "levels": measure_levels(engine, options.rounds),
            "files": measure_files(engine, Path(folder)),
            "questions": measure_questions(engine),
        }
    engine.unload()
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
