"""The tiny conformance model as a module in memory, and a runtime over it: what several engine
tests start from."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.checkpoint import open_checkpoint
from engine.decoding.rules import Rule, RuleOptions
from engine.decoding.state import BlockState
from engine.engine import make_rule
from engine.loading import Placement, build_model
from engine.models.llada2 import LLaDA2
from engine.models.llada2_spec import LLaDA2Spec
from engine.runtime.cache import KVCache
from engine.runtime.eager import EagerRuntime
from engine.runtime.pieces import make_pieces
from engine.runtime.step import StepProgram

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32, expand: bool = True) -> LLaDA2:
    """The checkpoint as a module on the CPU."""
    checkpoint = open_checkpoint(folder)
    try:
        return build_model(checkpoint, Placement(CPU, dtype, expand, "test"))
    finally:
        checkpoint.release()


def runtime_for(
    model: LLaDA2,
    rule: Rule,
    *,
    batch: int = 1,
    capacity: int = 256,
    suppress: bool = True,
    stop_after_block: bool = True,
) -> EagerRuntime:
    """A runtime with the given rule and its own cache."""
    spec: LLaDA2Spec = model.spec
    cache = KVCache(
        spec.num_layers, batch, spec.num_kv_heads, capacity, spec.head_dim, torch.float32, CPU
    )
    state = BlockState.allocate(batch, spec.block_length, CPU)
    program = StepProgram(model, cache, state, rule, spec.mask_token_id if suppress else None)
    return EagerRuntime(make_pieces(program, stop_after_block))


def default_runtime(model: LLaDA2, *, batch: int = 1, capacity: int = 256) -> EagerRuntime:
    """A runtime as the app makes it."""
    rule = make_rule(model.spec, CPU, RuleOptions())
    return runtime_for(model, rule, batch=batch, capacity=capacity)
