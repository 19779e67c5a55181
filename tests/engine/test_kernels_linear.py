"""The NVFP4 linear kernel against expanding first."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.linear_nvfp4 import FEW_ROWS, LinearTiling, linear, linear_reference
from engine.kernels.moe import e2m1_values, e4m3_values
from engine.kernels.nvfp4 import E2M1_VALUES, PackedWeight, quantize

import triton  # isort: skip
import triton.language as tl  # isort: skip

TILING = LinearTiling(tokens=16, rows=32, columns=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "size", "width"), [(3, 40, 128), (33, 64, 80)])
def test_few_rows_are_multiplied_from_the_packed_weight(
    dtype: torch.dtype, rows: int, size: int, width: int
) -> None:
    torch.manual_seed(0)
    weight = quantize(torch.randn(size, width))
    x = torch.randn(rows, width).to(dtype)
    got = linear(x, weight, tiling=TILING)
    want = linear_reference(x.double(), weight)
    assert got.dtype == dtype
    error = (got.double() - want).norm() / want.norm()
    assert error < (1e-6 if dtype == torch.float32 else 1e-3), float(error)


def test_many_rows_expand_first_and_give_the_same() -> None:
    torch.manual_seed(0)
    weight, x = quantize(torch.randn(32, 64)), torch.randn(FEW_ROWS + 1, 64)
    torch.testing.assert_close(linear(x, weight), linear_reference(x, weight))


def test_extreme_scales_are_exact_in_float32() -> None:
    """Subnormal and largest E4M3 scales: one-hot inputs read single weights back, bit for bit."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    packed = (codes[0::2] | codes[1::2] << 4).repeat(32, 1)
    scales = torch.tensor([1, 126], dtype=torch.uint8).view(torch.float8_e4m3fn).repeat(32, 1)
    weight = PackedWeight(packed, scales, torch.tensor(1.0))
    got = linear(torch.eye(32), weight, tiling=TILING)
    assert torch.equal(got, linear_reference(torch.eye(32), weight))


@triton.jit
def _decode_kernel(codes, scales, values_out, scales_out, N: tl.constexpr, M: tl.constexpr):
    n = tl.arange(0, N)
    m = tl.arange(0, M)
    tl.store(values_out + n, e2m1_values(tl.load(codes + n)))
    tl.store(scales_out + m, e4m3_values(tl.load(scales + m)))


def test_decoding_by_bits_gives_the_formats_values() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    scales = torch.arange(128, dtype=torch.uint8)
    values, decoded = torch.empty(16), torch.empty(128)
    _decode_kernel[(1,)](codes, scales, values, decoded, N=16, M=128)
    assert (values * 2.0**14).tolist() == list(E2M1_VALUES)
    want = scales[:127].view(torch.float8_e4m3fn).float()
    assert torch.equal(decoded[:127] * 2.0**8, want)
