"""The two public rules that turn a matrix into NVFP4, and the tensors each layout stores for one.

Both rules give the bytes that their package gives for the same bfloat16 matrix (ModelOpt 0.47.0,
compressed-tensors 0.20.1). They differ in rounding: compressed-tensors works in the matrix's own
dtype up to the block scales, and gives an all-zero block the smallest step of E4M3 at 1 instead of
1. Works on any number of rows at a time once the second-level scale is known. Source: models.md
section 5.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.checkpoint.tensor_writer import NewTensor
from engine.kernels.nvfp4 import (
    BLOCK,
    E2M1_MAX,
    E4M3_MAX,
    PackedWeight,
    encode_e2m1,
    global_scale_of,
    pack,
    quantize,
)

Layout = Literal["modelopt", "compressed-tensors"]
LAYOUTS: tuple[Layout, ...] = ("modelopt", "compressed-tensors")

_ZERO_BLOCK = 2.0**-3  # what compressed-tensors makes of a block scale that rounds to zero


class Rule(Protocol):
    """layout: its name. codes, scale, global_scale: ends of the three tensors' names."""

    layout: Layout
    codes: str
    scale: str
    global_scale: str
    global_shape: tuple[int, ...]

    def global_of(self, amax: Tensor) -> Tensor:
        """The second-level scale as it is stored, float32 []. amax: [], largest magnitude, in the
        dtype of the matrix."""
        ...

    def quantise(self, rows: Tensor, stored: Tensor) -> PackedWeight:
        """Rows [n, in] under a second-level scale as it is stored. The result's `global_scale` is
        the one that multiplies, made as the reader makes it."""
        ...


class ModelOpt:
    """`weight`, `weight_scale`, `weight_scale_2`: the second-level scale multiplies."""

    layout: Layout = "modelopt"
    codes, scale, global_scale = "weight", "weight_scale", "weight_scale_2"
    global_shape: tuple[int, ...] = ()

    def global_of(self, amax: Tensor) -> Tensor:
        return global_scale_of(amax)

    def quantise(self, rows: Tensor, stored: Tensor) -> PackedWeight:
        return quantize(rows, stored)


class CompressedTensors:
    """`weight_packed`, `weight_scale`, `weight_global_scale`: the second-level scale divides."""

    layout: Layout = "compressed-tensors"
    codes, scale, global_scale = "weight_packed", "weight_scale", "weight_global_scale"
    global_shape: tuple[int, ...] = (1,)

    def global_of(self, amax: Tensor) -> Tensor:
        amax = _working(amax)
        divisor = E2M1_MAX * E4M3_MAX / amax.clamp(min=torch.finfo(amax.dtype).tiny)
        return torch.nan_to_num(divisor, posinf=1.0).float().reshape(())

    def quantise(self, rows: Tensor, stored: Tensor) -> PackedWeight:
        blocks = _working(rows).unflatten(-1, (-1, BLOCK))
        wanted = stored.float() * (blocks.abs().amax(-1) / E2M1_MAX).float()
        scales = wanted.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn).float()
        scales = torch.where(scales == 0, torch.full_like(scales, _ZERO_BLOCK), scales)
        scaled = blocks.float() / (scales / stored).unsqueeze(-1)
        codes = pack(encode_e2m1(scaled.flatten(-2)))
        return PackedWeight(codes, scales.to(torch.float8_e4m3fn), stored.float().reciprocal())


RULES: dict[Layout, Rule] = {"modelopt": ModelOpt(), "compressed-tensors": CompressedTensors()}


def stored_tensors(rule: Rule, module: str, rows: int, cols: int) -> tuple[NewTensor, ...]:
    """Codes, block scales and second-level scale of one module, as they are stored."""
    return (
        NewTensor(f"{module}.{rule.codes}", "U8", (rows, cols // 2)),
        NewTensor(f"{module}.{rule.scale}", "F8_E4M3", (rows, cols // BLOCK)),
        NewTensor(f"{module}.{rule.global_scale}", "F32", rule.global_shape),
    )


def _working(values: Tensor) -> Tensor:
    """bfloat16 stays: the package rounds there. float16 has no room for 2688 / amax."""
    return values if values.dtype == torch.bfloat16 else values.float()
