"""FP8 and FP4 rounding and layouts; the products themselves need a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import cast

import pytest
import torch
from small import CPU

from engine.checkpoint import open_checkpoint
from engine.engine import load_engine
from engine.errors import RequestError, RuntimeFailure
from engine.kernels import fp8, native_fp4
from engine.kernels.nvfp4 import dequantize, quantize
from engine.loading import Placement, load_model
from engine.models.kernel_report import Arithmetic
from engine.models.layers import Linear
from engine.models.reduced import check_reduced, use_reduced


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
def test_what_a_device_cannot_do_is_refused_before_a_weight_is_read(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Arithmetic
) -> None:
    checkpoint = open_checkpoint(tiny_folder)
    read = list[str]()
    monkeypatch.setattr(checkpoint, "linear_into", lambda name, out: read.append(name))
    with pytest.raises(RuntimeFailure) as caught:
        load_model(checkpoint, Placement(CPU, torch.float32, True, "test"), arithmetic=kind)
    checkpoint.release()
    assert (caught.value.code, read) == ("load.arithmetic", [])


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_another_dtype_than_the_products_is_refused(kind: Arithmetic) -> None:
    with pytest.raises(RuntimeFailure, match="float32"):
        check_reduced(kind, torch.device("cuda"), torch.float32)


def test_fp8_without_triton_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeFailure, match="Triton is not installed"):
        check_reduced("fp8", torch.device("cuda"), torch.bfloat16)


@pytest.mark.parametrize(("kind", "stored"), [("fp8", "bfloat16"), ("fp4", "NVFP4")])
def test_a_model_with_no_layer_for_it_is_refused(kind: Arithmetic, stored: str) -> None:
    layer = Linear(32, 24 if kind == "fp8" else 32)
    with pytest.raises(RuntimeFailure, match=stored) as caught:
        use_reduced(torch.nn.ModuleDict({"proj": layer, "lm_head": Linear(32, 32)}), kind)
    assert caught.value.code == "load.arithmetic"
    assert layer.compute is None


def test_only_layers_whose_sizes_the_products_take_are_changed() -> None:
    sizes = {"good": (64, 32), "short_rows": (48, 32), "odd_count": (64, 24)}
    layers = torch.nn.ModuleDict({name: Linear(*size) for name, size in sizes.items()})
    for layer in layers.values():
        assert isinstance(layer, Linear)
        layer.pack(quantize(torch.randn(layer.weight.shape)))
    assert use_reduced(layers, "fp4").startswith("1 ")
    changed = [name for name, layer in layers.items() if cast(Linear, layer).compute is not None]
    assert changed == ["good"]


def test_fewer_digits_without_kernels_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(RequestError) as caught:
        load_engine(tiny_folder, device="cpu", kernels=False, arithmetic="fp8")
    assert caught.value.code == "request.arithmetic"
