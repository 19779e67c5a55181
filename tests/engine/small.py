"""A random model small enough for hundreds of requests on one core, and runtimes over it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from host_graph import HostBackend

from engine.compose import make_rule
from engine.decoding.rules import RuleOptions
from engine.decoding.state import BlockState
from engine.models.llada2 import LLaDA2
from engine.models.llada2_spec import LLaDA2Spec
from engine.runtime.cache import KVCache
from engine.runtime.eager import EagerRuntime
from engine.runtime.graph import GraphRuntime, PerStepGraphRuntime
from engine.runtime.pieces import ReplyPieces, make_pieces
from engine.runtime.rows import Row, StepMark
from engine.runtime.step import StepProgram
from engine.types import DecodeSettings

CPU = torch.device("cpu")
VOCAB, MASK, STOP, BLOCK = 64, 63, 62, 8
CAPACITY = 96
CONFIG = {
    "model_type": "llada2_moe",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": VOCAB,
    "mask_token_id": MASK,
    "eos_token_id": STOP,
    "max_position_embeddings": CAPACITY,
    "block_size": BLOCK,
}


def small_model(decoding: str = "llada2.0", seed: int = 0) -> LLaDA2:
    """Weights scaled so that confidences spread over (0, 1) and replies differ."""
    config = dict(CONFIG)
    if decoding == "llada2.2":
        config |= {"delete_token_id": 60, "split_token_id": 61, "expert_capacity": 3}
    spec = LLaDA2Spec.from_config(config, {} if decoding == "llada2.2" else {"decoding": decoding})
    assert spec.decoding == decoding
    model = LLaDA2(spec)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                scale = 1.6 if "lm_head" in name else 0.35
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return model.eval().requires_grad_(False)


def pieces_for(
    model: LLaDA2,
    *,
    batch: int = 1,
    slots: int = 256,
    fused: bool = True,
    ahead: bool = False,
    capacity: int = CAPACITY,
    one_launch: bool = False,
) -> ReplyPieces:
    spec = model.spec
    cache = KVCache(
        spec.num_layers, batch, spec.num_kv_heads, capacity, spec.head_dim, torch.float32, CPU
    )
    state = BlockState.allocate(batch, spec.block_length, CPU)
    rule = make_rule(spec, CPU, RuleOptions())
    program = StepProgram(model, cache, state, rule, spec.mask_token_id)
    return make_pieces(program, True, slots=slots, fused=fused, ahead=ahead, one_launch=one_launch)


def eager_for(model: LLaDA2, exact: bool | None = None, **options: int | bool) -> EagerRuntime:
    return EagerRuntime(pieces_for(model, **options), exact)


def eager_like_graph(model: LLaDA2) -> EagerRuntime:
    """Scans the whole cache and prefills in the graph's chunks: the same numbers to the last
    bit."""
    return eager_for(model, exact=False)


def graph_for(model: LLaDA2, fetch_delay: float = 0.0, **options: int | bool) -> GraphRuntime:
    pieces = pieces_for(model, **options)
    return GraphRuntime(pieces, HostBackend(pieces, fetch_delay))


def per_step_for(model: LLaDA2, **options: int | bool) -> PerStepGraphRuntime:
    pieces = pieces_for(model, **options)
    return PerStepGraphRuntime(pieces, HostBackend(pieces))


Runtime = EagerRuntime | GraphRuntime


def request(prompt: Sequence[int], limit: int, settings: DecodeSettings, **changes) -> Row:
    return Row(list(prompt), limit, settings, BLOCK, frozenset([STOP]), **changes)


def reply(runtime: Runtime, *rows: Row, record: bool = True) -> list[StepMark]:
    """Runs the rows to their end."""
    runtime.prefill(rows)
    return list(runtime.run(rows, record=record))


def outcome(row: Row) -> tuple:
    return row.ids, row.reason, row.blocks, row.forwards, row.converged
