"""Random models of the families on the dense backbone, small enough for CI, and runtimes over them:
eager, and a whole reply as one graph on the CPU's stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from host_graph import HostBackend
from torch import Tensor

from engine.compose import make_program, parts_of
from engine.decoding.rules import RuleOptions
from engine.models.dense import Dense
from engine.models.dense_readers import (
    read_a2d,
    read_dream,
    read_fast_dllm,
    read_llada,
    read_sdar,
)
from engine.models.qwen_dlm import read_qwen_dlm
from engine.runtime.eager import EagerRuntime
from engine.runtime.graph import GraphRuntime
from engine.runtime.pieces import ReplyPieces, make_pieces
from engine.runtime.rows import Row, StepMark
from engine.types import DecodeSettings

VOCAB, MASK, STOP = 64, 63, 62
HF = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "mask_token_id": MASK,
    "eos_token_id": STOP,
    "max_position_embeddings": 192,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "sdar": HF | {"model_type": "sdar", "block_size": 4},
    "bd3lm": HF | {"model_type": "a2d-qwen3", "tie_word_embeddings": True},
    "mdlm": HF | {"model_type": "a2d-qwen3", "tie_word_embeddings": True},
    "fast_dllm": HF | {"model_type": "Fast_dLLM_Qwen", "bd_size": 16, "small_block_size": 4},
    "dream": HF | {"model_type": "Dream"},
    "llada": {
        "model_type": "llada",
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "mlp_hidden_size": 48,
        "embedding_size": VOCAB,
        "vocab_size": VOCAB,
        "mask_token_id": MASK,
        "eos_token_id": STOP,
        "max_sequence_length": 192,
        "rope_theta": 500000.0,
        "weight_tying": False,
    },
}
GENERATION: dict[str, dict[str, Any]] = {
    "bd3lm": {"decoding": "bd3lm", "block_size": 8},
    "mdlm": {"decoding": "mdlm", "block_size": 8},
    "llada": {"block_length": 8},
}
NOISE = HF | {"model_type": "qwen_dlm", "canvas_length": 8, "commit_attention": "causal"}
CONFIGS["qwen_dlm"] = {k: v for k, v in NOISE.items() if k != "mask_token_id"}
GENERATION["qwen_dlm"] = {"entropy_bound": 1.0, "confidence_threshold": 0.4}
READERS = {
    "sdar": read_sdar,
    "bd3lm": read_a2d,
    "mdlm": read_a2d,
    "fast_dllm": read_fast_dllm,
    "dream": read_dream,
    "llada": read_llada,
    "qwen_dlm": read_qwen_dlm,
}
FAMILIES = tuple(READERS)


def dense_model(
    family: str, seed: int = 0, generation: Mapping[str, Any] | None = None, **changes: Any
) -> Dense:
    """Weights scaled so that confidences spread over (0, 1) and replies differ."""
    generation = GENERATION.get(family, {}) if generation is None else generation
    spec = READERS[family](CONFIGS[family] | changes, generation)
    model = parts_of(spec).build(spec)
    assert isinstance(model, Dense)
    fill(model, seed)
    return model.eval().requires_grad_(False)


def fill(model: torch.nn.Module, seed: int) -> None:
    """A residual adapter is drawn apart, so that the rest is what it would be without one."""
    base, apart = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    tied = getattr(model, "lm_head", None) is None
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "alpha" in name:
                continue
            head = "lm_head" in name or ("embed" in name and tied)
            generator = apart if "residual" in name else base
            weight.copy_(torch.randn(weight.shape, generator=generator) * (0.9 if head else 0.3))


def pieces_for(
    model: Dense, *, batch: int = 1, capacity: int = 128, options: RuleOptions | None = None
) -> ReplyPieces:
    options = options or RuleOptions()
    program = make_program(model, batch, capacity, options, torch.float32)
    return make_pieces(program, options.stop_after_block, slots=256)


def eager(model: Dense, **options: Any) -> EagerRuntime:
    return EagerRuntime(pieces_for(model, **options))


def eager_like_graph(model: Dense, **options: Any) -> EagerRuntime:
    """Scans the whole cache and prefills in the graph's chunks."""
    return EagerRuntime(pieces_for(model, **options), exact=False)


def graph(model: Dense, **options: Any) -> GraphRuntime:
    pieces = pieces_for(model, **options)
    return GraphRuntime(pieces, HostBackend(pieces))


def request(
    runtime: EagerRuntime | GraphRuntime,
    prompt: list[int],
    limit: int,
    settings: DecodeSettings,
    stop: int = STOP,
) -> Row:
    length = runtime.pieces.reply.block_length
    return Row(prompt, limit, settings, length, frozenset([stop]))


def reply(runtime: EagerRuntime | GraphRuntime, *rows: Row) -> list[StepMark]:
    """Runs the rows to their end."""
    runtime.prefill(rows)
    return list(runtime.run(rows))


def outcome(row: Row) -> tuple[Any, ...]:
    return row.ids, row.reason, row.blocks, row.forwards, row.commits


def canvases(marks: list[StepMark]) -> list[list[int]]:
    """Masks where a position is undecided, tokens elsewhere, after every step."""
    found: list[list[int]] = []
    for mark in marks:
        step = mark.step_taken
        assert step is not None
        undecided = step.state <= 1
        found.append([MASK if u else int(t) for t, u in zip(step.ids, undecided, strict=True)])
    return found


def full_logits(model: Dense, ids: list[int], seen: Tensor) -> Tensor:
    """float32 [N, V] of one uncached forward; seen bool [N, N]."""
    from engine.models.layers import MaskAttend

    positions = torch.arange(len(ids)).unsqueeze(0)
    with torch.inference_mode():
        embeds = model.embed(torch.tensor([ids]))
        return model.logits(model(embeds, positions, MaskAttend(seen[None, None])))[0]
