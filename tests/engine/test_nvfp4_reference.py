"""The torch reference of NVFP4 against the two public packages' bytes and values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.kernels.nvfp4 import (
    E2M1_VALUES,
    PackedExperts,
    PackedWeight,
    dequantize,
    dequantize_into,
    encode_e2m1,
    pack,
    quantize,
    unpack,
)

NAMES = ["gauss_small", "gauss_large", "outliers_and_zeros", "midpoints"]


@pytest.fixture(scope="module")
def modelopt(shared_fixtures: Path) -> dict[str, Tensor]:
    return load_file(shared_fixtures / "nvfp4" / "modelopt.safetensors")


@pytest.fixture(scope="module")
def compressed(shared_fixtures: Path) -> dict[str, Tensor]:
    return load_file(shared_fixtures / "nvfp4" / "compressed_tensors.safetensors")


@pytest.fixture(scope="module")
def original(shared_fixtures: Path) -> dict[str, Tensor]:
    return load_file(shared_fixtures / "nvfp4" / "original.safetensors")


@pytest.fixture(scope="module")
def expected(shared_fixtures: Path) -> dict[str, Tensor]:
    return load_file(shared_fixtures / "nvfp4" / "expected_dequant.safetensors")


def packed_modelopt(tensors: dict[str, Tensor], name: str) -> PackedWeight:
    return PackedWeight(
        tensors[f"{name}.weight"],
        tensors[f"{name}.weight_scale"],
        tensors[f"{name}.weight_scale_2"],
    )


@pytest.mark.parametrize("name", NAMES)
def test_modelopt_bytes_expand_to_its_values(
    name: str, modelopt: dict[str, Tensor], expected: dict[str, Tensor]
) -> None:
    packed = packed_modelopt(modelopt, name)
    torch.testing.assert_close(
        dequantize(packed, torch.float32), expected[f"{name}.modelopt_fp32"], rtol=1e-6, atol=0
    )
    assert torch.equal(dequantize(packed, torch.bfloat16), expected[f"{name}.modelopt_bf16"])


@pytest.mark.parametrize("name", NAMES)
def test_compressed_tensors_bytes_expand_to_its_values(
    name: str, compressed: dict[str, Tensor], expected: dict[str, Tensor]
) -> None:
    packed = PackedWeight(
        compressed[f"{name}.weight_packed"],
        compressed[f"{name}.weight_scale"],
        compressed[f"{name}.weight_global_scale"][0].reciprocal(),
    )
    torch.testing.assert_close(
        dequantize(packed, torch.float32),
        expected[f"{name}.compressed_tensors_fp32"],
        rtol=1e-6,
        atol=0,
    )
    assert torch.equal(
        dequantize(packed, torch.bfloat16), expected[f"{name}.compressed_tensors_decompress_bf16"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_quantising_gives_modelopts_bytes(
    name: str, original: dict[str, Tensor], modelopt: dict[str, Tensor]
) -> None:
    ours, theirs = quantize(original[name]), packed_modelopt(modelopt, name)
    assert torch.equal(ours.codes, theirs.codes)
    assert torch.equal(ours.scales.view(torch.uint8), theirs.scales.view(torch.uint8))
    assert torch.equal(ours.global_scale, theirs.global_scale)


def test_every_code_packs_and_unpacks_with_the_even_column_in_the_low_nibble() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2, 1)
    packed = pack(codes)
    assert packed[0, 0] == 0x10
    assert torch.equal(unpack(packed), codes)


def test_every_value_keeps_its_code_and_midpoints_go_to_the_even_code() -> None:
    codes = encode_e2m1(torch.tensor(E2M1_VALUES)).tolist()
    assert codes == [*range(8), 0, *range(9, 16)]  # -0.0 takes code 0, as in ModelOpt
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 100.0])
    wanted = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0])
    assert torch.equal(torch.tensor(E2M1_VALUES)[encode_e2m1(midpoints).int()], wanted)
    assert torch.equal(torch.tensor(E2M1_VALUES)[encode_e2m1(-midpoints).int()], -wanted)


def test_values_beside_a_midpoint_go_to_their_own_side() -> None:
    """The code is made by rounding on three grids; the definition is the nearest value."""
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    below = torch.nextafter(midpoints, torch.tensor(0.0))
    above = torch.nextafter(midpoints, torch.tensor(9.0))
    assert encode_e2m1(below).tolist() == [*range(7)]
    assert encode_e2m1(above).tolist() == [*range(1, 8)]
    assert encode_e2m1(-above).tolist() == [*range(9, 16)]
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(6)) * 3
    distances = (values.unsqueeze(-1) - torch.tensor(E2M1_VALUES)).abs()
    chosen = distances.gather(1, encode_e2m1(values).long().unsqueeze(-1))
    assert torch.equal(chosen.squeeze(-1), distances.amin(-1))


def test_gaussian_error_is_what_the_format_allows() -> None:
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(1))
    error = dequantize(quantize(weight), torch.float32) - weight
    assert 0.09 < float(error.norm() / weight.norm()) < 0.10


def test_an_all_zero_matrix_is_quantised_in_valid_numbers() -> None:
    packed = quantize(torch.zeros(8, 32))
    assert float(packed.global_scale) == 1.0
    assert torch.equal(packed.scales.float(), torch.ones(8, 2))
    assert torch.equal(dequantize(packed, torch.float32), torch.zeros(8, 32))


def test_a_shared_global_scale_is_kept() -> None:
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(2))
    scale = torch.tensor(0.01)
    packed = quantize(weight, scale)
    assert torch.equal(packed.global_scale, scale)
    error = (dequantize(packed, torch.float32) - weight).norm() / weight.norm()
    assert float(error) < 0.15


@pytest.mark.parametrize(
    "weight", [torch.zeros(4, 24), torch.zeros(16), torch.full((2, 16), float("nan"))]
)
def test_what_the_format_cannot_hold_is_refused(weight: Tensor) -> None:
    with pytest.raises(ValueError, match="NVFP4"):
        quantize(weight)


def test_a_stack_expands_like_its_experts_and_into_any_dtype() -> None:
    generator = torch.Generator().manual_seed(3)
    parts = [quantize(torch.randn(6, 32, generator=generator) * (e + 1)) for e in range(3)]
    stack = PackedExperts(
        torch.stack([p.codes for p in parts]),
        torch.stack([p.scales for p in parts]),
        torch.stack([p.global_scale for p in parts]),
    )
    assert stack.shape == (3, 6, 32)
    whole = dequantize(stack, torch.float32)
    for index, part in enumerate(parts):
        assert torch.equal(whole[index], dequantize(part, torch.float32))
    out = torch.empty(3, 6, 32, dtype=torch.bfloat16)
    dequantize_into(stack, out)
    assert torch.equal(out, whole.to(torch.bfloat16))


def test_large_matrices_expand_in_row_groups_to_the_same_values() -> None:
    packed = quantize(torch.randn(600, 4096, generator=torch.Generator().manual_seed(4)))
    out = torch.empty(600, 4096)
    dequantize_into(packed, out)
    assert torch.equal(out, dequantize(packed, torch.float32))


def test_gradients_reach_the_input_through_an_expanded_weight() -> None:
    packed = quantize(torch.randn(8, 32, generator=torch.Generator().manual_seed(5)))
    x = torch.randn(4, 32, requires_grad=True)
    (x @ dequantize(packed, torch.float32).t()).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, dequantize(packed, torch.float32).sum(0).expand(4, 32))
