"""Folders of the dense families: read from what transformers writes and compared with its own
classes, refused where something is wrong, and answered from by the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import CONFIGS, FAMILIES, GENERATION, MASK, STOP, VOCAB, dense_model
from folder_maker import edit_json, edit_tensors, refusal
from safetensors.torch import load_file, save_file
from tiny import load
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.checkpoint import open_checkpoint
from engine.cli_inspect import run as inspect
from engine.engine import load_engine
from engine.errors import CheckpointError
from engine.models.layers import MaskAttend
from engine.types import (
    BlockFinished,
    DecodeSettings,
    Finished,
    GenerateRequest,
    Message,
    Started,
    StepTaken,
)

TITLES = {
    "sdar": "SDAR",
    "bd3lm": "BD3LM",
    "mdlm": "MDLM",
    "fast_dllm": "Fast-dLLM v2",
    "dream": "Dream",
    "llada": "LLaDA",
    "qwen_dlm": "has not been checked against its released files",
}
LLADA_NAMES = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
    "model.layers.": "model.transformer.blocks.",
    ".input_layernorm": ".attn_norm",
    ".post_attention_layernorm": ".ff_norm",
    ".self_attn.o_proj": ".attn_out",
    ".self_attn.": ".",
    ".mlp.gate_proj": ".ff_proj",
    ".mlp.up_proj": ".up_proj",
    ".mlp.down_proj": ".ff_out",
}


def write_folder(folder: Path, family: str, **changes: Any) -> Path:
    """A random model of the family, as its release would be laid out, with a tokenizer of words."""
    model = dense_model(family, **changes)
    folder.mkdir(parents=True)
    tensors = {}
    for name, weight in model.named_parameters():
        module, _, part = name.rpartition(".")
        tensors[f"{model.spec.checkpoint_name(module)}.{part}"] = weight.contiguous()
    save_file(tensors, folder / "model.safetensors")
    config = CONFIGS[family] | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generation = json.dumps(GENERATION.get(family, {}))
    (folder / "generation_config.json").write_text(generation, encoding="utf-8")
    vocab = {f"w{n}": n for n in range(VOCAB - 2)} | {"<|end|>": STOP, "<|mask|>": MASK}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|end|>", "<|mask|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }} {% endfor %}", encoding="utf-8"
    )
    return folder


def oracle(kind: str) -> torch.nn.Module:
    """transformers' own class with a random configuration."""
    import transformers as t

    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rope_theta": 1e6,
        "tie_word_embeddings": kind == "tied",
    }
    torch.manual_seed(5)
    if kind in ("qwen3", "tied"):
        model = t.Qwen3ForCausalLM(t.Qwen3Config(**sizes, use_sliding_window=False))
    elif kind == "qwen2":
        del sizes["head_dim"]
        sizes["hidden_size"] = 96
        model = t.Qwen2ForCausalLM(t.Qwen2Config(**sizes, use_sliding_window=False))
    else:
        sizes |= {"num_key_value_heads": 6, "hidden_size": 96, "rms_norm_eps": 1e-5}
        model = t.LlamaForCausalLM(t.LlamaConfig(**sizes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "model_type"),
    [
        ("qwen3", "sdar"),
        ("tied", "a2d-qwen3"),
        ("qwen2", "Fast_dLLM_Qwen"),
        ("qwen2", "Dream"),
        ("llama", "llada"),
    ],
)
def test_logits_are_those_of_transformers(tmp_path: Path, kind: str, model_type: str) -> None:
    """Causal masks on both sides: the classes of transformers know no other."""
    wanted_model = oracle(kind)
    wanted_model.save_pretrained(tmp_path)
    edit_json(
        tmp_path,
        "config.json",
        model_type=model_type,
        architectures=...,
        mask_token_id=95,
        eos_token_id=94,
    )
    edit_json(tmp_path, "generation_config.json", decoding="bd3lm")
    if kind == "llama":
        _as_llada(tmp_path)
    model = load(tmp_path)
    ids = torch.randint(0, 94, (1, 21), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(21).unsqueeze(0)
    with torch.inference_mode():
        wanted = wanted_model(ids).logits
        causal = MaskAttend(torch.ones(21, 21, dtype=torch.bool).tril()[None, None])
        logits = model.logits(model(model.embed(ids), positions, causal))
    torch.testing.assert_close(logits, wanted, atol=2e-4, rtol=1e-4)


def _as_llada(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    edit_json(
        folder,
        "config.json",
        d_model=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"],
        mlp_hidden_size=config["intermediate_size"],
        embedding_size=config["vocab_size"],
        max_sequence_length=128,
        rope_theta=1e6,
        weight_tying=False,
    )

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            new = name
            for old, text in LLADA_NAMES.items():
                new = new.replace(old, text) if old in new else new
            tensors[new] = tensors.pop(name)

    edit_tensors(folder, rename)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_answers_from_a_folder(
    tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / family, family)
    engine = load_engine(folder, device="cpu")
    try:
        for words, limit in ((5, 30), (9, 21)):
            text = " ".join(f"w{n + 3}" for n in range(words))
            asked = GenerateRequest(
                (Message("user", text),), limit, DecodeSettings(threshold=0.6, steps=8)
            )
            events = list(engine.generate(asked))
            started, last = events[0], events[-1]
            assert isinstance(started, Started)
            assert isinstance(last, Finished)
            assert started.prompt_tokens == words
            assert 0 < len(last.ids) <= limit
            assert MASK not in last.ids or family == "qwen_dlm"  # to which it is a word
            assert last.reason == ("stop_token" if last.ids[-1] == STOP else "length")
            widths = {len(e.ids) for e in events if isinstance(e, StepTaken | BlockFinished)}
            assert widths == {started.block_length}
            if family in ("dream", "llada", "mdlm"):
                assert started.block_length == words + limit
                assert last.stats.blocks == 1
            steps = sum(isinstance(e, StepTaken) for e in events)
            assert last.stats.forwards == steps + last.stats.commit_forwards
            assert last.stats.tpf <= last.stats.ceiling
        batch = engine.generate_batch([[5, 6, 7], [8] * 11], asked.settings, 18, 2)
        again = engine.generate_batch([[5, 6, 7]], asked.settings, 18, 1)
        assert batch[0].ids == again[0].ids
    finally:
        engine.unload()
    assert inspect([str(folder)]) == 0
    out = capsys.readouterr().out
    assert TITLES[family] in out
    assert "Experts" not in out


@pytest.mark.parametrize("family", ["sdar", "llada"])
def test_a_missing_tensor_is_named(tmp_path: Path, family: str) -> None:
    folder = write_folder(tmp_path / "model", family)
    name = max(n for n in load_file(folder / "model.safetensors") if "norm" in n)
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    error = refusal(folder)
    assert (error.code, error.file, error.item) == (
        "checkpoint.missing_tensor",
        "model.safetensors",
        name,
    )


def test_a_missing_bias_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "fast_dllm")
    edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.bias"))
    assert refusal(folder).item == "model.layers.1.self_attn.k_proj.bias"


@pytest.mark.parametrize(
    ("family", "field", "value", "code"),
    [
        ("sdar", "rope_scaling", {"type": "yarn"}, "unsupported_value"),
        ("sdar", "attention_bias", True, "unsupported_value"),
        ("sdar", "hidden_act", "gelu", "unsupported_value"),
        ("sdar", "num_key_value_heads", 3, "config_inconsistent"),
        ("sdar", "mask_token_id", STOP, "config_inconsistent"),
        ("sdar", "mask_token_id", VOCAB, "id_outside_vocabulary"),
        ("sdar", "num_hidden_layers", 5, "config_disagrees"),
        ("sdar", "vocab_size", 65, "config_disagrees"),
        ("fast_dllm", "small_block_size", 5, "config_inconsistent"),
        ("fast_dllm", "layer_types", ["sliding_attention"], "unsupported_value"),
        ("llada", "block_type", "sequential", "unsupported_value"),
        ("llada", "include_bias", True, "unsupported_value"),
        ("dream", "intermediate_size", 64, "shape"),
        ("sdar", "model_type", "llada2_moe", "family_disagrees"),
    ],
)
def test_configs_the_engine_does_not_compute_are_refused(
    tmp_path: Path, family: str, field: str, value: object, code: str
) -> None:
    folder = write_folder(tmp_path / "model", family)
    edit_json(folder, "config.json", **{field: value})
    error = refusal(folder)
    assert error.code == f"checkpoint.{code}"
    if code != "shape":
        assert error.item == field


def test_a_tokenizer_that_disagrees_is_refused_with_both_values(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "sdar")
    edit_json(folder, "config.json", mask_token_id=40)
    message = refusal(folder).message
    assert "40" in message
    assert str(MASK) in message


def test_a_model_that_does_not_say_how_it_decodes_is_refused_with_what_to_add(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "model", "bd3lm")
    (folder / "generation_config.json").unlink()
    error = refusal(folder)
    assert error.code == "checkpoint.decoding_unknown"
    assert "bd3lm" in error.action
    named = tmp_path / "Qwen3-0.6B-diffusion-mdlm-v0.1"
    folder.rename(named)
    assert open_checkpoint(named).spec.decoding == "mdlm"


def test_a_folder_without_a_template_takes_the_familys_or_is_refused(tmp_path: Path) -> None:
    chatml = write_folder(tmp_path / "sdar", "sdar")
    (chatml / "chat_template.jinja").unlink()
    engine = load_engine(chatml, device="cpu")
    assert engine.count_tokens((Message("user", "w3"),)) > 1
    engine.unload()
    own = write_folder(tmp_path / "llada", "llada")
    (own / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError) as caught:
        load_engine(own, device="cpu")
    assert caught.value.code == "checkpoint.no_template"
