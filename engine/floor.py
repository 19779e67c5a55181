"""The least time a step can take on this machine: the weights it must read, over the speed its
memory reads at.

Knows which weights one step reads, and measures the memory. A floor and no forecast: sums, launches
and attention come on top, and a canvas of many tokens is held by arithmetic long before memory.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from engine.checkpoint import Checkpoint
from engine.loading import Placement

CPU_BYTES, GPU_BYTES = 256 << 20, 1 << 30  # read to time a memory: more than its caches hold
ROUNDS = 3


@dataclass(frozen=True)
class StepFloor:
    """step_bytes: weights one step reads, without the KV cache. bandwidth: bytes per second,
    measured. expected_experts: routed experts of a layer that a block of tokens meets if they
    choose evenly, 0 without experts."""

    step_bytes: int
    bandwidth: float
    expected_experts: float

    @property
    def milliseconds(self) -> float:
        return 1000 * self.step_bytes / self.bandwidth


def step_floor(checkpoint: Checkpoint, placement: Placement) -> StepFloor:
    """Measures the memory now (a fraction of a second)."""
    size, met = step_bytes(checkpoint, placement)
    return StepFloor(size, read_bandwidth(placement.device), met)


def step_bytes(checkpoint: Checkpoint, placement: Placement) -> tuple[int, float]:
    """Bytes of weights that a step over one block reads, and the experts of a layer it meets.

    Embedding rows are few and left out, unless the head is the embedding. Experts: of E with k for
    a token, n tokens that choose evenly meet E (1 - (1 - k/E)^n).
    """
    spec, inventory = checkpoint.spec, checkpoint.inventory
    table = spec.table
    experts = table.experts
    met, bases = 0.0, ()
    if experts is not None:
        rest = 1 - experts.per_token / experts.count
        met = experts.count * (1 - rest**spec.block_length)
        bases = tuple(f"{experts.base(layer)}." for layer in experts.layers)
    share = met / experts.count if experts is not None else 0.0
    tied = spec.checkpoint_name("lm_head") not in table.linears
    total = 0.0
    for module, matrix in inventory.matrices.items():
        if module == table.embedding and not tied:
            continue
        rows, cols = matrix.weight.shape
        weights = rows * cols * (1 if matrix.form == "dense" else 2)
        stored = matrix.form != "dense" and not placement.expand
        size = matrix.nbytes if stored else weights * placement.dtype.itemsize
        total += size * (share if module.startswith(bases) and bases else 1.0)
    for stack in inventory.stacks.values():
        for entry in stack.values():
            count, rows, cols = entry.shape
            total += count * rows * cols * placement.dtype.itemsize * share
    return int(total), met


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second at which the device's memory is read: the median of some sums."""
    data = torch.ones((GPU_BYTES if device.type == "cuda" else CPU_BYTES) // 4, device=device)
    data.sum()
    speeds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        data.sum().item()  # waits for the device
        speeds.append(data.nbytes / (time.perf_counter() - begun))
    return statistics.median(speeds)
