"""Config, tokenizer and tensors of one folder that contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from folder_maker import copy_folder, edit_json, refusal, write_tokenizer

from engine.checkpoint import open_checkpoint

MODELOPT = "llada2-tiny-nvfp4-modelopt"


@pytest.fixture
def model(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")


@pytest.fixture
def packed(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / MODELOPT, tmp_path / "packed")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("num_experts", 16, "8"),
        ("num_hidden_layers", 4, "3"),
        ("num_hidden_layers", 2, "3"),
        ("vocab_size", 600, "512"),
        ("hidden_size", 128, "64"),
    ],
)
def test_the_config_is_blamed_where_the_tensors_agree(
    model: Path, name: str, value: int, found: str
) -> None:
    edit_json(model, "config.json", **{name: value})
    error = refusal(model)
    assert (error.code, error.file, error.item) == (
        "checkpoint.config_disagrees",
        "config.json",
        name,
    )
    assert f"says {value}" in error.message
    assert found in error.message


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"format": "float-quantized"}},
        },
        {"quant_method": ["modelopt"]},
        "nvfp4",
    ],
)
def test_other_quantisations_are_refused(model: Path, section: object) -> None:
    edit_json(model, "config.json", quantization_config=section)
    error = refusal(model)
    assert error.code == "checkpoint.unsupported_quantisation"
    assert error.file == "config.json"


def test_the_exporters_own_file_is_read_too(packed: Path) -> None:
    edit_json(packed, "hf_quant_config.json", quantization={"quant_algo": "NVFP4_SVD"})
    assert refusal(packed).file == "hf_quant_config.json"
    edit_json(packed, "hf_quant_config.json", quantization={"group_size": 32})
    assert refusal(packed).item == "group_size"


def test_config_lists_do_not_decide_what_is_packed(packed: Path) -> None:
    """`model.layers.1*` would exclude everything here, and also match layers 10 to 19 elsewhere."""
    edit_json(
        packed, "config.json", quantization_config={"quant_method": "modelopt", "ignore": ["*"]}
    )
    assert open_checkpoint(packed).layout == "modelopt"
    edit_json(packed, "config.json", quantization_config=...)
    assert open_checkpoint(packed).layer_is_packed(1)


def test_a_tokenizer_with_another_mask_id_is_refused_with_both(model: Path) -> None:
    write_tokenizer(model, 512, {"<|mask|>": 505, "<|endoftext|>": 500})
    error = refusal(model)
    assert error.code == "checkpoint.mask_id_disagrees"
    assert "503" in error.message
    assert "505" in error.message


def test_a_mask_id_that_is_an_ordinary_token_is_refused(model: Path) -> None:
    write_tokenizer(model, 512, {"<|endoftext|>": 500})
    error = refusal(model)
    assert error.code == "checkpoint.mask_id_disagrees"
    assert "t503" in error.message


def test_the_tokenizers_own_name_for_the_mask_counts(model: Path) -> None:
    write_tokenizer(model, 512, {"<noise>": 505})
    edit_json(model, "tokenizer_config.json", mask_token={"content": "<noise>"})
    assert "<noise>" in refusal(model).message


@pytest.mark.parametrize(
    ("added", "noted"),
    [
        ({"<|mdm_mask|>": 503, "[MASK]": 7}, False),
        ({"<|reserved|>": 503}, True),
    ],
)
def test_a_mask_token_by_another_name_is_accepted(
    model: Path, added: dict[str, int], noted: bool
) -> None:
    write_tokenizer(model, 512, {"<|endoftext|>": 500} | added)
    notes = open_checkpoint(model).notes
    assert any("mask id 503" in note for note in notes) == noted


def test_a_mask_id_beyond_the_tokenizer_is_noted(model: Path) -> None:
    write_tokenizer(model, 501, {"<|endoftext|>": 500})
    assert any("no token for the mask id 503" in note for note in open_checkpoint(model).notes)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(model: Path) -> None:
    write_tokenizer(model, 513, {"<|mask|>": 503})
    error = refusal(model)
    assert error.code == "checkpoint.tokenizer_too_large"
    assert "512" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"model": 1}',
        '{"model": {"vocab": {"a": "b"}}}',
        '{"model": {"vocab": [1]}}',
        '{"model": {"vocab": {}}, "added_tokens": [{"id": "x", "content": "y"}]}',
        '{"model": {"vocab": {}}, "added_tokens": 3}',
    ],
)
def test_a_tokenizer_file_that_is_none_is_refused(model: Path, text: str) -> None:
    (model / "tokenizer.json").write_text(text, encoding="utf-8")
    error = refusal(model)
    assert (error.code, error.file) == ("checkpoint.tokenizer_invalid", "tokenizer.json")


def test_config_and_generation_config_must_name_one_mask(model: Path) -> None:
    edit_json(model, "generation_config.json", mask_token_id=504)
    error = refusal(model)
    assert error.code == "checkpoint.mask_id_disagrees"
    assert "503" in error.message
    assert "504" in error.message
