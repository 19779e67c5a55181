"""Intact checkpoints: what is detected, and that every way of reading gives the same weights."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import psutil
import pytest
import torch
from folder_maker import (
    copy_folder,
    edit_json,
    edit_tensors,
    raw_file,
    shard,
    stack_experts,
    tensors_of,
    write_tokenizer,
)
from safetensors.torch import load_file
from torch import Tensor

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.describe import module_groups, quantisation_words
from engine.checkpoint.tensor_file import WINDOW, TensorFile
from engine.errors import RuntimeFailure
from engine.kernels.nvfp4 import PackedExperts, PackedWeight, dequantize, quantize

MODELOPT = "llada2-tiny-nvfp4-modelopt"
COMPRESSED = "llada2-tiny-nvfp4-compressed-tensors"
INTACT = {
    "llada2-tiny": "bf16",
    MODELOPT: "modelopt",
    COMPRESSED: "compressed-tensors",
    "broken/base_ok": "modelopt",
}


def dense_experts(checkpoint: Checkpoint, layer: int, dtype: torch.dtype) -> list[Tensor]:
    spec = checkpoint.spec
    up = (spec.num_experts, spec.moe_intermediate_size, spec.hidden_size)
    down = (spec.num_experts, spec.hidden_size, spec.moe_intermediate_size)
    outs = [torch.full(shape, torch.nan, dtype=dtype) for shape in (up, up, down)]
    checkpoint.expert_stack_into(layer, *outs)
    return outs


@pytest.mark.parametrize("folder", INTACT)
def test_intact_fixtures_open(shared_fixtures: Path, folder: str) -> None:
    checkpoint = open_checkpoint(shared_fixtures / folder)
    assert checkpoint.family == "llada2"
    assert checkpoint.layout == INTACT[folder]
    assert checkpoint.files == ("model.safetensors",)
    assert checkpoint.total_bytes == (shared_fixtures / folder / "model.safetensors").stat().st_size
    assert not checkpoint.has_tokenizer
    assert checkpoint.spec.decoding == "llada2.0"
    assert checkpoint.layer_is_packed(1) == (INTACT[folder] != "bf16")
    checkpoint.release()


def test_dense_tensors_come_as_stored(shared_fixtures: Path) -> None:
    folder = shared_fixtures / "llada2-tiny"
    checkpoint, stored = open_checkpoint(folder), tensors_of(folder)
    for name, tensor in stored.items():
        if ".experts." not in name:
            assert torch.equal(checkpoint.dense(name), tensor), name
    name = "model.layers.1.mlp.gate.expert_bias"
    assert checkpoint.dense(name).dtype == torch.float32
    linear = checkpoint.linear("lm_head")
    assert isinstance(linear, Tensor)
    assert torch.equal(linear, stored["lm_head.weight"])


def test_dense_tensors_are_converted_on_the_way(shared_fixtures: Path) -> None:
    folder = shared_fixtures / "llada2-tiny"
    checkpoint, stored = open_checkpoint(folder), tensors_of(folder)
    out = torch.empty(512, 64)
    checkpoint.dense_into("model.word_embeddings.weight", out)
    assert torch.equal(out, stored["model.word_embeddings.weight"].float())
    checkpoint.linear_into("lm_head", out)
    assert torch.equal(out, stored["lm_head.weight"].float())
    with pytest.raises(ValueError, match="contiguous"):
        checkpoint.linear_into("lm_head", torch.empty(64, 512).t())
    with pytest.raises(ValueError, match="shape"):
        checkpoint.linear_into("lm_head", torch.empty(64, 64))


def test_reads_survive_release_and_nothing_is_read_after_it(shared_fixtures: Path) -> None:
    checkpoint = open_checkpoint(shared_fixtures / "llada2-tiny")
    before = checkpoint.dense("model.norm.weight")
    checkpoint.release()
    assert torch.equal(before, tensors_of(checkpoint.path)["model.norm.weight"])
    with pytest.raises(RuntimeError, match="released"):
        checkpoint.dense("model.norm.weight")


@pytest.mark.parametrize("folder", [MODELOPT, COMPRESSED, "broken/base_ok"])
def test_packed_experts_expand_to_what_the_stored_numbers_say(
    shared_fixtures: Path, folder: str
) -> None:
    checkpoint = open_checkpoint(shared_fixtures / folder)
    stored = tensors_of(shared_fixtures / folder)
    stacks = checkpoint.expert_stack(1)
    streamed = dense_experts(checkpoint, 1, torch.bfloat16)
    for part, stack, into in zip(("gate", "up", "down"), stacks, streamed, strict=True):
        assert isinstance(stack, PackedExperts)
        whole = dequantize(stack, torch.float32)
        assert torch.equal(into, whole.to(torch.bfloat16))
        for expert in range(checkpoint.spec.num_experts):
            module = f"model.layers.1.mlp.experts.{expert}.{part}_proj"
            single = checkpoint.linear(module)
            assert isinstance(single, PackedWeight)
            assert torch.equal(dequantize(single, torch.float32), whole[expert])
            scale = stored[f"{module}.weight_scale"].float().repeat_interleave(16, 1)
            if folder == COMPRESSED:
                scale = scale / stored[f"{module}.weight_global_scale"]
            else:
                scale = scale * stored[f"{module}.weight_scale_2"]
            code = whole[expert] / scale
            assert float((code * 2 - (code * 2).round()).abs().max()) < 1e-5


def test_modelopt_and_compressed_tensors_hold_the_same_model(shared_fixtures: Path) -> None:
    """Both were made from the dense fixture: each expert is within the format's error of it."""
    dense = dense_experts(open_checkpoint(shared_fixtures / "llada2-tiny"), 2, torch.float32)
    for folder in (MODELOPT, COMPRESSED):
        packed = dense_experts(open_checkpoint(shared_fixtures / folder), 2, torch.float32)
        for wanted, found in zip(dense, packed, strict=True):
            assert 0.08 < float((found - wanted).norm() / wanted.norm()) < 0.11


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_stacked_and_fused_experts_read_like_separate_ones(
    shared_fixtures: Path, tmp_path: Path, fused: bool, suffix: str
) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")
    wanted = open_checkpoint(folder).expert_stack(2)
    edit_tensors(folder, lambda t: stack_experts(t, fused=fused, suffix=suffix))
    checkpoint = open_checkpoint(folder)
    assert not checkpoint.layer_is_packed(2)
    found = checkpoint.expert_stack(2)
    streamed = dense_experts(checkpoint, 2, torch.float32)
    same = dense_experts(checkpoint, 2, torch.bfloat16)
    for index in range(3):
        expert, mine = wanted[index], found[index]
        assert isinstance(expert, Tensor)
        assert isinstance(mine, Tensor)
        assert torch.equal(mine, expert)
        assert torch.equal(same[index], expert)
        assert torch.equal(streamed[index], expert.float())


def test_shards_read_like_one_file(shared_fixtures: Path, tmp_path: Path) -> None:
    folder = copy_folder(shared_fixtures / MODELOPT, tmp_path / "model")
    wanted = dense_experts(open_checkpoint(folder), 1, torch.float32)
    shard(folder, parts=3)
    checkpoint = open_checkpoint(folder)
    assert len(checkpoint.files) == 3
    for mine, theirs in zip(dense_experts(checkpoint, 1, torch.float32), wanted, strict=True):
        assert torch.equal(mine, theirs)


def test_one_layer_may_mix_packed_and_plain_experts(shared_fixtures: Path, tmp_path: Path) -> None:
    folder = copy_folder(shared_fixtures / MODELOPT, tmp_path / "model")
    wanted = dense_experts(open_checkpoint(folder), 1, torch.float32)
    base = "model.layers.1.mlp.experts.3.up_proj"

    def expand(tensors: dict[str, Tensor]) -> None:
        for end in ("weight_scale", "weight_scale_2", "input_scale"):
            tensors.pop(f"{base}.{end}")
        tensors[f"{base}.weight"] = wanted[1][3].to(torch.bfloat16)

    edit_tensors(folder, expand)
    checkpoint = open_checkpoint(folder)
    assert not checkpoint.layer_is_packed(1)
    assert checkpoint.layer_is_packed(2)
    gate, up, _ = checkpoint.expert_stack(1)
    assert isinstance(gate, PackedExperts)
    assert isinstance(up, Tensor)
    assert torch.equal(up[2], wanted[1][2])
    assert torch.equal(up[3], wanted[1][3].to(torch.bfloat16).float())


def test_attention_embedding_and_head_may_be_packed_too(
    shared_fixtures: Path, tmp_path: Path
) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")
    modules = ["model.layers.0.attention.dense", "model.word_embeddings", "lm_head"]
    wanted: dict[str, PackedWeight] = {}

    def pack(tensors: dict[str, Tensor]) -> None:
        for module in modules:
            packed = wanted[module] = quantize(tensors[f"{module}.weight"])
            tensors[f"{module}.weight"] = packed.codes
            tensors[f"{module}.weight_scale"] = packed.scales
            tensors[f"{module}.weight_scale_2"] = packed.global_scale

    edit_tensors(folder, pack)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.layout == "modelopt"
    for module in modules:
        linear = checkpoint.linear(module)
        assert isinstance(linear, PackedWeight)
        assert torch.equal(linear.codes, wanted[module].codes)
    words = quantisation_words(checkpoint)
    assert words == "NVFP4 (ModelOpt): embedding, head, some attention; bfloat16: the rest"


def test_both_layouts_in_one_folder_are_called_mixed(shared_fixtures: Path, tmp_path: Path) -> None:
    folder = copy_folder(shared_fixtures / MODELOPT, tmp_path / "model")
    other = tensors_of(shared_fixtures / COMPRESSED)

    def swap(tensors: dict[str, Tensor]) -> None:
        for name in [n for n in tensors if n.startswith("model.layers.2.mlp.experts.")]:
            del tensors[name]
        tensors.update(
            {n: t for n, t in other.items() if n.startswith("model.layers.2.mlp.experts.")}
        )

    edit_tensors(folder, swap)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.layout == "mixed"
    wanted = dense_experts(open_checkpoint(shared_fixtures / COMPRESSED), 2, torch.float32)
    for mine, theirs in zip(dense_experts(checkpoint, 2, torch.float32), wanted, strict=True):
        assert torch.equal(mine, theirs)


def test_modelopts_all_zero_matrix_is_read_as_zeros(shared_fixtures: Path, tmp_path: Path) -> None:
    folder = copy_folder(shared_fixtures / MODELOPT, tmp_path / "model")
    base = "model.layers.1.mlp.experts.3.up_proj"

    def zero(tensors: dict[str, Tensor]) -> None:
        tensors[f"{base}.weight"].zero_()
        tensors[f"{base}.weight_scale"].view(torch.uint8).fill_(0x7F)  # NaN
        tensors[f"{base}.weight_scale_2"].zero_()

    edit_tensors(folder, zero)
    checkpoint = open_checkpoint(folder)
    packed = checkpoint.linear(base)
    assert isinstance(packed, PackedWeight)
    assert torch.equal(dequantize(packed, torch.float32), torch.zeros(32, 64))
    assert torch.equal(dense_experts(checkpoint, 1, torch.float32)[1][3], torch.zeros(32, 64))
    assert any(base in note for note in checkpoint.notes)


def test_ignored_tensors_are_left_aside_and_counted(shared_fixtures: Path, tmp_path: Path) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["v_head.summary.weight"] = torch.full((1, 64), torch.nan)
        tensors["model.vision_tower.patch.weight"] = torch.ones(2, 2)
        tensors["model.layers.1.attention.k_scale"] = torch.ones(1)

    edit_tensors(folder, add)
    checkpoint = open_checkpoint(folder)
    assert any(note.startswith("Ignored 4 tensors") for note in checkpoint.notes)


def test_tied_embeddings_need_no_head(shared_fixtures: Path, tmp_path: Path) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")
    edit_json(folder, "config.json", tie_word_embeddings=True)
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    assert "lm_head" not in open_checkpoint(folder).inventory.matrices


@pytest.mark.parametrize("name", ["plain", "mit Leerzeichen", "日本語　モデル", "ünïcødé 😀"])
def test_any_folder_name_works(shared_fixtures: Path, tmp_path: Path, name: str) -> None:
    folder = copy_folder(shared_fixtures / MODELOPT, tmp_path / name / "ein Modell")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.path == folder
    assert open_checkpoint(str(folder)).spec == checkpoint.spec


def test_a_matching_tokenizer_is_accepted(shared_fixtures: Path, tmp_path: Path) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")
    write_tokenizer(folder, 512, {"<|mask|>": 503, "<|endoftext|>": 500, "<|role_end|>": 501})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.has_tokenizer
    assert checkpoint.spec.stop_ids == (500, 501)
    assert any("<|role_end|>" in note for note in checkpoint.notes)


def test_the_tokenizer_fills_in_a_mask_id_the_config_leaves_out(
    shared_fixtures: Path, tmp_path: Path
) -> None:
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        edit_json(folder, name, mask_token_id=...)
    write_tokenizer(folder, 512, {"<|mask|>": 503})
    assert open_checkpoint(folder).spec.mask_token_id == 503


def test_progress_reaches_the_end_and_stop_ends_the_pass(shared_fixtures: Path) -> None:
    seen: list[tuple[int, int]] = []
    open_checkpoint(shared_fixtures / MODELOPT, progress=lambda *p: seen.append(p))
    assert seen
    assert seen[-1][0] == seen[-1][1] > 0
    stop = threading.Event()
    stop.set()
    with pytest.raises(RuntimeFailure) as failure:
        open_checkpoint(shared_fixtures / MODELOPT, stop=stop)
    assert failure.value.code == "load.stopped"


def test_module_groups_add_up_to_the_model(shared_fixtures: Path) -> None:
    for folder in INTACT:
        checkpoint = open_checkpoint(shared_fixtures / folder)
        groups = module_groups(checkpoint)
        assert sum(group.weights for group in groups) == checkpoint.spec.parameters
        experts = next(group for group in groups if group.kind == "routed experts")
        assert experts.form.startswith("NVFP4" if INTACT[folder] != "bf16" else "bfloat16")


def test_a_tensor_larger_than_the_window_is_read_whole(tmp_path: Path) -> None:
    """Sizes around the window, and tensors that straddle its edges."""
    sizes = {"a": 5, "b": WINDOW - 3, "c": WINDOW * 2 + 24, "d": 0, "e": 7}
    header: dict[str, object] = {}
    data, at = bytearray(), 0
    generator = torch.Generator().manual_seed(6)
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        values = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        data += values.numpy().tobytes()
        at += size
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_file(header, bytes(data)))
    file, wanted = TensorFile(path), load_file(path)
    scanned: dict[str, list[bytes]] = {name: [] for name in sizes}
    for entry, offset, piece in file.scan(file.entries.values()):
        assert offset == sum(map(len, scanned[entry.name]))
        assert offset % 16 == 0
        scanned[entry.name].append(piece.tobytes())
    for name, entry in file.entries.items():
        whole = torch.empty(entry.nbytes, dtype=torch.uint8)
        file.read_into(entry, whole.numpy())
        assert torch.equal(whole, wanted[name])
        assert b"".join(scanned[name]) == wanted[name].numpy().tobytes()
    file.close()


def test_checking_every_value_keeps_no_pages_of_the_file(
    shared_fixtures: Path, tmp_path: Path
) -> None:
    """Memory stays far below the file's size while and after it is validated."""
    folder = copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")
    edit_json(folder, "config.json", vocab_size=700_000)

    def grow(tensors: dict[str, Tensor]) -> None:
        for name in ("model.word_embeddings.weight", "lm_head.weight"):
            tensors[name] = torch.ones(700_000, 64, dtype=torch.bfloat16)

    edit_tensors(folder, grow)
    gc.collect()
    process = psutil.Process()
    before, seen = process.memory_info().rss, [0]
    checkpoint = open_checkpoint(
        folder, progress=lambda *_: seen.append(process.memory_info().rss - before)
    )
    seen.append(process.memory_info().rss - before)
    assert checkpoint.total_bytes > 175e6
    assert len(seen) > 3
    assert max(seen) < 60e6
