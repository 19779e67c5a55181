"""Tensors that do not fit the model or hold values no model has: refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from folder_maker import copy_folder, edit_tensors, refusal, stack_experts
from torch import Tensor

MODELOPT = "llada2-tiny-nvfp4-modelopt"
COMPRESSED = "llada2-tiny-nvfp4-compressed-tensors"
UP3 = "model.layers.1.mlp.experts.3.up_proj"


@pytest.fixture
def model(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")


@pytest.fixture
def packed(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / MODELOPT, tmp_path / "packed")


def drop(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensor})


BF16 = torch.bfloat16
PLAIN: list[tuple[str, Callable[[dict[str, Tensor]], object], str, str]] = [
    ("norm gone", drop("model.norm.weight"), "missing_tensor", "model.norm.weight"),
    ("head gone", drop("lm_head.weight"), "missing_tensor", "lm_head.weight"),
    ("bias gone", drop("model.layers.2.mlp.gate.expert_bias"), "missing_tensor", ".expert_bias"),
    ("router gone", drop("model.layers.1.mlp.gate.weight"), "missing_tensor", "gate.weight"),
    ("expert gone", drop(f"{UP3}.weight"), "missing_tensor", f"{UP3}.weight"),
    ("extra", put("model.layers.1.mlp.experts.8.up_proj.weight", torch.ones(1)), "unexpected", ""),
    ("stranger", put("adapter.weight", torch.ones(1)), "unexpected_tensor", "adapter.weight"),
    ("bias", put("lm_head.bias", torch.ones(512)), "unexpected_tensor", "lm_head.bias"),
    ("transposed", put("lm_head.weight", torch.ones(512, 63)), "shape", "lm_head.weight"),
    ("norm 2-D", put("model.norm.weight", torch.ones(1, 64)), "shape", "model.norm.weight"),
    ("float64", put(f"{UP3}.weight", torch.ones(32, 64).double()), "dtype", f"{UP3}.weight"),
    (
        "fp8 weight",
        put(f"{UP3}.weight", torch.ones(32, 64).to(torch.float8_e4m3fn)),
        "dtype",
        f"{UP3}.weight",
    ),
    (
        "one router smaller",
        put("model.layers.1.mlp.gate.weight", torch.ones(4, 64)),
        "shape",
        "model.layers.1.mlp.gate.weight",
    ),
    (
        "infinite head",
        put("lm_head.weight", torch.full((512, 64), math.inf).to(BF16)),
        "non_finite",
        "lm_head.weight",
    ),
    (
        "float16 not-a-number",
        put(f"{UP3}.weight", torch.full((32, 64), math.nan).half()),
        "non_finite",
        f"{UP3}.weight",
    ),
    (
        "float32 infinity",
        put("model.layers.1.mlp.gate.expert_bias", torch.full((8,), -math.inf)),
        "non_finite",
        "expert_bias",
    ),
]


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case[0])
def test_tensors_that_do_not_fit_are_named(
    model: Path, case: tuple[str, Callable[[dict[str, Tensor]], object], str, str]
) -> None:
    _, change, code, item = case
    edit_tensors(model, change)
    error = refusal(model)
    assert error.code.startswith(f"checkpoint.{code}")
    assert error.file == "model.safetensors"
    assert error.item is not None
    assert item in error.item


def test_the_first_bad_element_is_given(model: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"][17, 5] = math.nan
        tensors["lm_head.weight"][200, 1] = math.inf

    edit_tensors(model, spoil)
    assert "lm_head.weight, element [17, 5] is NaN" in refusal(model).message


@pytest.mark.parametrize("fused", [False, True])
def test_stacks_are_checked_like_everything_else(model: Path, fused: bool) -> None:
    edit_tensors(model, lambda t: stack_experts(t, fused=fused))
    name = "model.layers.1.mlp.experts.down_proj"
    edit_tensors(model, lambda t: t[name][3, 2, 1].fill_(math.nan))
    error = refusal(model)
    assert error.item == name
    assert "element [3, 2, 1]" in error.message
    edit_tensors(model, drop(name))
    assert refusal(model).code == "checkpoint.missing_tensor"


def set_byte(name: str, byte: int) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors[name].view(torch.uint8)[1, 2].fill_(byte)


def scalar(name: str, value: float, shape: tuple[int, ...] = ()) -> Callable[..., object]:
    return put(name, torch.full(shape, value))


PACKED: list[tuple[str, Callable[[dict[str, Tensor]], object], str, str]] = [
    ("block scale 0", set_byte(f"{UP3}.weight_scale", 0x00), "bad_scale", "weight_scale"),
    ("block scale -0", set_byte(f"{UP3}.weight_scale", 0x80), "bad_scale", "weight_scale"),
    ("block scale NaN", set_byte(f"{UP3}.weight_scale", 0x7F), "bad_scale", "weight_scale"),
    ("block scale -NaN", set_byte(f"{UP3}.weight_scale", 0xFF), "bad_scale", "weight_scale"),
    ("block scale < 0", set_byte(f"{UP3}.weight_scale", 0x90), "bad_scale", "weight_scale"),
    ("scale_2 < 0", scalar(f"{UP3}.weight_scale_2", -0.1), "bad_scale", "weight_scale_2"),
    ("scale_2 NaN", scalar(f"{UP3}.weight_scale_2", math.nan), "non_finite", "weight_scale_2"),
    ("scale_2 a divisor", scalar(f"{UP3}.weight_scale_2", 12416.0), "bad_scale", "weight_scale_2"),
    ("input scale 0", scalar(f"{UP3}.input_scale", 0.0), "bad_scale", "input_scale"),
    ("scale_2 two values", scalar(f"{UP3}.weight_scale_2", 0.1, (2,)), "shape", "weight_scale_2"),
    ("scale_2 gone", drop(f"{UP3}.weight_scale_2"), "missing_tensor", "weight_scale_2"),
    ("weight gone", drop(f"{UP3}.weight"), "missing_tensor", f"{UP3}.weight"),
    ("scales float32", put(f"{UP3}.weight_scale", torch.ones(32, 4)), "dtype", "weight_scale"),
    (
        "codes too narrow",
        put(f"{UP3}.weight", torch.zeros(32, 16, dtype=torch.uint8)),
        "shape",
        f"{UP3}.weight",
    ),
    (
        "scales of blocks of 32",
        put(f"{UP3}.weight_scale", torch.ones(32, 2).to(torch.float8_e4m3fn)),
        "shape",
        "weight_scale",
    ),
    ("AWQ", put(f"{UP3}.pre_quant_scale", torch.ones(64)), "unsupported", "pre_quant_scale"),
    ("plain with scales", put(f"{UP3}.weight", torch.ones(32, 64)), "unexpected_tensor", UP3),
]


@pytest.mark.parametrize("case", PACKED, ids=lambda case: case[0])
def test_packed_tensors_that_do_not_fit_are_named(
    packed: Path, case: tuple[str, Callable[[dict[str, Tensor]], object], str, str]
) -> None:
    test_tensors_that_do_not_fit_are_named(packed, case)


@pytest.mark.parametrize("value", [0.0, 0.5, math.inf, -3.0])
def test_a_divisor_scale_must_be_at_least_one(
    shared_fixtures: Path, tmp_path: Path, value: float
) -> None:
    folder = copy_folder(shared_fixtures / COMPRESSED, tmp_path / "model")
    edit_tensors(folder, scalar(f"{UP3}.weight_global_scale", value, (1,)))
    error = refusal(folder)
    assert error.code in ("checkpoint.bad_scale", "checkpoint.non_finite")
    assert error.item == f"{UP3}.weight_global_scale"


def test_zero_scales_are_no_zero_matrix_unless_everything_says_so(packed: Path) -> None:
    """A hole of zero bytes in a file has zero block scales too, where ModelOpt writes NaN."""

    def zero(tensors: dict[str, Tensor]) -> None:
        for end in ("weight", "weight_scale", "weight_scale_2"):
            tensors[f"{UP3}.{end}"].view(torch.uint8).zero_()

    edit_tensors(packed, lambda t: t.update({f"{UP3}.weight_scale_2": torch.zeros(1)}))
    assert refusal(packed).item == f"{UP3}.weight_scale_2"
    edit_tensors(packed, zero)
    assert refusal(packed).code == "checkpoint.bad_scale"
