"""What a model's modules are computed by, in words. Knows no kernel, so that it can be said where
none can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# How linear layers multiply: as their weights are stored, or with fewer digits (`models.reduced`).
Arithmetic = Literal["stored", "fp8", "fp4"]


@dataclass(frozen=True)
class KernelReport:
    """used: whether any kernel is. experts: how routed experts are multiplied. sentences: what runs
    how and why, for a person."""

    used: bool
    experts: Literal["cuda", "triton", "torch"]
    sentences: tuple[str, ...] = ()


NO_KERNELS = KernelReport(False, "torch")
