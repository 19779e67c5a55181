"""Short trainings of several variants of a recipe side by side, to choose a shape or a rate.

Every variant sees the same data and noise and gets the same seconds of training, with the whole
schedule squeezed into them; compilation is not counted. Knows no files.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from trainer.demo_config import DemoConfig, Vocabulary
from trainer.pretrain_loop import Cadence, Data, Goal, Pretrainer, new_model
from trainer.pretrain_model import ComputePath

WARM_STEPS = 3
PROFILED_STEPS = 3
PROFILED_ROWS = 16


@dataclass(frozen=True)
class Variant:
    """A named change of a recipe and of how it is computed. seconds: instead of the trial's."""

    name: str
    changes: dict[str, str]
    path: dict[str, str]
    seconds: float | None = None


def read_variants(text: str) -> list[Variant]:
    """`base; wide: experts=wide, seconds=5; deep: shape.layers=10, shape.hidden=320`.

    `experts` and `attention` change the compute path, `seconds` how long this variant trains, all
    else is a field of the recipe. Raises ValueError for a part that does not read so.
    """
    variants = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, rest = part.partition(":")
        changes: dict[str, str] = {}
        path: dict[str, str] = {}
        for item in filter(None, (i.strip() for i in rest.split(","))):
            key, sign, value = item.partition("=")
            if not sign:
                raise ValueError(f"{item!r} is not FIELD=VALUE")
            (path if key in ("experts", "attention") else changes)[key] = value
        seconds = changes.pop("seconds", None)
        variants.append(Variant(name.strip(), changes, path, float(seconds) if seconds else None))
    return variants


def compare(
    text: str,
    seconds: float,
    config: DemoConfig,
    vocabulary: Vocabulary,
    data: Data,
    device: torch.device,
    path: ComputePath,
    say: Callable[[str], None],
) -> int:
    """Trains every variant for `seconds` and prints one table. 0 when all ran."""
    rows = []
    failed = 0
    for variant in read_variants(text):
        try:
            rows.append(_one(variant, seconds, config, vocabulary, data, device, path, say))
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            say(f"{variant.name} FAILED: {type(error).__name__}: {str(error)[:1500]}")
            failed += 1
        gc.collect()
        torch.compiler.reset()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        _print(rows)
    return 1 if failed else 0


def _one(
    variant: Variant,
    seconds: float,
    base: DemoConfig,
    vocabulary: Vocabulary,
    data: Data,
    device: torch.device,
    path: ComputePath,
    say: Callable[[str], None],
) -> list[str]:
    config = base.with_changes(variant.changes)
    chosen = ComputePath(
        variant.path.get("experts", path.experts),
        variant.path.get("attention", path.attention),
        path.compiled,
    )
    data.train.rewind()
    data.valid.rewind()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        model = new_model(config, vocabulary, device, chosen)
        run = Pretrainer(config, model, data, Path(folder), say)
        losses, _ = run.update(0.0)
        for _ in range(WARM_STEPS):
            run.update(0.0)
        first = float(losses.loss.detach())
        ready = time.monotonic() - began
        say(f"{variant.name}: ready in {ready:.1f} s, {run.spec.parameters / 1e6:.2f} M parameters")
        if device.type == "cuda":
            _profile(run)
            torch.cuda.reset_peak_memory_stats()
        start = run.step
        seconds = variant.seconds or seconds
        run.train(Goal(seconds=seconds), Cadence(valid=seconds, save=1e9), carry=None)
        both = run.measure_both()
    speed = (run.step - start) / max(run.seconds, 1e-9)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return [
        variant.name,
        f"{run.spec.parameters / 1e6:.2f}",
        f"{ready:.0f}",
        f"{1000 / speed:.1f}",
        f"{speed * config.tokens_per_step / 1e6:.3f}",
        f"{speed * run.answer_tokens / run.step / 1e6:.3f}",
        f"{memory:.1f}",
        f"{first:.3f}",
        f"{both['bf16'][0]:.4f}",
        f"{100 * both['bf16'][1]:.2f}",
        f"{both['nvfp4'][0]:.4f}",
        f"{100 * both['nvfp4'][1]:.2f}",
        f"{float(run.model.load_entropy().mean()):.3f}",
    ]


def _profile(run: Pretrainer) -> None:
    """Prints which kernels a step spends its time in, and how much of it the device is idle."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    began = time.perf_counter()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(PROFILED_STEPS):
            run.update(0.0)
        torch.cuda.synchronize()
    wall = (time.perf_counter() - began) / PROFILED_STEPS
    events = profile.key_averages()
    busy = sum(e.self_device_time_total for e in events) / 1e6 / PROFILED_STEPS
    run.say(f"a step: {1000 * wall:.1f} ms with the profiler on, device busy {1000 * busy:.1f} ms")
    for event in sorted(events, key=lambda e: -e.self_device_time_total)[:PROFILED_ROWS]:
        share = event.self_device_time_total / 1e3 / PROFILED_STEPS
        print(f"  {share:7.3f} ms  {event.count // PROFILED_STEPS:5d} x  {event.key[:100]}")


_HEADS = (
    "variant",
    "M params",
    "ready s",
    "ms/step",
    "M pos/s",
    "M answer pos/s",
    "GiB",
    "first",
    "valid",
    "right %",
    "valid nvfp4",
    "right %",
    "load",
)


def _print(rows: list[list[str]]) -> None:
    table = [list(_HEADS), *rows]
    widths = [max(len(row[n]) for row in table) for n in range(len(_HEADS))]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(flush=True)
