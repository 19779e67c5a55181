"""What the machine itself can do, measured in the same run: how fast its memory is read, and how
fast it multiplies.

Knows devices, clocks and memory counters; knows no model.
"""

from __future__ import annotations

import gc
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from engine.floor import read_bandwidth
from engine.hardware import describe_hardware
from engine.runtime.choice import has_triton

READ_BYTES = 4 << 30  # far more than any cache holds
READ_UNIT = 16 * 2048 * 4  # bytes one program of the reading kernel takes
SIDE = 8192  # of the matrices multiplied
REPEATS = 12


@dataclass(frozen=True)
class Machine:
    """device: its name; software: versions, for a person. bandwidth: bytes read a second.
    products: multiplications and additions a second in bfloat16 matrix products, 0 where they were
    not measured (a CPU)."""

    device: str
    software: str
    bandwidth: float
    products: float

    def floor_ms(self, read: float, products: float) -> float:
        """Least milliseconds for so many bytes and operations: whichever takes longer."""
        by_memory = read / self.bandwidth
        by_arithmetic = products / self.products if self.products else 0.0
        return 1e3 * max(by_memory, by_arithmetic)

    def bound_by(self, read: float, products: float) -> str:
        arithmetic = self.products and products / self.products > read / self.bandwidth
        return "arithmetic" if arithmetic else "memory"


def measure_machine(device: torch.device) -> Machine:
    if device.type != "cuda":
        name = describe_hardware().cpu_name
        return Machine(name, _software(), read_bandwidth(device), 0.0)
    name = torch.cuda.get_device_name(device)
    return Machine(name, _software(), _gpu_bandwidth(device), _gpu_products(device))


def _software() -> str:
    words = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    if torch.version.cuda:
        words.append(f"driver {describe_hardware().driver}")
    return ", ".join(words)


def _gpu_bandwidth(device: torch.device) -> float:
    """The faster of torch's sum and a kernel that does nothing but read."""
    size = min(READ_BYTES, free_bytes(device) // 4) // READ_UNIT * READ_UNIT
    data = torch.ones(size // 4, dtype=torch.int32, device=device)
    out = torch.empty((), dtype=torch.float32, device=device)
    wide = data.view(torch.float32)
    seconds = time_gpu(lambda: torch.sum(wide, dim=0, out=out), REPEATS)
    if has_triton():
        from engine.bench.gpu_kernels import read_all

        sums = torch.empty(size // READ_UNIT, dtype=torch.int32, device=device)
        seconds = min(seconds, time_gpu(lambda: read_all(data, sums), REPEATS))
    return data.nbytes / seconds


def _gpu_products(device: torch.device) -> float:
    left, right = (torch.randn(SIDE, SIDE, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(left)
    return 2 * SIDE**3 / time_gpu(lambda: torch.mm(left, right, out=out), REPEATS)


def time_gpu(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of one call of `work`, by events on the current stream."""
    work()
    return statistics.median(gpu_times(work, repeats)) * 1e-3


def gpu_times(work: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of each of `repeats` calls, enqueued without a wait between them."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    events[-1].synchronize()
    return [first.elapsed_time(second) for first, second in pairwise(events)]


def settle(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]


def give_back(device: torch.device) -> None:
    """Returns memory that nothing uses to the driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Spread:
    """Milliseconds: median, tenth and ninetieth percentile, of `count` values."""

    median: float
    p10: float
    p90: float
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Raises ValueError without any value."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(
            statistics.median(ordered),
            ordered[round(0.1 * last)] if ordered else 0.0,
            ordered[round(0.9 * last)],
            len(ordered),
        )
