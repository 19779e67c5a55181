"""Matrix products on FP4 tensor cores: packed weights as they are, activations rounded to NVFP4.

Knows the layout torch's `scaled_mm` wants and how to check on the card at hand that it computes
what the reference does. Activations lose digits, so this is an option and never a default. **No GPU
with FP4 tensor cores has run it**: whoever asks for it gets it only after `self_check` has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.nvfp4 import (
    BLOCK,
    E2M1_MAX,
    E4M3_MAX,
    E4M3_MIN,
    PackedWeight,
    dequantize,
    encode_e2m1,
    global_scale_of,
    pack,
    quantize,
)

FP4_CORES = (10, 0)
TILE_ROWS, TILE_COLUMNS = 128, 4  # of the scales
TOLERANCE = 2e-2  # of the self-check, relative: bfloat16 output and another order of sums


@dataclass(frozen=True, eq=False)
class Fp4Matrix:
    """codes float4_e2m1fn_x2 [rows, K / 2], scales float8_e4m3fn in tiles (`tile_scales`), scale
    float32 []: what multiplies all of it."""

    codes: Tensor
    scales: Tensor
    scale: Tensor


def tile_scales(scales: Tensor) -> Tensor:
    """Block scales [rows, K / 16] in the order FP4 tensor cores read them: tiles of 128 x 4, in a
    tile 32 x 4 x 4 (row % 32, row / 32, column); flat, padded with zeros. Source: cuBLAS
    documentation, "1D block scaling factors layout"."""
    rows, columns = scales.shape
    pad = (0, -columns % TILE_COLUMNS, 0, -rows % TILE_ROWS)
    bytes_ = F.pad(scales.view(torch.uint8), pad)
    tiles = bytes_.view(bytes_.shape[0] // TILE_ROWS, 4, 32, -1, TILE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(torch.float8_e4m3fn)


def take(weight: PackedWeight) -> Fp4Matrix:
    """A checkpoint's matrix for `product`; codes are shared, not copied."""
    codes = weight.codes.view(torch.float4_e2m1fn_x2)
    return Fp4Matrix(codes, tile_scales(weight.scales), weight.global_scale)


def round_rows(x: Tensor) -> tuple[Fp4Matrix, PackedWeight]:
    """x [T, K] rounded to NVFP4 by the rules weights are, without reading the host: for the
    product, and in plain form for a reference."""
    scale = global_scale_of(x)
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    wanted = blocks.abs().amax(-1) / (E2M1_MAX * scale)
    scales = wanted.clamp(E4M3_MIN, E4M3_MAX).to(torch.float8_e4m3fn)
    scaled = blocks / (scales.float() * scale).unsqueeze(-1)
    plain = PackedWeight(pack(encode_e2m1(scaled.flatten(-2))), scales, scale)
    return take(plain), plain


def product(x: Fp4Matrix, weight: Fp4Matrix) -> Tensor:
    """x W^T -> bfloat16 [T, N]. K is a multiple of 32, N of 16."""
    recipe = [F.ScalingType.BlockWise1x16, F.ScalingType.TensorWise]
    swizzle = [F.SwizzleType.SWIZZLE_32_4_4, F.SwizzleType.NO_SWIZZLE]
    return F.scaled_mm(
        x.codes,
        weight.codes.t(),
        scale_a=[x.scales, x.scale],
        scale_recipe_a=recipe,
        scale_b=[weight.scales, weight.scale],
        scale_recipe_b=recipe,
        swizzle_a=swizzle,
        swizzle_b=swizzle,
        output_dtype=torch.bfloat16,
    )


def self_check(device: torch.device) -> str:
    """Compares `product` with the reference on random numbers, on this card: why it may not be
    used, "" where it may."""
    if torch.cuda.get_device_capability(device) < FP4_CORES:
        return "this GPU has no FP4 tensor cores"
    generator = torch.Generator(device=device).manual_seed(0)
    try:
        for tokens, rows, columns in ((32, 256, 512), (200, 384, 1024)):
            x = torch.randn(tokens, columns, generator=generator, device=device)
            weight = torch.randn(rows, columns, generator=generator, device=device) * 0.02
            packed = quantize(weight)
            rounded, plain = round_rows(x.bfloat16())
            wanted = dequantize(plain, torch.float32).double() @ (
                dequantize(packed, torch.float32).double().t()
            )
            found = product(rounded, take(packed)).double()
            error = float((found - wanted).norm() / wanted.norm())
            if not error <= TOLERANCE:
                return f"the self-check found an error of {error:.3f} on this GPU"
    except (RuntimeError, AttributeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return f"the self-check failed on this GPU: {first[:200]}"
    return ""
