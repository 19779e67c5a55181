"""Products with fewer digits than the checkpoint's weights ask for: options a person chooses.

Knows which layers take part (every linear layer but the head, the router and routed experts) and
what is said about it. The arithmetic is `engine.kernels.fp8` and `engine.kernels.native_fp4`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from engine.errors import RuntimeFailure
from engine.kernels import native_fp4
from engine.kernels.nvfp4 import PackedWeight
from engine.models.kernel_report import Arithmetic
from engine.models.layers import Linear

APART = ("lm_head", "router.proj")  # ends of names
FP8_CORES = (8, 9)  # first capability with FP8 tensor cores
_SENTENCES = {
    "fp8": "linear layers multiply in FP8, with a scale for each row and token: an option that "
    "rounds weights and activations, and was no faster than bfloat16 where it was measured "
    "(bench/LADDER.md).",
    "fp4": "NVFP4 layers multiply on FP4 tensor cores, activations rounded to FP4 too: an option "
    "that passed its check on this GPU, and was tried on no other.",
}


def check_reduced(kind: Arithmetic, device: torch.device, dtype: torch.dtype) -> None:
    """To be asked before a model is read. Raises RuntimeFailure `load.arithmetic` where this device
    cannot do what was asked for, or not in the model's dtype."""
    if kind == "stored":
        return
    name = kind.upper()
    if device.type != "cuda":
        raise _refusal(name, f"{device} is no NVIDIA GPU")
    if kind == "fp8" and importlib.util.find_spec("triton") is None:
        raise _refusal(name, "Triton is not installed")
    if dtype != torch.bfloat16:
        raise _refusal(name, f"their sums are bfloat16, and the model is to compute in {dtype}")
    if kind == "fp4":
        why = native_fp4.self_check(device)
    else:
        fits = torch.cuda.get_device_capability(device) >= FP8_CORES
        why = "" if fits else f"{device} has no FP8 tensor cores"
    if why:
        raise _refusal(name, why)


def use_reduced(model: nn.Module, kind: Arithmetic) -> str:
    """Changes the layers of a model in place, after `check_reduced`; a sentence about what was
    done. Raises RuntimeFailure `load.arithmetic` where no layer can take part."""
    if kind == "stored":
        return ""
    count = sum([_take(layer, kind) for layer in reduced_layers(model)])
    if not count:
        stored = "bfloat16" if kind == "fp8" else "NVFP4"
        raise _refusal(kind.upper(), f"no linear layer beside the experts is stored in {stored}")
    return f"{count} {_SENTENCES[kind]}"


def _take(layer: Linear, kind: Arithmetic) -> bool:
    """Whether the layer now multiplies with fewer digits."""
    if layer.compute is not None:
        return False
    if kind == "fp8" and layer.packed is None and _fits(layer.weight.shape, 16, 16):
        device = layer.weight.device
        layer.compute = _fp8_product(layer.weight.detach())
        layer.weight = nn.Parameter(torch.empty(0, device=device), requires_grad=False)
        return True
    if kind == "fp4" and layer.packed is not None and _fits(layer.packed.shape, 16, 32):
        layer.compute = _fp4_product(layer.packed)
        layer.packed = None
        return True
    return False


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


def _fits(shape: Sequence[int], rows: int, columns: int) -> bool:
    return shape[0] % rows == 0 and shape[1] % columns == 0


def _fp8_product(stored: Tensor) -> Callable[[Tensor], Tensor]:
    from engine.kernels import fp8  # needs Triton

    weight = fp8.round_rows_reference(stored)

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
