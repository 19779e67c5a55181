"""Folders that must be refused: with a typed error that names the file and the tensor or field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folder_maker import INDEX, copy_folder, edit_json, refusal, shard

from engine.checkpoint import open_checkpoint
from engine.errors import UnsupportedFamilyError

MODELOPT = "llada2-tiny-nvfp4-modelopt"

BROKEN = {
    "a_truncated": "checkpoint.truncated",
    "b_missing_weight_scale": "checkpoint.missing_tensor",
    "c_scale2_zero": "checkpoint.bad_scale",
    "d_scale2_inf": "checkpoint.non_finite",
    "e_nan_norm": "checkpoint.non_finite",
    "f_wrong_num_experts": "checkpoint.config_disagrees",
    "g_mask_id_outside_vocab": "checkpoint.id_outside_vocabulary",
    "h_missing_shard": "checkpoint.missing_shard",
    "i_zero_byte": "checkpoint.empty_file",
    "j_header_too_long": "checkpoint.header_too_long",
    "k1_unknown_dtype": "checkpoint.unknown_dtype",
    "k2_integer_norm": "checkpoint.dtype",
}


@pytest.fixture
def model(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")


@pytest.fixture
def packed(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / MODELOPT, tmp_path / "packed")


@pytest.mark.parametrize("variant", BROKEN)
def test_every_broken_fixture_is_refused_by_name(shared_fixtures: Path, variant: str) -> None:
    listed = json.loads((shared_fixtures / "broken" / "index.json").read_text(encoding="utf-8"))
    entry = next(item for item in listed if item["variant"] == variant)
    error = refusal(shared_fixtures / "broken" / variant)
    assert error.code == BROKEN[variant]
    assert error.file == entry["file"].split(" ")[0]
    assert error.item == entry["tensor_or_field"]


def test_no_broken_fixture_is_left_untested(shared_fixtures: Path) -> None:
    listed = json.loads((shared_fixtures / "broken" / "index.json").read_text(encoding="utf-8"))
    assert {item["variant"] for item in listed} == {*BROKEN, "base_ok"}


def test_a_truncated_file_is_named_with_expected_and_found_size(shared_fixtures: Path) -> None:
    error = refusal(shared_fixtures / "broken" / "a_truncated")
    assert "expected 41536 bytes, found 24921" in error.message
    assert "ownload" in error.action


def test_other_families_are_named_and_said_to_be_unbuilt(model: Path) -> None:
    edit_json(model, "config.json", model_type="nemotron_labs_diffusion")
    error = refusal(model)
    assert isinstance(error, UnsupportedFamilyError)
    assert error.code == "checkpoint.unsupported_family"
    assert "Nemotron-Labs-Diffusion" in error.message
    assert "not built yet" in error.message


@pytest.mark.parametrize(
    ("model_type", "architecture", "words"),
    [
        ("lladamoe", "LLaDAMoEModelLM", "LLaDA-MoE"),
        ("qwen3", "Qwen3ForCausalLM", "not a diffusion language model"),
        ("sdar_moe", "SDARMoeForCausalLM", "SDAR"),
        ("llama", "LlamaForCausalLM", "not a diffusion language model"),
        ("llada2_later", "LLaDA2LaterLM", "llada2_later"),
    ],
)
def test_families_are_recognised_from_the_config(
    model: Path, model_type: object, architecture: object, words: str
) -> None:
    edit_json(model, "config.json", model_type=model_type, architectures=[architecture])
    error = refusal(model)
    assert isinstance(error, UnsupportedFamilyError)
    assert words in error.message


def test_a_model_type_that_is_no_name_is_refused(model: Path) -> None:
    edit_json(model, "config.json", model_type=7)
    error = refusal(model)
    assert (error.code, error.item) == ("checkpoint.config_value", "model_type")


def test_the_tensors_decide_when_the_config_names_no_family(
    model: Path, shared_fixtures: Path
) -> None:
    edit_json(model, "config.json", model_type=..., architectures=...)
    assert open_checkpoint(model).family == "llada2"
    shutil.copy(shared_fixtures / "sdar-tiny" / "model.safetensors", model)
    assert isinstance(refusal(model), UnsupportedFamilyError)
    gemma = shared_fixtures / "diffusion-gemma-tiny" / "model.safetensors"
    shutil.copy(gemma, model)
    assert refusal(model).item == "text_config"  # which only DiffusionGemma's config has
    edit_json(model, "config.json", model_type="llada2_moe")
    assert refusal(model).code == "checkpoint.family_disagrees"


# --- the folder ------------------------------------------------------------------------------


def test_paths_that_are_no_model_folder(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "no config").mkdir()
    (tmp_path / "no config" / "readme.txt").write_text("x", encoding="utf-8")
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model.gguf").write_bytes(b"GGUF")
    found = {
        "nowhere": refusal(tmp_path / "nowhere").code,
        "a file": refusal(model / "config.json").code,
        "empty": refusal(tmp_path / "empty").code,
        "no config": refusal(tmp_path / "no config").code,
    }
    assert found == {
        "nowhere": "checkpoint.not_found",
        "a file": "checkpoint.not_a_folder",
        "empty": "checkpoint.empty_folder",
        "no config": "checkpoint.no_config",
    }
    assert refusal("nul\0byte").code in ("checkpoint.not_found", "checkpoint.unreadable")
    assert "GGUF" in refusal(tmp_path / "gguf").message


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "hf_quant_config.json"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b"[" * 100_000, b'{"a": ' * 5000]
)
def test_json_that_is_not_a_json_object(packed: Path, name: str, content: bytes) -> None:
    (packed / name).write_bytes(content)
    error = refusal(packed)
    assert error.file == name
    assert error.code in ("checkpoint.json_invalid", "checkpoint.empty_file")


def test_a_byte_order_mark_is_no_reason_to_refuse(model: Path) -> None:
    text = (model / "config.json").read_bytes()
    (model / "config.json").write_bytes(b"\xef\xbb\xbf" + text)
    assert open_checkpoint(model).layout == "bf16"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_without_read_permission(
    model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made up, because an administrator may read every file."""
    opened = Path.open

    def denied(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == name:
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)
    error = refusal(model)
    assert error.code == "checkpoint.unreadable"
    assert error.file == name
    assert "Permission denied" in error.message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_to_nothing_is_unreadable(model: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    try:
        (model / name).symlink_to(model / "gone")
    except OSError:
        pytest.skip("this system or account cannot make symbolic links")
    error = refusal(model)
    assert error.code == "checkpoint.unreadable"
    assert error.file == name


def test_pickles_are_refused_with_the_reason(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert any("pytorch_model.bin" in note for note in open_checkpoint(model).notes)
    (model / "model.safetensors").unlink()
    error = refusal(model)
    assert error.code == "checkpoint.pickle"
    assert "any program" in error.message
    (model / "pytorch_model.bin").unlink()
    assert refusal(model).code == "checkpoint.no_weights"


# --- shards and their index ------------------------------------------------------------------


def edit_map(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def test_an_index_and_its_shards_must_agree(model: Path) -> None:
    shard(model)
    first, second = sorted(path.name for path in model.glob("*.safetensors"))
    original = (model / INDEX).read_text(encoding="utf-8")

    edit_map(model, lambda m: m.update({"ghost.weight": first}))
    error = refusal(model)
    assert (error.code, error.file, error.item) == (
        "checkpoint.index_disagrees",
        INDEX,
        "ghost.weight",
    )

    (model / INDEX).write_text(original, encoding="utf-8")
    edit_map(model, lambda m: m.pop("model.norm.weight"))
    error = refusal(model)
    assert (error.code, error.item) == ("checkpoint.index_disagrees", "model.norm.weight")

    (model / INDEX).write_text(original, encoding="utf-8")
    edit_map(model, lambda m: m.update(dict.fromkeys([k for k in m if m[k] == second], first)))
    assert refusal(model).code in ("checkpoint.unlisted_shard", "checkpoint.index_disagrees")

    (model / INDEX).write_text(original, encoding="utf-8")
    shutil.copy(model / first, model / "model-00003-of-00003.safetensors")
    error = refusal(model)
    assert (error.code, error.file) == (
        "checkpoint.unlisted_shard",
        "model-00003-of-00003.safetensors",
    )


def test_a_tensor_in_two_shards_is_refused(model: Path) -> None:
    shard(model)
    first, second = sorted(model.glob("*.safetensors"))
    shutil.copy(first, second)
    assert refusal(model).code == "checkpoint.duplicate_tensor"


@pytest.mark.parametrize(
    "value", ["../model.safetensors", "sub/model.safetensors", "a\\b.safetensors", "model.bin", 3]
)
def test_an_index_may_only_name_safetensors_files_of_the_folder(model: Path, value: object) -> None:
    shard(model)
    edit_map(model, lambda m: m.update({"x": value}))
    error = refusal(model)
    assert (error.code, error.item) == ("checkpoint.index_invalid", "weight_map")


@pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_an_index_without_a_table_is_refused(model: Path, text: str) -> None:
    (model / INDEX).write_text(text, encoding="utf-8")
    assert refusal(model).code == "checkpoint.index_invalid"


def test_shards_without_an_index_are_refused(model: Path) -> None:
    shard(model)
    (model / INDEX).unlink()
    assert refusal(model).code == "checkpoint.missing_index"
    next(iter(sorted(model.glob("*.safetensors")))).unlink()
    assert refusal(model).code == "checkpoint.missing_index"
