"""The tiny conformance model as a module in memory, and a runtime over it: what several engine
tests start from.

UNBLUR_TEST_DEVICE=cuda TRITON_INTERPRET=0 runs them on a GPU, replies as one graph.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from engine.checkpoint import open_checkpoint
from engine.compose import make_rule
from engine.decoding.rules import Rule, RuleOptions
from engine.decoding.state import BlockState
from engine.loading import Placement, build_model
from engine.models.llada2 import LLaDA2
from engine.models.llada2_spec import LLaDA2Spec
from engine.runtime.cache import KVCache
from engine.runtime.choice import Runtime, choose_loop, make_runtime
from engine.runtime.step import StepProgram

DEVICE = torch.device(os.environ.get("UNBLUR_TEST_DEVICE", "cpu"))


def load(folder: Path, dtype: torch.dtype = torch.float32, expand: bool = True) -> LLaDA2:
    """The checkpoint as a module on the tests' device."""
    checkpoint = open_checkpoint(folder)
    try:
        return build_model(checkpoint, Placement(DEVICE, dtype, expand, "test"))
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
) -> Runtime:
    """A runtime with the given rule and its own cache."""
    spec: LLaDA2Spec = model.spec
    cache = KVCache(
        spec.num_layers, batch, spec.num_kv_heads, capacity, spec.head_dim, torch.float32, DEVICE
    )
    state = BlockState.allocate(batch, spec.block_length, DEVICE)
    program = StepProgram(model, cache, state, rule, spec.mask_token_id if suppress else None)
    return make_runtime(program, stop_after_block, choose_loop(DEVICE))


def default_runtime(model: LLaDA2, *, batch: int = 1, capacity: int = 256) -> Runtime:
    """A runtime as the app makes it."""
    rule = make_rule(model.spec, DEVICE, RuleOptions())
    return runtime_for(model, rule, batch=batch, capacity=capacity)
