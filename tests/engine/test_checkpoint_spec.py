"""What a LLaDA2 config means: numbers, decoding rule and its evidence, defaults, tensor names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.models.llada2_spec import (
    DEFAULTS,
    MODEL_TYPES,
    RELEASED_VOCAB,
    LLaDA2Spec,
    expected_linears,
    expected_tensors,
)

# config.json of the released mini model: models.md 1.2. It names no mask and no eos token.
MINI: dict[str, Any] = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "router_dtype": "fp32",
    "norm_topk_prob": True,
    "rope_theta": 600000,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "use_bias": False,
    "norm_head": False,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "vocab_size": RELEASED_VOCAB,
    "pad_token_id": 156892,
    "max_position_embeddings": 32768,
}


def read(
    generation: dict[str, Any] | None = None,
    folder: str = "",
    tokens: dict[str, int] | None = None,
    **changes: Any,
) -> LLaDA2Spec:
    config = {name: value for name, value in (MINI | changes).items() if value is not ...}
    return LLaDA2Spec.from_config(
        config, generation or {}, folder_name=folder, special_tokens=tokens
    )


def refused(generation: dict[str, Any] | None = None, **changes: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read(generation, **changes)
    error = caught.value
    assert error.file in ("config.json", "generation_config.json")
    assert error.item is not None
    assert error.item in error.message
    return error


def test_the_released_mini_config_is_read() -> None:
    spec = read()
    assert (spec.rotary_dim, spec.qkv_rows, spec.block_length) == (64, 3072, 32)
    assert spec.mask_token_id == 156895
    assert spec.stop_ids == (156892, 156900)
    assert len(spec.moe_layers) == 19
    assert 16.2e9 < spec.parameters < 16.4e9  # models.md 1.2
    assert any("156895" in note for note in spec.notes)
    assert any("<|role_end|>" in note for note in spec.notes)


def test_names_and_shapes_are_those_of_the_release() -> None:
    spec = read()
    linears, tensors = expected_linears(spec), expected_tensors(spec)
    assert linears["model.layers.7.attention.query_key_value"] == (3072, 2048)
    assert linears["model.layers.7.attention.dense"] == (2048, 2048)
    assert linears["model.layers.0.mlp.down_proj"] == (2048, 5120)
    assert linears["model.layers.1.mlp.gate"] == (256, 2048)
    assert linears["model.layers.19.mlp.experts.255.down_proj"] == (2048, 512)
    assert linears["model.layers.19.mlp.shared_experts.up_proj"] == (512, 2048)
    assert linears["lm_head"] == (157184, 2048)
    assert tensors["model.word_embeddings.weight"] == (157184, 2048)
    assert tensors["model.layers.1.mlp.gate.expert_bias"] == (256,)
    assert tensors["model.layers.3.attention.key_layernorm.weight"] == (128,)
    assert "model.layers.0.mlp.gate" not in linears
    assert "model.layers.0.mlp.gate.expert_bias" not in tensors
    assert len(linears) == 20 * 2 + 3 + 19 * (1 + 3 + 3 * 256) + 1


def test_stacked_and_fused_experts_have_their_shapes() -> None:
    experts, base = read().table.experts, "model.layers.2.mlp.experts"
    assert experts is not None
    assert experts.stacks(2, "stacked") == {
        f"{base}.gate_proj": (256, 512, 2048),
        f"{base}.up_proj": (256, 512, 2048),
        f"{base}.down_proj": (256, 2048, 512),
    }
    assert experts.stacks(2, "fused") == {
        f"{base}.gate_up_proj": (256, 1024, 2048),
        f"{base}.down_proj": (256, 2048, 512),
    }
    assert experts.stacks(2, "per_expert") == {}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_alias_is_one_family(model_type: str) -> None:
    assert read(model_type=model_type).num_layers == 20


@pytest.mark.parametrize(
    ("folder", "generation", "changes", "rule", "evidence"),
    [
        ("", {}, {}, "llada2.0", "nothing"),
        ("LLaDA2.0-mini", {}, {}, "llada2.0", "folder name"),
        ("LLaDA2.1-mini", {}, {}, "llada2.1", "folder name"),
        ("unblur-0.2.1", {}, {}, "llada2.0", "nothing"),
        ("x", {}, {"_name_or_path": "org/LLaDA2.1-flash"}, "llada2.1", "_name_or_path"),
        ("LLaDA2.0-mini", {}, {"_name_or_path": "org/LLaDA2.1-flash"}, "llada2.1", "_name_or_path"),
        ("", {}, {"model_type": "llada21_moe"}, "llada2.1", "llada21_moe"),
        ("", {"editing_threshold": 0.5}, {}, "llada2.1", "editing_threshold"),
        ("", {"editing_threshold": None}, {}, "llada2.1", "editing_threshold"),
        ("LLaDA2.1-mini", {"decoding": "llada2.0"}, {}, "llada2.0", "generation_config.json"),
        ("", {}, {"decoding": "2.1"}, "llada2.1", "config.json says so"),
        ("LLaDA2.1-mini", {}, {"expert_capacity": 48}, "llada2.2", "expert_capacity = 48"),
        ("", {}, {"delete_token_id": 5, "split_token_id": 6}, "llada2.2", "delete_token_id = 5"),
        ("", {}, {"expert_capacity": 0}, "llada2.0", "nothing"),
    ],
)
def test_the_decoding_rule_is_decided_and_says_by_what(
    folder: str, generation: dict[str, Any], changes: dict[str, Any], rule: str, evidence: str
) -> None:
    spec = read(generation, folder, **changes)
    assert spec.decoding == rule
    assert evidence in spec.decoding_evidence


def test_defaults_follow_the_rule() -> None:
    assert read(folder="LLaDA2.0-mini").defaults == DEFAULTS["llada2.0"]
    assert read(folder="LLaDA2.1-mini").defaults == DEFAULTS["llada2.1"]
    assert read(expert_capacity=48).defaults == DEFAULTS["llada2.2"]
    assert DEFAULTS["llada2.0"].editing_threshold is None
    assert DEFAULTS["llada2.1"].editing_threshold == 0.9
    assert DEFAULTS["llada2.2"].editing_threshold == 0.0


def test_off_and_zero_are_two_settings() -> None:
    assert read({"editing_threshold": None}).defaults.editing_threshold is None
    assert read({"editing_threshold": 0.0}).defaults.editing_threshold == 0.0
    assert read({"decoding": "llada2.1"}).defaults.editing_threshold == 0.9


def test_generation_config_overrides_the_defaults() -> None:
    given = {
        "decoding": "llada2.1",
        "threshold": 0.7,
        "editing_threshold": 0.5,
        "max_post_steps": 4,
        "steps": 16,
        "num_to_transfer": 2,
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.9,
    }
    defaults = read(given).defaults
    assert (defaults.threshold, defaults.editing_threshold) == (0.7, 0.5)
    assert (defaults.max_post_steps, defaults.steps, defaults.min_transfer) == (4, 16, 2)
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.5, 20, 0.9)
    greedy = read(given | {"do_sample": False}).defaults
    assert (greedy.temperature, greedy.top_k, greedy.top_p) == (0.0, 0, 1.0)


def test_a_rule_without_editing_ignores_a_threshold_for_it_aloud() -> None:
    spec = read({"decoding": "llada2.0", "editing_threshold": 0.9})
    assert spec.defaults.editing_threshold is None
    assert any("does not edit" in note for note in spec.notes)


def test_ids_come_from_the_best_place() -> None:
    assert read(eos_token_id=7).stop_ids == (7, 156900)
    assert read({"eos_token_id": [8, 9]}, eos_token_id=7).stop_ids == (8, 9, 156900)
    assert read({"eos_token_id": [156892, 156900]}).stop_ids == (156892, 156900)
    assert read({"eos_token_id": []}).stop_ids == (156892, 156900)
    assert read({"mask_token_id": 11}).mask_token_id == 11
    assert read(tokens={"<|mask|>": 12}).mask_token_id == 12
    assert read(mask_token_id=13, tokens={"<|mask|>": 12}).mask_token_id == 13
    small = read(vocab_size=512, pad_token_id=..., mask_token_id=5, eos_token_id=4)
    assert (small.stop_ids, small.pad_token_id) == ((4,), None)


def test_ids_that_nothing_names_are_asked_for() -> None:
    assert refused(vocab_size=512, pad_token_id=...).item == "mask_token_id"
    error = refused(vocab_size=512, pad_token_id=..., mask_token_id=5)
    assert (error.code, error.item) == ("checkpoint.stop_id_missing", "eos_token_id")


def test_newer_exporters_nest_the_rope_numbers() -> None:
    nested = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    spec = read(rope_theta=..., partial_rotary_factor=..., rope_parameters=nested)
    assert (spec.rope_theta, spec.rotary_dim) == (1e6, 32)
    assert refused(rope_parameters={"rope_type": "yarn"}).item == "rope_parameters"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score_function", "softmax"),
        ("rope_scaling", {"type": "yarn", "factor": 4}),
        ("hidden_act", "gelu"),
        ("router_dtype", "bf16"),
        ("use_sliding_window", True),
        ("use_bias", True),
        ("use_qkv_bias", True),
        ("norm_head", True),
        ("norm_head", 0),
        ("decoding", "llada3"),
        ("decoding", "llada2.2"),
    ],
)
def test_values_that_would_change_the_maths_are_refused(name: str, value: object) -> None:
    changes: dict[str, Any] = {name: value}
    error = refused(**changes)
    assert (error.code, error.item) == ("checkpoint.unsupported_value", name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", ...),
        ("hidden_size", "2048"),
        ("hidden_size", -1),
        ("num_experts", 2.5),
        ("num_hidden_layers", True),
        ("vocab_size", 2**60),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("norm_topk_prob", 1),
        ("partial_rotary_factor", 1.5),
        ("partial_rotary_factor", 0.001),
        ("rope_theta", -1),
        ("num_key_value_heads", 3),
        ("n_group", 7),
        ("n_group", 256),
        ("topk_group", 9),
        ("num_experts_per_tok", 200),
        ("expert_capacity", 300),
        ("expert_capacity", 4),
        ("block_size", 0),
        ("block_size", 65536),
        ("mask_token_id", RELEASED_VOCAB),
        ("mask_token_id", -1),
        ("mask_token_id", "mask"),
        ("mask_token_id", 156892),
        ("eos_token_id", [156892, RELEASED_VOCAB]),
        ("pad_token_id", RELEASED_VOCAB),
        ("delete_token_id", 156930),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(name: str, value: object) -> None:
    changes: dict[str, Any] = {name: value}
    error = refused(**changes)
    # Where two fields contradict each other, the other one may be named.
    others = {
        "expert_capacity": "num_experts_per_tok",
        "n_group": "num_experts_per_tok",
        "delete_token_id": "split_token_id",
    }
    assert error.item in (name, others.get(name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", 1.5),
        ("threshold", "high"),
        ("editing_threshold", -0.1),
        ("steps", 0),
        ("max_post_steps", -1),
        ("temperature", -1),
        ("mask_token_id", RELEASED_VOCAB),
    ],
)
def test_generation_settings_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    error = refused({"decoding": "llada2.1", name: value})
    assert (error.file, error.item) == ("generation_config.json", name)


def test_config_and_generation_config_disagreeing_on_the_mask_are_shown_both() -> None:
    error = refused({"mask_token_id": 5}, mask_token_id=6)
    assert "5" in error.message
    assert "6" in error.message


def test_the_fixture_config_is_read(shared_fixtures: Path) -> None:
    folder = shared_fixtures / "llada2-tiny"
    config, generation = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("config.json", "generation_config.json")
    )
    spec = LLaDA2Spec.from_config(config, generation, folder_name="llada2-tiny")
    assert (spec.mask_token_id, spec.stop_ids, spec.pad_token_id) == (503, (500,), 500)
    assert (spec.rotary_dim, spec.block_length, spec.expert_capacity) == (16, 32, 0)


def test_the_spec_needs_no_torch(repo_root: Path) -> None:
    code = "import sys; import engine.models.llada2_spec; sys.exit('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=repo_root, check=False)
    assert answer.returncode == 0
