"""How the kernel benchmark measures: graph replays timed by events, errors against a higher
precision, rows on disk.

Knows nothing of any kernel.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor


class Recorder:
    """Collects a section's rows and appends each to a file at once (a fault later on must not lose
    it)."""

    def __init__(self, section: str, path: Path) -> None:
        self.section, self.path = section, path
        self.began = time.perf_counter()

    def add(self, **row: object) -> None:
        row = {"section": self.section, **row, "at": round(time.perf_counter() - self.began, 2)}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)

    def check(self, name: str, got: Tensor, want: Tensor, limit: float) -> None:
        """Relative error of the whole tensor, in float64. NaN fails."""
        got, want = got.double(), want.double()
        error = float((got - want).norm() / want.norm().clamp_min(1e-300))
        self.add(kind="check", name=name, error=error, limit=limit, ok=error <= limit)

    def check_equal(self, name: str, got: Tensor, want: Tensor) -> None:
        """Share of elements that differ; none may."""
        error = float((got != want).double().mean())
        self.add(kind="check", name=name, error=error, limit=0.0, ok=error == 0.0)

    def time(
        self, name: str, work: Callable[[], object], bytes_moved: float = 0.0, note: str = ""
    ) -> float:
        """Captures `work` once, replays it, and records the median in ms (and TB/s of
        bytes_moved)."""
        ms, low, high = replay(work)
        tbs = bytes_moved / ms / 1e9 if bytes_moved else 0.0
        self.add(kind="time", name=name, ms=ms, p10=low, p90=high, tbs=tbs, note=note)
        return ms

    def attempt(self, name: str, work: Callable[[], object]) -> None:
        """Runs one variant; one that fails is a row and does not cost the others their
        measurement."""
        try:
            work()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - whatever a variant raises is its result
            text = f"{type(error).__name__}: {error}"
            self.add(kind="failed", name=name, note=text[:300])


def replay(work: Callable[[], object], budget: float = 0.12) -> tuple[float, float, float]:
    """ms per call (median, p10, p90) of a captured graph's replays, about `budget` seconds of
    them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()  # compiles, allocates
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    began = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    once = (time.perf_counter() - began) / 2
    count = max(7, min(200, int(budget / max(once, 1e-6))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(events))
    return median(times), times[len(times) // 10], times[-1 - len(times) // 10]


def run_child(name: str, recorder: Recorder) -> None:
    """Runs section `name`: module kernels_<name>, function run. What follows a colon is for it."""
    torch.manual_seed(0)
    importlib.import_module(f"kernels_{name.partition(':')[0]}").run(recorder)
