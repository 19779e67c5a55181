"""Matrix products in FP8 (E4M3): weights rounded once with a scale a row, activations at every call
with a scale a token.

Knows the rounding and the product. Weights and activations lose digits (`relative_error` says how
many): an option for dense models, whose products at 256 tokens are bound by arithmetic and not by
memory. Needs a GPU of capability 8.9 or later.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

E4M3_MAX = 448.0
SMALLEST = 1e-12  # of a scale: a row of zeros stays one


@dataclass(frozen=True, eq=False)
class Fp8Matrix:
    """codes float8_e4m3fn [rows, K] times scale float32 [rows, 1]."""

    codes: Tensor
    scale: Tensor

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


def round_rows_reference(x: Tensor) -> Fp8Matrix:
    """x [rows, K] of any float dtype -> its rows, each scaled so that its largest is 448."""
    wide = x.float()
    scale = (wide.abs().amax(-1, keepdim=True) / E4M3_MAX).clamp_min(SMALLEST)
    codes = (wide / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return Fp8Matrix(codes, scale)


def round_rows(x: Tensor) -> Fp8Matrix:
    """`round_rows_reference` in one launch; x [rows, K] contiguous."""
    rows, size = x.shape
    codes = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    _round_kernel[(rows,)](
        x, codes, scale, SIZE=size, SIZE_2=triton.next_power_of_2(size), num_warps=8
    )
    return Fp8Matrix(codes, scale)


def product(x: Fp8Matrix, weight: Fp8Matrix) -> Tensor:
    """x W^T: x of [T, K], weight of [N, K] -> bfloat16 [T, N]. K and N are multiples of 16."""
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        x.codes,
        weight.codes.t(),
        scale_a=x.scale,
        scale_b=weight.scale.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def product_reference(x: Fp8Matrix, weight: Fp8Matrix) -> Tensor:
    """The same in float32, anywhere."""
    return (x.codes.float() * x.scale) @ (weight.codes.float() * weight.scale).t()


def relative_error(x: Tensor, weight: Tensor) -> float:
    """||found - wanted|| / ||wanted|| of `product` against float32; x [T, K], weight [N, K]."""
    wanted = x.float() @ weight.float().t()
    found = product(round_rows(x), round_rows_reference(weight)).float()
    return float((found - wanted).norm() / wanted.norm())


@triton.jit
def _round_kernel(x, codes, scale, SIZE: tl.constexpr, SIZE_2: tl.constexpr):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_2)
    live = column < SIZE
    value = tl.load(x + row * SIZE + column, mask=live, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(value), axis=0) / 448.0, 1e-12)
    tl.store(scale + row, largest)
    scaled = tl.minimum(tl.maximum(value / largest, -448.0), 448.0)
    # Rounded here, ties to even, so that the conversion is exact: the interpreter's truncates.
    power = tl.abs(scaled).to(tl.int32, bitcast=True) & 0x7F800000
    step = tl.maximum(power - (3 << 23), 118 << 23).to(tl.float32, bitcast=True)  # from 2^-9
    magic = step * 12582912.0  # 1.5 * 2^23: adding it leaves no digit below the step
    rounded = (scaled + magic) - magic
    tl.store(codes + row * SIZE + column, rounded.to(codes.dtype.element_ty), mask=live)
