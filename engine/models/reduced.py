"""Products with fewer digits than the checkpoint's weights ask for: options a person chooses.

Knows which layers take part (every linear layer but the head, the router and routed experts) and
what is said about it. The arithmetic is `engine.kernels.fp8` and `engine.kernels.native_fp4`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from engine.errors import RuntimeFailure
from engine.kernels import fp8, native_fp4
from engine.kernels.nvfp4 import PackedWeight
from engine.models.kernel_report import Arithmetic
from engine.models.layers import Linear

APART = ("lm_head", "router.proj")  # ends of names


def use_reduced(model: nn.Module, kind: Arithmetic, device: torch.device) -> str:
    """Changes the layers in place; a sentence about what was done. Raises RuntimeFailure
    `load.arithmetic` where this device cannot do what was asked for."""
    if kind == "stored":
        return ""
    return _use_fp8(model, device) if kind == "fp8" else _use_fp4(model, device)


def _use_fp8(model: nn.Module, device: torch.device) -> str:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < fp8.FP8_CORES:
        raise _refusal("FP8", f"{device} has no FP8 tensor cores")
    count = 0
    for layer in reduced_layers(model):
        if layer.packed is None and layer.compute is None and _fits(layer.weight, 16):
            layer.compute = _fp8_product(fp8.round_rows_reference(layer.weight.detach()))
            layer.weight = nn.Parameter(torch.empty(0, device=device), requires_grad=False)
            count += 1
    return (
        f"{count} linear layers multiply in FP8, with a scale for each row and token: "
        "an option that rounds weights and activations (bench/fp8.py measures by how much)."
    )


def _use_fp4(model: nn.Module, device: torch.device) -> str:
    why = native_fp4.self_check(device) if device.type == "cuda" else f"{device} is no NVIDIA GPU"
    if why:
        raise _refusal("FP4", why)
    count = 0
    for layer in reduced_layers(model):
        if layer.packed is not None and layer.packed.shape[0] % 16 == 0:
            layer.compute = _fp4_product(layer.packed)
            layer.packed = None
            count += 1
    return (
        f"{count} NVFP4 layers multiply on FP4 tensor cores, activations rounded to FP4 too: "
        "an option that passed its check on this GPU, and was tried on no other."
    )


def _refusal(name: str, why: str) -> RuntimeFailure:
    return RuntimeFailure(
        "load.arithmetic",
        f"Products in {name} were asked for, but {why}.",
        "Load the model without that option: layers then multiply as they are stored.",
    )


def reduced_layers(model: nn.Module) -> Iterator[Linear]:
    for name, module in model.named_modules():
        if isinstance(module, Linear) and not name.endswith(APART):
            yield module


def _fits(weight: Tensor, multiple: int) -> bool:
    return weight.dim() == 2 and not any(size % multiple for size in weight.shape)


def _fp8_product(weight: fp8.Fp8Matrix) -> Callable[[Tensor], Tensor]:
    def compute(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return fp8.product(fp8.round_rows(rows), weight).view(*x.shape[:-1], -1)

    return compute


def _fp4_product(packed: PackedWeight) -> Callable[[Tensor], Tensor]:
    weight = native_fp4.take(packed)

    def compute(x: Tensor) -> Tensor:
        rows, _ = native_fp4.round_rows(x.reshape(-1, x.shape[-1]))
        return native_fp4.product(rows, weight).view(*x.shape[:-1], -1)

    return compute
