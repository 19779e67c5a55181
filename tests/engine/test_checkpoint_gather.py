"""Experts gathered in a few copies are the experts one by one; values checked on arrival are the
values the slower pass accepts. (Here the "device" is the CPU.)"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from small import CPU

from engine.checkpoint import open_checkpoint, stacks
from engine.checkpoint.device_checks import DeviceChecks
from engine.checkpoint.inventory import Form
from engine.checkpoint.stacks import Part, gather
from engine.checkpoint.staging import StagedReader
from engine.checkpoint.tensor_file import TensorEntry, TensorFile
from engine.errors import CheckpointError
from engine.kernels.nvfp4 import PackedExperts, dequantize, quantize

Written = dict[str, torch.Tensor]


def write(path: Path, tensors: Written, gap: int = 0) -> TensorFile:
    """A file with uint8 tensors in the given order; with `gap`, unrelated bytes between them."""
    header, data = {}, b""
    for number, (name, tensor) in enumerate(tensors.items()):
        for key, raw in ((name, tensor.numpy().tobytes()), (f"other{number}", bytes(gap))):
            if raw:
                shape = list(tensor.shape) if key == name else [gap]
                span = [len(data), len(data) + len(raw)]
                header[key] = {"dtype": "U8", "shape": shape, "data_offsets": span}
                data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return TensorFile(path)


@pytest.mark.parametrize("order", ["by expert", "by name", "shuffled", "two files"])
@pytest.mark.parametrize("largest", [1 << 30, 700])
def test_any_order_in_the_files_gives_the_same_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, largest: int
) -> None:
    monkeypatch.setattr(stacks, "LARGEST", largest)
    draw = torch.Generator().manual_seed(1)
    sizes = {"codes": (6, 8), "scales": (6, 1), "one": (4,)}
    content = {
        f"experts.{expert}.{kind}": torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
        for expert in range(12)
        for kind, shape in sizes.items()
    }
    names = list(content)
    if order == "by name":
        names.sort()
    elif order == "shuffled":
        random.Random(2).shuffle(names)
    half = len(names) // 2 if order == "two files" else len(names)
    pieces = [names[:half], names[half:]]
    files = {
        file.name: file
        for number, piece in enumerate(pieces)
        if piece
        for file in [
            write(tmp_path / f"{number}.safetensors", {n: content[n] for n in piece}, gap=3)
        ]
    }
    entries: dict[str, TensorEntry] = {}
    for file in files.values():
        entries |= file.entries
    outs = {kind: torch.zeros(12, *shape, dtype=torch.uint8) for kind, shape in sizes.items()}
    parts = [
        Part([entries[f"experts.{expert}.{kind}"] for expert in range(12)], out)
        for kind, out in outs.items()
    ]
    reader = StagedReader(CPU)
    gather(parts, lambda entry: files[entry.file], reader)
    reader.close()
    for kind, out in outs.items():
        for expert in range(12):
            assert torch.equal(out[expert], content[f"experts.{expert}.{kind}"]), (kind, expert)


@pytest.mark.parametrize("folder", ["modelopt", "compressed-tensors"])
def test_a_checkpoint_read_onto_a_device_is_the_checkpoint(
    shared_fixtures: Path, folder: str
) -> None:
    path = shared_fixtures / f"llada2-tiny-nvfp4-{folder}"
    plain, staged = open_checkpoint(path), open_checkpoint(path, check_values_now=False)
    staged.read_onto(CPU)
    layer = max(plain.experts.layers)
    pairs = list(zip(plain.expert_stack(layer), staged.expert_stack(layer), strict=True))
    pairs += [
        (plain.linear(name), staged.linear(name))
        for name in plain.inventory.matrices
        if ".experts." not in name
    ]
    for wanted, found in pairs:
        if isinstance(wanted, torch.Tensor):
            assert isinstance(found, torch.Tensor)
            assert torch.equal(wanted, found)
        else:
            assert not isinstance(found, torch.Tensor)
            for part in ("codes", "scales", "global_scale"):
                one, other = getattr(wanted, part), getattr(found, part)
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), part
    staged.finish_checks()
    for checkpoint in (plain, staged):
        checkpoint.release()


@pytest.mark.parametrize("name", ["c_scale2_zero", "d_scale2_inf", "e_nan_norm"])
def test_bad_values_are_named_when_found_on_arrival(shared_fixtures: Path, name: str) -> None:
    path = shared_fixtures / "broken" / name
    with pytest.raises(CheckpointError) as at_once:
        open_checkpoint(path)
    checkpoint = open_checkpoint(path, check_values_now=False)
    checkpoint.read_onto(CPU)
    for module in checkpoint.inventory.matrices:
        checkpoint.linear(module)
    for layer in checkpoint.experts.layers:
        checkpoint.expert_stack(layer)
    for tensor in checkpoint.spec.table.tensors:
        checkpoint.dense(tensor)
    with pytest.raises(CheckpointError) as later:
        checkpoint.finish_checks()
    checkpoint.release()
    assert (later.value.code, later.value.message) == (at_once.value.code, at_once.value.message)


def packed(experts: int = 3) -> PackedExperts:
    each = [quantize(torch.randn(4, 32)) for _ in range(experts)]
    return PackedExperts(
        torch.stack([w.codes for w in each]),
        torch.stack([w.scales for w in each]),
        torch.stack([w.global_scale for w in each]),
    )


def test_good_values_pass_and_are_left_alone() -> None:
    checks, stack = DeviceChecks(CPU), packed()
    before = dequantize(stack, torch.float32)
    checks.packed(stack, "modelopt")
    checks.packed(stack.expert(1), "modelopt")
    checks.dense(torch.randn(5, 5))
    assert checks.passed()
    assert torch.equal(dequantize(stack, torch.float32), before)


@pytest.mark.parametrize("byte", [0x00, 0x80, 0x7F, 0xFF, 0x81])
def test_a_bad_block_scale_is_found(byte: int) -> None:
    checks, stack = DeviceChecks(CPU), packed()
    stack.scales.view(torch.uint8)[2, 3, 1] = byte
    checks.packed(stack, "modelopt")
    assert not checks.passed()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bad_global_scale_is_found(value: float) -> None:
    checks, stack = DeviceChecks(CPU), packed()
    stack.global_scale[1] = value
    checks.packed(stack, "modelopt")
    assert not checks.passed()


@pytest.mark.parametrize(
    ("form", "value", "fits"),
    [
        ("modelopt", 1.0, True),
        ("modelopt", 1.01, False),
        ("compressed-tensors", 1.0, True),
        ("compressed-tensors", 0.99, False),
    ],
)
def test_a_global_scale_on_the_wrong_side_of_one_is_found(
    form: Form, value: float, fits: bool
) -> None:
    checks, stack = DeviceChecks(CPU), packed()
    stack.global_scale.fill_(0.5 if form == "modelopt" else 2.0)
    stack.global_scale[1] = value
    checks.packed(stack, form)
    assert checks.passed() == fits


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_weight_that_is_not_finite_is_found(value: float) -> None:
    checks, weight = DeviceChecks(CPU), torch.randn(7, 3)
    weight[6, 2] = value
    checks.dense(weight)
    assert not checks.passed()


def test_modelopts_spelling_of_zero_becomes_valid_numbers() -> None:
    stack = packed()
    stack.codes[1] = 0
    stack.scales.view(torch.uint8)[1] = 0x7F
    stack.global_scale[1] = 0.0
    other = PackedExperts(stack.codes.clone(), stack.scales.clone(), stack.global_scale.clone())
    checks = DeviceChecks(CPU)
    checks.packed(stack, "modelopt")
    assert checks.passed()
    assert torch.isfinite(dequantize(stack, torch.float32)).all()
    assert not dequantize(stack, torch.float32)[1].any()
    checks.packed(other, "compressed-tensors")
    assert not checks.passed()
