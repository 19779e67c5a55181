"""FP8 and FP4 rounding and layouts; the products themselves need a GPU."""

from __future__ import annotations

import pytest
import torch

from engine.errors import RuntimeFailure
from engine.kernels import fp8, native_fp4
from engine.kernels.nvfp4 import dequantize, quantize
from engine.models.kernel_report import Arithmetic
from engine.models.layers import Linear
from engine.models.reduced import use_reduced


@pytest.mark.parametrize("size", [64, 80])
def test_rows_rounded_in_one_launch_are_the_references(size: int) -> None:
    x = torch.randn(9, size) * torch.logspace(-3, 3, 9).unsqueeze(1)
    x[4] = 0
    found, wanted = fp8.round_rows(x), fp8.round_rows_reference(x)
    torch.testing.assert_close(found.scale, wanted.scale)
    one, other = found.codes.float(), wanted.codes.float()
    assert (one - other).abs().max() <= 32  # a tie may fall either way: one step of E4M3 at 448
    assert (one != other).float().mean() < 0.01


def test_an_fp8_product_is_within_a_few_per_cent() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(20, 256), torch.randn(48, 256)
    parts = (fp8.round_rows_reference(x), fp8.round_rows_reference(weight))
    wanted = x @ weight.t()
    error = (fp8.product_reference(*parts) - wanted).norm() / wanted.norm()
    assert 0.005 < error < 0.05


def test_scales_lie_in_tiles_of_32_by_4_by_4() -> None:
    rows, columns = 200, 10
    scales = torch.randint(1, 120, (rows, columns), dtype=torch.uint8)
    tiled = native_fp4.tile_scales(scales.view(torch.float8_e4m3fn)).view(torch.uint8)
    padded = -(-columns // 4)
    assert tiled.numel() == 256 * 4 * padded
    for row in range(rows):
        for column in range(columns):
            tile = row // 128 * padded + column // 4
            inside = row % 32 * 16 + row % 128 // 32 * 4 + column % 4
            assert tiled[tile * 512 + inside] == scales[row, column]


def test_activations_are_rounded_as_weights_are() -> None:
    torch.manual_seed(1)
    x = torch.randn(12, 64)
    _, plain = native_fp4.round_rows(x)
    assert torch.equal(dequantize(plain, torch.float32), dequantize(quantize(x), torch.float32))


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_what_a_device_cannot_do_is_refused_and_nothing_changes(kind: Arithmetic) -> None:
    layer = Linear(32, 32)
    with pytest.raises(RuntimeFailure) as caught:
        use_reduced(torch.nn.ModuleList([layer]), kind, torch.device("cpu"))
    assert caught.value.code == "load.arithmetic"
    assert layer.compute is None
