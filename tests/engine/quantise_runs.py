"""Runs of the quantiser for its tests: small files, runs that stop, refusals."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.checkpoint.quantiser import QuantiseOptions, quantise
from engine.checkpoint.quantiser.report import REPORT
from engine.errors import CheckpointError, RuntimeFailure
from engine.types import LoadProgress

SMALL = QuantiseOptions(shard_bytes=100_000)  # five files instead of one
EXPERT = "model.layers.1.mlp.experts.3.up_proj"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the report, which holds a time."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != REPORT}


def refused(source: Path | str, target: Path | str, **options: object) -> CheckpointError:
    """The error, after checking what every error owes a person."""
    with pytest.raises(CheckpointError) as caught:
        quantise(source, target, QuantiseOptions(**options))  # pyright: ignore[reportArgumentType]
    error = caught.value
    assert error.message.endswith(".")
    assert error.action
    return error


class StopAfter:
    """Progress that sets `stop` once a number of bytes is done in a phase."""

    def __init__(self, count: int, phase: str = "Quantising") -> None:
        self.count, self.phase, self.stop = count, phase, threading.Event()
        self.seen: list[LoadProgress] = []

    def __call__(self, progress: LoadProgress) -> None:
        self.seen.append(progress)
        if progress.phase == self.phase and progress.done_bytes >= self.count:
            self.stop.set()


def stopped_run(source: Path, target: Path, options: QuantiseOptions = SMALL) -> Path:
    """A run that was stopped half-way; returns what it left."""
    after = StopAfter(300_000)
    with pytest.raises(RuntimeFailure) as caught:
        quantise(source, target, options, progress=after, stop=after.stop)
    assert caught.value.code == "quantise.stopped"
    assert not target.exists()
    return target.with_name(target.name + ".partial")
