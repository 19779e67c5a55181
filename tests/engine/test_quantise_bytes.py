"""What the quantiser writes, against the bytes and the dequantisers of the two public packages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from folder_maker import copy_folder, edit_tensors, stack_experts
from safetensors.torch import load_file
from torch import Tensor

from engine.checkpoint import open_checkpoint
from engine.checkpoint.quantiser import Choice, QuantiseOptions, quantise
from engine.checkpoint.quantiser.rules import LAYOUTS, RULES, Layout
from engine.kernels.nvfp4 import PackedWeight, dequantize

NAMES = ["gauss_small", "gauss_large", "outliers_and_zeros", "midpoints"]
STORED = {"modelopt": "modelopt", "compressed-tensors": "compressed_tensors"}
# As the fixtures were made: ModelOpt's exporter ties gate and up, the other one did not.
TIED = {"modelopt": True, "compressed-tensors": False}


def same_bytes(ours: Tensor, theirs: Tensor) -> bool:
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and torch.equal(ours.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_matrix_gets_the_packages_own_bytes(
    shared_fixtures: Path, layout: Layout, name: str
) -> None:
    weight = load_file(shared_fixtures / "nvfp4" / "original.safetensors")[name]
    theirs = load_file(shared_fixtures / "nvfp4" / f"{STORED[layout]}.safetensors")
    rule = RULES[layout]
    stored = rule.global_of(weight.abs().amax())
    packed = rule.quantise(weight, stored)
    assert same_bytes(packed.codes, theirs[f"{name}.{rule.codes}"])
    assert same_bytes(packed.scales, theirs[f"{name}.{rule.scale}"])
    assert same_bytes(stored.reshape(rule.global_shape), theirs[f"{name}.{rule.global_scale}"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_checkpoint_gets_the_packages_own_bytes(
    shared_fixtures: Path, tmp_path: Path, layout: Layout
) -> None:
    options = QuantiseOptions(layout=layout, shared_scales=TIED[layout])
    quantise(shared_fixtures / "llada2-tiny", tmp_path / "copy", options)
    ours = load_file(tmp_path / "copy" / "model.safetensors")
    theirs = load_file(
        shared_fixtures / f"llada2-tiny-nvfp4-{layout}" / "model.safetensors"
    )  # activations were calibrated there; the copy is weight-only
    wanted = {name for name in theirs if not name.endswith(".input_scale")}
    assert set(ours) == wanted
    assert [name for name in ours if not same_bytes(ours[name], theirs[name])] == []


def test_compressed_tensors_config_is_the_exporters(shared_fixtures: Path, tmp_path: Path) -> None:
    quantise(
        shared_fixtures / "llada2-tiny",
        tmp_path / "copy",
        QuantiseOptions(layout="compressed-tensors"),
    )
    theirs = shared_fixtures / "llada2-tiny-nvfp4-compressed-tensors" / "config.json"
    ours = json.loads((tmp_path / "copy" / "config.json").read_text(encoding="utf-8"))
    wanted = json.loads(theirs.read_text(encoding="utf-8"))
    for config in (ours, wanted):
        config["quantization_config"]["ignore"].sort()
    assert ours == wanted


def test_modelopt_config_names_every_module_that_stays(
    shared_fixtures: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    quantise(shared_fixtures / "llada2-tiny", target, QuantiseOptions())
    section = json.loads((target / "config.json").read_text(encoding="utf-8"))[
        "quantization_config"
    ]
    file = json.loads((target / "hf_quant_config.json").read_text(encoding="utf-8"))
    tensors = load_file(target / "model.safetensors")
    stays = {
        name.removesuffix(".weight")
        for name, value in tensors.items()
        if value.dim() == 2 and value.dtype == torch.bfloat16
    }
    assert section["quant_method"] == "modelopt"
    assert section["quant_algo"] == file["quantization"]["quant_algo"] == "W4A16_NVFP4"
    assert set(section["ignore"]) == set(file["quantization"]["exclude_modules"]) == stays
    assert "input_activations" not in section["config_groups"]["group_0"]  # nothing calibrated


@pytest.fixture(scope="module")
def everything(
    shared_fixtures: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[Layout, Path]:
    """Copies with all linear modules and the head in NVFP4."""
    folder = tmp_path_factory.mktemp("quantised")
    for layout in LAYOUTS:
        options = QuantiseOptions(layout=layout, choice=Choice(modules=("*",)))
        quantise(shared_fixtures / "llada2-tiny", folder / layout, options)
    return {layout: folder / layout for layout in LAYOUTS}


def expected_matrix(layout: Layout, weight: Tensor, amax: Tensor) -> PackedWeight:
    return RULES[layout].quantise(weight, RULES[layout].global_of(amax))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_reader_expands_a_copy_to_the_quantisers_own_values(
    everything: dict[Layout, Path], shared_fixtures: Path, layout: Layout
) -> None:
    target = everything[layout]
    source = load_file(shared_fixtures / "llada2-tiny" / "model.safetensors")
    checkpoint = open_checkpoint(target)
    packed = 0
    for module, stored in checkpoint.inventory.matrices.items():
        weight = source[f"{module}.weight"]
        out = torch.empty(weight.shape)
        checkpoint.linear_into(module, out)
        if stored.form == "dense":
            assert torch.equal(out, weight.float())
            continue
        assert stored.form == layout
        amax = weight.abs().amax()
        for one, other in (("gate_proj", "up_proj"), ("up_proj", "gate_proj")):
            if module.endswith(one):
                partner = source[f"{module.removesuffix(one)}{other}.weight"]
                amax = torch.maximum(amax, partner.abs().amax())
        wanted = dequantize(expected_matrix(layout, weight, amax), torch.float32)
        assert torch.equal(out, wanted), module
        packed += 1
    checkpoint.release()
    assert packed == 64  # 3 attentions of 2, 3 + 2 * (8 + 1) * 3 of MLPs, the head


def test_compressed_tensors_expands_a_copy_to_the_same_weights(
    everything: dict[Layout, Path],
) -> None:
    """Its own decompressor, from the config and the tensors as a loader would hand them over."""
    target = everything["compressed-tensors"]
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    theirs = QuantizationConfig.model_validate(config["quantization_config"])
    scheme = theirs.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    tensors = load_file(target / "model.safetensors")
    checkpoint = open_checkpoint(target)
    found = 0
    for module, stored in checkpoint.inventory.matrices.items():
        if stored.form == "dense":
            continue
        parts = compressor.compression_param_names(scheme)
        state = {part: tensors[f"{module}.{part}"] for part in parts}
        weight = compressor.decompress(state, scheme)["weight"]
        ours = torch.empty(weight.shape, dtype=torch.bfloat16)
        checkpoint.linear_into(module, ours)
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, ours), module
        found += 1
    checkpoint.release()
    assert found == 64


def test_compressed_tensors_quantises_what_the_config_says(
    everything: dict[Layout, Path],
) -> None:
    """The package's own matching of targets and ignored names picks exactly our modules."""
    target = everything["compressed-tensors"]
    from compressed_tensors.utils import match_named_modules

    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    section = config["quantization_config"]
    checkpoint = open_checkpoint(target)
    model = skeleton(checkpoint.spec.table.linears)
    group = section["config_groups"]["group_0"]
    matched = {name for name, _ in match_named_modules(model, group["targets"], section["ignore"])}
    packed = {m for m, stored in checkpoint.inventory.matrices.items() if stored.form != "dense"}
    checkpoint.release()
    assert matched == packed


def skeleton(linears: Mapping[str, tuple[int, int]]) -> torch.nn.Module:
    """A module tree with a linear at each of the names."""
    root = torch.nn.Module()
    for name, (rows, cols) in linears.items():
        *path, last = name.split(".")
        place = root
        for part in path:
            if not hasattr(place, part):
                place.add_module(part, torch.nn.Module())
            place = getattr(place, part)
        with torch.device("meta"):
            place.add_module(last, torch.nn.Linear(cols, rows, bias=False))
    return root


def test_modelopt_expands_a_copy_to_the_same_weights(everything: dict[Layout, Path]) -> None:
    target = everything["modelopt"]
    qtensor = pytest.importorskip(
        "modelopt.torch.quantization.qtensor.nvfp4_tensor",
        reason="nvidia-modelopt is not installed",
        exc_type=ImportError,
    )
    tensors = load_file(target / "model.safetensors")
    checkpoint = open_checkpoint(target)
    for module, stored in checkpoint.inventory.matrices.items():
        if stored.form == "dense":
            continue
        codes = tensors[f"{module}.weight"]
        shape = torch.Size((codes.shape[0], codes.shape[1] * 2))
        ours = torch.empty(shape)
        checkpoint.linear_into(module, ours)
        theirs = qtensor.NVFP4QTensor(shape, torch.float32, codes).dequantize(
            scale=tensors[f"{module}.weight_scale"],
            double_scale=tensors[f"{module}.weight_scale_2"],
            block_sizes={-1: 16},
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    checkpoint.release()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices_that_programs_fuse_share_the_larger_scale(
    shared_fixtures: Path, tmp_path: Path, layout: Layout
) -> None:
    end = RULES[layout].global_scale
    scales: dict[bool, dict[str, Tensor]] = {}
    for shared in (True, False):
        target = tmp_path / str(shared)
        options = QuantiseOptions(layout=layout, shared_scales=shared)
        quantise(shared_fixtures / "sdar-tiny", target, options)
        tensors = load_file(target / "model.safetensors")
        scales[shared] = {n: t for n, t in tensors.items() if n.endswith(f".{end}")}
    largest = max if layout == "modelopt" else min  # one multiplies, the other divides
    for base, parts in (("self_attn", "qkv"), ("mlp", ("gate", "up"))):
        names = [f"model.layers.1.{base}.{part}_proj.{end}" for part in parts]
        own = [float(scales[False][name]) for name in names]
        assert len(set(own)) == len(own)
        assert {float(scales[True][name]) for name in names} == {largest(own)}
    alone = f"model.layers.1.mlp.down_proj.{end}"
    assert torch.equal(scales[True][alone], scales[False][alone])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_stacked_experts_give_the_bytes_of_separate_ones(
    shared_fixtures: Path, tmp_path: Path, fused: bool, suffix: str
) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "stacked")
    edit_tensors(folder, lambda tensors: stack_experts(tensors, fused=fused, suffix=suffix))
    for source, target in ((shared_fixtures / "llada2-tiny", "a"), (folder, "b")):
        quantise(source, tmp_path / target, QuantiseOptions())
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert set(one) == set(other)
    assert all(same_bytes(one[name], other[name]) for name in one)


def test_of_a_stack_that_is_taken_apart_the_rest_stays_as_it_was(
    shared_fixtures: Path, tmp_path: Path
) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "stacked")
    edit_tensors(folder, lambda tensors: stack_experts(tensors, fused=True))
    choice = Choice(modules=("model.layers.1.mlp.experts.3.*",))
    quantise(folder, tmp_path / "copy", QuantiseOptions(choice=choice))
    source = load_file(shared_fixtures / "llada2-tiny" / "model.safetensors")
    copy = load_file(tmp_path / "copy" / "model.safetensors")
    base = "model.layers.1.mlp.experts"
    assert copy[f"{base}.3.up_proj.weight"].dtype == torch.uint8
    assert torch.equal(copy[f"{base}.2.up_proj.weight"], source[f"{base}.2.up_proj.weight"])
    assert torch.equal(copy[f"{base}.2.down_proj.weight"], source[f"{base}.2.down_proj.weight"])
    assert "model.layers.2.mlp.experts.gate_up_proj" in copy  # nothing of it was chosen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_float_dtypes_are_quantised_without_a_detour_over_bfloat16(
    shared_fixtures: Path, tmp_path: Path, dtype: torch.dtype, layout: Layout
) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "source")
    name = "model.layers.1.mlp.experts.0.down_proj"

    def convert(tensors: dict[str, Tensor]) -> None:
        value = tensors[f"{name}.weight"].float() * 1.0009765625  # no bfloat16 holds this
        tensors[f"{name}.weight"] = value.to(dtype)

    edit_tensors(folder, convert)
    quantise(folder, tmp_path / "copy", QuantiseOptions(layout=layout))
    weight = load_file(folder / "model.safetensors")[f"{name}.weight"]
    checkpoint = open_checkpoint(tmp_path / "copy")
    out = torch.empty(weight.shape)
    checkpoint.linear_into(name, out)
    checkpoint.release()
    wanted = expected_matrix(layout, weight.float(), weight.float().abs().amax())
    assert torch.equal(out, dequantize(wanted, torch.float32))
    assert 0.05 < float((out - weight.float()).norm() / weight.float().norm()) < 0.12
