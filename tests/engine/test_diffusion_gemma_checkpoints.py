"""Folders of DiffusionGemma: both layouts of experts, copies of the stack, configs that mean
another model, and answers from the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from folder_maker import copy_folder, edit_json, edit_tensors, refusal, tensors_of
from gemma_models import Passes, with_noise
from safetensors.torch import load_file
from tiny import load
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.checkpoint import open_checkpoint
from engine.checkpoint.quantiser import QuantiseOptions, quantise
from engine.checkpoint.quantiser.rules import LAYOUTS, Layout
from engine.cli_inspect import run as inspect
from engine.engine import check_settings, load_engine
from engine.errors import CheckpointError, RequestError
from engine.models.experts import Experts
from engine.types import (
    BlockFinished,
    DecodeSettings,
    Finished,
    GenerateRequest,
    Message,
    Started,
    StepTaken,
)

ENCODER, DECODER = "model.encoder.language_model.", "model.decoder."
EXPERT = "model.decoder.layers.0.experts.1"


@pytest.fixture
def folder(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / "diffusion-gemma-tiny", tmp_path / "gemma")


def said_by(folder: Path, *, expand: bool = True) -> Tensor:
    """Logits of a canvas behind a prefix, with self-conditioning."""
    model = load(folder, expand=expand)
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(0, model.spec.vocab_size, (37,), generator=draw)
    before = torch.randn(16, model.spec.vocab_size, generator=draw)
    passes = Passes(model)
    passes.encode(ids[:21])
    return passes.decode(ids[21:], 21, before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nvfp4_experts_stored_one_by_one_give_what_their_values_give(
    folder: Path, tmp_path: Path, layout: Layout
) -> None:
    quantise(folder, tmp_path / "packed", QuantiseOptions(layout=layout))
    code = "weight" if layout == "modelopt" else "weight_packed"
    names = set(tensors_of(tmp_path / "packed"))
    assert {f"{EXPERT}.{part}_proj.{code}" for part in ("gate", "up", "down")} <= names
    assert not any(name.endswith("experts.gate_up_proj") for name in names)
    packed = load(tmp_path / "packed", expand=False)
    expanded = load(tmp_path / "packed")

    def refill(tensors: dict[str, Tensor]) -> None:
        for name, module in expanded.named_modules():
            if isinstance(module, Experts):
                both = torch.cat((module.gate, module.up), dim=1)
                tensors[f"{DECODER}{name}.gate_up_proj"] = both
                tensors[f"{DECODER}{name}.down_proj"] = module.down

    edit_tensors(folder, refill)  # the fused stacks, with the values that the packed ones stand for
    wanted = said_by(folder)
    torch.testing.assert_close(said_by(tmp_path / "packed"), wanted, atol=1e-4, rtol=0)
    assert packed.layers[0].experts.gate.shape == (8, 32, 64)
    kept = said_by(tmp_path / "packed", expand=False)
    torch.testing.assert_close(kept, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("only", [False, True])
def test_a_stack_may_be_stored_under_the_encoders_name(folder: Path, only: bool) -> None:
    wanted = said_by(folder)

    def copy(tensors: dict[str, Tensor]) -> None:
        for name in [n for n in tensors if n.startswith(DECODER) and "layer_scalar" not in n]:
            if "self_conditioning" not in name:  # the encoder pass has none
                value = tensors.pop(name) if only else tensors[name]
                tensors[ENCODER + name.removeprefix(DECODER)] = value

    edit_tensors(folder, copy)
    assert torch.equal(said_by(folder), wanted)
    checkpoint = open_checkpoint(folder)
    checkpoint.release()
    assert any("Ignored" in note for note in checkpoint.notes)  # the vision tower at least


def test_both_passes_need_their_own_scalars(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.pop("model.decoder.layers.2.layer_scalar"))
    error = refusal(folder)
    assert (error.code, error.item) == (
        "checkpoint.missing_tensor",
        "model.decoder.layers.2.layer_scalar",
    )


def test_a_value_projection_where_there_is_none_is_refused(folder: Path) -> None:
    name = "model.decoder.layers.2.self_attn.v_proj.weight"
    edit_tensors(folder, lambda t: t.update({name: torch.zeros(32, 64)}))
    assert (refusal(folder).code, refusal(folder).item) == ("checkpoint.unexpected_tensor", name)


TEXT_FAULTS: list[tuple[str, Any, str]] = [
    ("hidden_activation", "silu", "hidden_activation"),
    ("use_bidirectional_attention", "all", "use_bidirectional_attention"),
    ("attention_bias", True, "attention_bias"),
    ("num_experts", None, "num_experts"),
    ("top_k_experts", 9, "top_k_experts"),
    ("layer_types", ["sliding_attention"] * 5, "layer_types"),
    ("layer_types", ["full_attention"] * 4, "layer_types"),
    ("layer_types", ["linear_attention"] * 5, "layer_types"),
    ("num_key_value_heads", 3, "num_key_value_heads"),
    ("per_layer_config", {"0": {"head_dim": 32}}, "per_layer_config"),
    ("per_layer_config", {"2": {"head_dim": 32}, "4": {"head_dim": 16}}, "per_layer_config"),
    ("per_layer_config", {"2": {"window": 3}, "4": {}}, "per_layer_config"),
    ("rope_parameters", {"full_attention": {"rope_type": "yarn"}}, "rope_parameters"),
    ("head_dim", 15, "head_dim"),
    ("final_logit_softcapping", -1, "final_logit_softcapping"),
]


@pytest.mark.parametrize(("field", "value", "item"), TEXT_FAULTS)
def test_a_config_of_another_model_is_refused_by_its_field(
    folder: Path, field: str, value: Any, item: str
) -> None:
    text = json.loads((folder / "config.json").read_text())["text_config"]
    edit_json(folder, "config.json", text_config={**text, field: value})
    error = refusal(folder)
    assert (error.file, error.item) == ("config.json", item)


@pytest.mark.parametrize(
    ("file", "changes", "item"),
    [
        ("config.json", {"text_config": ...}, "text_config"),
        ("config.json", {"canvas_length": 0}, "canvas_length"),
        ("config.json", {"canvas_length": 512}, "canvas_length"),
        ("config.json", {"residual_input": {"kind": "rcd"}}, "residual_input"),
        ("generation_config.json", {"t_max": 0.4}, "t_max"),
        ("generation_config.json", {"confidence_threshold": 0}, "confidence_threshold"),
        ("generation_config.json", {"sampler_config": {"_cls_name": "Other"}}, "sampler_config"),
        ("generation_config.json", {"sampler_config": {"entropy_bound": 0}}, "entropy_bound"),
        ("generation_config.json", {"max_denoising_steps": 0}, "max_denoising_steps"),
        ("generation_config.json", {"eos_token_id": 999}, "eos_token_id"),
    ],
)
def test_a_sampler_or_canvas_that_is_not_built_is_refused(
    folder: Path, file: str, changes: dict[str, Any], item: str
) -> None:
    edit_json(folder, file, **changes)
    error = refusal(folder)
    assert (error.file, error.item) == (file, item)


def test_fields_of_the_generation_config_become_the_defaults(folder: Path) -> None:
    changes = {"max_denoising_steps": 9, "t_min": 0.3, "stability_threshold": 3}
    sampler = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.7}
    edit_json(folder, "generation_config.json", **changes, sampler_config=sampler)
    checkpoint = open_checkpoint(folder)
    checkpoint.release()
    settings = checkpoint.spec.defaults
    assert (settings.steps, settings.temperature) == (9, 1.0)
    noise = settings.noise
    assert (noise.entropy_bound, noise.t_min, noise.t_max) == (0.7, 0.3, 0.8)
    assert (noise.stability, noise.confidence) == (3, 0.005)


def add_tokenizer(folder: Path) -> None:
    """A tokenizer of words; the folder brings no template of its own."""
    special = {"<bos>": 2, "<eos>": 1, "<|turn>": 105, "<turn|>": 106}
    vocab = {f"w{n}": n for n in range(256) if n not in special.values()} | special
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))


def test_a_folder_is_answered_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_tokenizer(folder)
    edit_json(folder, "generation_config.json", max_denoising_steps=5)
    engine = load_engine(folder, device="cpu")
    info = engine.info
    assert (info.family, info.decoding, info.block_length) == (
        "diffusion_gemma",
        "entropy-bound",
        16,
    )
    assert any("text alone" in note for note in info.notes)
    events = list(engine.generate(GenerateRequest((Message("user", "w7 w8 w9"),), 40)))
    started, finished = events[0], events[-1]
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    # The first canvas begins where the prompt ends: its template, and the message.
    assert started.first_block_start == started.prompt_tokens
    assert started.max_blocks == 3
    blocks = [event for event in events if isinstance(event, BlockFinished)]
    assert blocks[0].block_start == started.prompt_tokens
    steps = [event for event in events if isinstance(event, StepTaken)]
    assert len(steps) <= 5 * len(blocks)
    assert all(0 <= token < 256 for token in finished.ids)
    assert finished.stats.commit_forwards == len(blocks) - 1
    replies = engine.generate_batch([[2, 5, 9], [2] * 20], info.defaults, 20, 2)
    assert [reply.reason for reply in replies]
    with pytest.raises(RequestError) as caught:
        list(engine.generate(GenerateRequest((Message("user", "w7 " * 500),), 40)))
    assert caught.value.code == "request.too_long"
    engine.unload()


def test_inspect_names_the_family_and_what_it_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_tokenizer(folder)
    assert inspect([str(folder)]) == 0
    said = capsys.readouterr().out
    assert "DiffusionGemma" in said
    assert "canvases of 16 tokens" in said
    assert "8 experts" in said


def test_a_tensor_that_is_not_finite_is_named(folder: Path) -> None:
    name = "model.encoder.language_model.layers.1.layer_scalar"
    edit_tensors(folder, lambda t: t[name].fill_(float("nan")))
    with pytest.raises(CheckpointError, match=r"layers\.1\.layer_scalar"):
        open_checkpoint(folder)


def test_the_fixture_is_read_as_it_lies(shared_fixtures: Path) -> None:
    source = shared_fixtures / "diffusion-gemma-tiny"
    stored, model = load_file(source / "model.safetensors"), load(source)
    fused = stored["model.decoder.layers.3.experts.gate_up_proj"]
    assert torch.equal(model.layers[3].experts.gate, fused[:, :32])
    assert torch.equal(model.layers[3].experts.up, fused[:, 32:])
    own = stored["model.encoder.language_model.layers.3.layer_scalar"]
    assert torch.equal(model.layers[3].encoder.layer_scalar, own)
    assert not torch.equal(model.layers[3].layer_scalar, own)


def test_keys_in_fp8_are_an_option_that_is_said_and_refused_elsewhere(
    folder: Path, tiny_folder: Path
) -> None:
    add_tokenizer(folder)
    edit_json(folder, "generation_config.json", max_denoising_steps=2)
    engine = load_engine(folder, device="cpu", kv_fp8=True)
    assert any("FP8" in note for note in engine.info.notes)
    events = list(engine.generate(GenerateRequest((Message("user", "w7 w8"),), 16)))
    assert isinstance(events[-1], Finished)
    engine.unload()
    with pytest.raises(RequestError) as caught:
        load_engine(tiny_folder, device="cpu", kv_fp8=True)
    assert caught.value.code == "request.kv_fp8"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"entropy_bound": -0.1}, "entropy bound"),
        ({"t_min": 0.9}, "noise temperatures"),
        ({"stability": -1}, "stability"),
        ({"confidence": float("nan")}, "mean entropy"),
    ],
)
def test_a_sampler_setting_out_of_range_is_named(changes: dict[str, float], name: str) -> None:
    with pytest.raises(RequestError, match=name):
        check_settings(with_noise(DecodeSettings(), **changes))
