"""How much of a step its kernels are at work, and which kinds of them: from torch's profiler over
eager steps, whose kernels are those of a captured step.

Knows kernels' names well enough to sort them into parts. Time between kernels is not counted, and
where two run at once the time is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from engine.bench.arms import Place, make_runtime_of
from engine.bench.even_routing import RoutingName, routed
from engine.bench.machine import settle
from engine.bench.replies import Clocks, Script, run_script

# The first part whose word is in a kernel's name, lower case.
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("experts", ("gate_up_", "_down_kernel", "down_direct", "experts_ring")),
    ("routing", ("route", "_choose_kernel", "_sort_kernel", "_pool_kernel")),
    ("attention", ("_attend", "qk_rope", "flash", "fmha", "attention")),
    ("judging", ("_logits_kernel", "_merge_kernel", "_top_", "_head_kernel", "softmax")),
    ("norms and sums", ("norm", "combine", "silu")),
    ("bookkeeping", ("step_kernel", "begin_kernel", "end_kernel", "record")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "gemv", "splitk", "_linear", "cublas")),
)


@dataclass(frozen=True)
class KernelShare:
    """Milliseconds a step. busy: some kernel runs. parts: summed by kind, overlaps twice.
    launches: kernels a step."""

    busy_ms: float
    parts: dict[str, float]
    launches: float


def measure_kernels(place: Place, routing: RoutingName) -> KernelShare | None:
    """None where the profiler sees no kernel. Needs a GPU."""
    script = Script(place.scripts[0].forwards, 1)
    device = place.built.model.norm.weight.device
    with routed(place.built.model, routing, place.noise):
        runtime = make_runtime_of(place, "eager")
        run_script(runtime, place.spec, script, place.context, "off", Clocks())
        row = script.row(place.spec, place.context)
        runtime.prefill([row])
        settle(device)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            list(runtime.run([row], record=False))
            settle(device)
    events = [event for event in found.events() or () if is_kernel(event)]
    return sort_kernels(events, script.forwards) if events else None


def is_kernel(event: Any) -> bool:
    """Of the profiler's events: those that ran on the GPU, copies and fills included."""
    return str(event.device_type).endswith("CUDA") and event.time_range.elapsed_us() > 0


def sort_kernels(events: Iterable[Any], steps: int) -> KernelShare:
    """events: with `name` and `time_range` (start and end in microseconds)."""
    parts: dict[str, float] = {}
    spans: list[tuple[float, float]] = []
    for event in events:
        start, end = event.time_range.start, event.time_range.end
        part = part_of(event.name)
        parts[part] = parts.get(part, 0.0) + 1e-3 * (end - start) / steps
        spans.append((start, end))
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return KernelShare(1e-3 * _covered(spans) / steps, ordered, len(spans) / steps)


def part_of(name: str) -> str:
    lower = name.lower()
    for part, words in PARTS:
        if any(word in lower for word in words):
            return part
    return "other"


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
