"""Low-rank adapters on the engine's linear layers (LoRA, arXiv 2106.09685), applied in the step.

Knows how an adapter is put on a `Linear`, switched off for the frozen model's view, and folded into
a dense weight. The base may be dense or packed NVFP4: it stays frozen, and the gradient to the
input goes through it. Knows no optimiser and no files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.errors import RequestError
from engine.models.layers import Linear


class LoRA:
    """One adapter: y = W x + scale / rank * B (A x), A [r, in] and B [out, r] float32 masters used
    in the input's dtype. B begins at zero, so the start model is unchanged."""

    def __init__(
        self, linear: Linear, size_in: int, size_out: int, rank: int, scale: float
    ) -> None:
        device = _device_of(linear)
        self.linear, self.factor = linear, scale / rank
        self.a = nn.Parameter(torch.empty(rank, size_in, device=device))
        self.b = nn.Parameter(torch.zeros(size_out, rank, device=device))
        self.enabled = True
        self._base = linear.compute
        linear.compute = self

    def initialise(self, generator: torch.Generator) -> None:
        """A uniform in +-1 / sqrt(in), as torch initialises linear layers."""
        bound = 1.0 / math.sqrt(self.a.shape[1])
        draw = torch.empty(self.a.shape).uniform_(-bound, bound, generator=generator)
        with torch.no_grad():
            self.a.copy_(draw)
            self.b.zero_()

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T without the bias, with what was learnt."""
        base = self._base
        out = F.linear(x, self.linear.dense(x.dtype)) if base is None else base(x)
        if not self.enabled:
            return out
        low = F.linear(x, self.a.to(x.dtype))
        return out + F.linear(low, self.b.to(x.dtype)) * self.factor

    @torch.no_grad()
    def folded(self) -> Tensor:
        """float32 [out, in]: the weight with the adapter in it."""
        base = self.linear.dense(torch.float32).float()
        return base + self.factor * (self.b.float() @ self.a.float())

    def remove(self) -> None:
        """Takes the adapter off; the layer is as it was."""
        self.linear.compute = self._base


class Adapters:
    """All adapters of a model, by the module's name."""

    def __init__(self, model: nn.Module, modules: Sequence[str], rank: int, scale: float) -> None:
        """modules: endings of names. Raises RequestError `train.no_modules` when nothing fits."""
        self.adapters: dict[str, LoRA] = {}
        for name, module in model.named_modules():
            if isinstance(module, Linear) and name.endswith(tuple(modules)):
                if name.startswith("residual."):
                    continue  # the residual adapter is trained in full
                size_out, size_in = _shape_of(module)
                self.adapters[name] = LoRA(module, size_in, size_out, rank, scale)
        if not self.adapters:
            raise RequestError(
                "train.no_modules",
                f"No layer of this model ends with {', '.join(modules)}.",
                "Name modules that exist: python -m engine inspect lists them.",
            )

    def initialise(self, seed: int) -> None:
        generator = torch.Generator("cpu").manual_seed(seed)
        for name in sorted(self.adapters):
            self.adapters[name].initialise(generator)

    def parameters(self) -> dict[str, nn.Parameter]:
        out: dict[str, nn.Parameter] = {}
        for name, adapter in self.adapters.items():
            out[f"{name}.lora_a"] = adapter.a
            out[f"{name}.lora_b"] = adapter.b
        return out

    @contextmanager
    def off(self) -> Iterator[None]:
        """The frozen model's view."""
        for adapter in self.adapters.values():
            adapter.enabled = False
        try:
            yield
        finally:
            for adapter in self.adapters.values():
                adapter.enabled = True


def _shape_of(linear: Linear) -> tuple[int, int]:
    """(out, in) of a dense or packed layer."""
    if linear.packed is None:
        out, size_in = linear.weight.shape
        return out, size_in
    out, half = linear.packed.codes.shape
    return out, 2 * half


def _device_of(linear: Linear) -> torch.device:
    return linear.weight.device if linear.packed is None else linear.packed.codes.device
