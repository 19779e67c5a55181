"""The shapes that can be measured, by name, as the configs their checkpoints publish.

Knows numbers alone (models.md 1.2, 3.1); the families' readers make specs of them. Every shape is
decoded by the quota rule, whose steps say exactly how many tokens a forward accepts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engine.models.dense_readers import read_sdar
from engine.models.dense_spec import DenseSpec
from engine.models.llada2_spec import LLaDA2Spec
from engine.paths import demo_folder

Config = dict[str, Any]
BenchSpec = LLaDA2Spec | DenseSpec


@dataclass(frozen=True)
class Shape:
    """config: as in config.json. words: what it is, for a person. on_cpu: small enough to be
    measured without a GPU. prompt: positions before the reply unless asked otherwise. tpf: tokens
    per forward unless asked otherwise, at most the block."""

    name: str
    words: str
    config: Config
    on_cpu: bool = False
    prompt: int = 1024
    tpf: float = 8.5

    @property
    def spec(self) -> BenchSpec:
        if self.config["model_type"] == "sdar":
            return read_sdar(self.config, {})
        return LLaDA2Spec.from_config(self.config, {"decoding": "llada2.0"})


_LLADA2_MINI: Config = {
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
    "norm_topk_prob": True,
    "rope_theta": 600000,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "use_qk_norm": True,
    "tie_word_embeddings": False,
    "vocab_size": 157184,
    "pad_token_id": 156892,
    "max_position_embeddings": 32768,
}
_LLADA2_FLASH_LAYER: Config = _LLADA2_MINI | {
    "hidden_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "intermediate_size": 9216,
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 1024,
}
_QWEN3_4B: Config = {
    "model_type": "sdar",
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "block_size": 256,
}
_SDAR_4B: Config = _QWEN3_4B | {"tie_word_embeddings": False, "mask_token_id": 151669}
_TINY: Config = {
    "model_type": "llada2_moe",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 96,
    "mask_token_id": 95,
    "eos_token_id": 94,
    "max_position_embeddings": 512,
    "block_size": 8,
}
_TINY_DENSE: Config = {
    "model_type": "sdar",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "vocab_size": 96,
    "mask_token_id": 95,
    "eos_token_id": 94,
    "max_position_embeddings": 512,
    "block_size": 16,
}


def shape_of(name: str) -> Shape:
    """KeyError for a name that is in neither list below."""
    return _MAKERS[name]()


def _demo() -> Shape:
    config = json.loads((demo_folder() / "config.json").read_text(encoding="utf-8"))
    return Shape("demo", "the demo model's shape", config, on_cpu=True, prompt=256)


_MAKERS = {
    "llada2.1-mini": lambda: Shape(
        "llada2.1-mini", "LLaDA2.1-mini, 16B of which 1.4B are active, blocks of 32", _LLADA2_MINI
    ),
    "llada2.0-flash-layer": lambda: Shape(
        "llada2.0-flash-layer",
        "one mixture-of-experts layer of LLaDA2.0-flash (100B) with embedding and head",
        _LLADA2_FLASH_LAYER,
    ),
    "qwen3-4b": lambda: Shape(
        "qwen3-4b", "Qwen3-4B denoising canvases of 256 tokens, masks for noise", _QWEN3_4B
    ),
    "sdar-4b-block4": lambda: Shape(
        "sdar-4b-block4",
        "SDAR-4B, blocks of 4 as published",
        _SDAR_4B | {"block_size": 4},
        tpf=2.0,
    ),
    "sdar-4b-block32": lambda: Shape(
        "sdar-4b-block32", "SDAR-4B with blocks of 32", _SDAR_4B | {"block_size": 32}
    ),
    "demo": _demo,
    "tiny": lambda: Shape("tiny", "two layers of experts", _TINY, on_cpu=True, prompt=24),
    "tiny-dense": lambda: Shape("tiny-dense", "two layers", _TINY_DENSE, on_cpu=True, prompt=32),
    "tiny-block4": lambda: Shape(
        "tiny-block4",
        "two layers, blocks of 4",
        _TINY_DENSE | {"block_size": 4},
        on_cpu=True,
        prompt=32,
        tpf=2.0,
    ),
}
SHAPES = (
    "llada2.1-mini",
    "llada2.0-flash-layer",
    "qwen3-4b",
    "sdar-4b-block4",
    "sdar-4b-block32",
    "demo",
)
SMALL = ("tiny", "tiny-dense", "tiny-block4")  # of the tests
