"""The parts of the families on the dense backbone (`engine.models.dense_readers`).

Knows which rule and which step belong to which decoding name; computes nothing.
"""

from __future__ import annotations

from typing import cast

import torch

from engine.compose import block_causal_program
from engine.decoding.dream import DreamRule, Measure
from engine.decoding.renoise import EntropyBoundRule
from engine.decoding.rules import QuotaRule, Rule, RuleOptions
from engine.decoding.state import BlockState
from engine.decoding.windows import WindowRule
from engine.models.dense import Dense
from engine.models.dense_spec import DenseSpec
from engine.runtime.cache import KVCache
from engine.runtime.choice import give_attention
from engine.runtime.renoising import RenoisingProgram
from engine.runtime.shifted import ShiftedBlockProgram
from engine.runtime.step import StepProgram
from engine.runtime.whole import WholeSequenceProgram


def build(spec: DenseSpec) -> Dense:
    return Dense(spec)


def make_rule(spec: DenseSpec, device: torch.device, options: RuleOptions) -> Rule:
    if spec.noise:
        return EntropyBoundRule()
    mask = spec.mask_token_id
    assert mask is not None
    stop_ids = torch.tensor(spec.stop_ids, dtype=torch.int64, device=device)
    if spec.decoding.startswith("dream."):
        measure = cast(Measure, spec.decoding.removeprefix("dream."))
        return DreamRule(measure, mask, stop_ids, options)
    if spec.blocks.whole or spec.blocks.window < spec.blocks.length:
        return WindowRule(
            spec.decoding,
            mask,
            stop_ids,
            options,
            spec.blocks.window,
            shares=spec.blocks.whole,
            from_prompt=spec.blocks.whole,
        )
    return QuotaRule(mask, stop_ids, options)


def make_program(
    model: Dense,
    batch: int,
    capacity: int,
    options: RuleOptions,
    dtype: torch.dtype,
    kernels: bool,
) -> StepProgram:
    spec, device = model.spec, model.norm.weight.device
    rule = make_rule(spec, device, options)
    suppressed = spec.mask_token_id if options.suppress_mask else None
    if spec.blocks.whole:
        state = BlockState.allocate(batch, capacity, device)
        return WholeSequenceProgram(
            model, state, rule, suppressed, shift=spec.blocks.shift, filler=spec.stop_ids[0]
        )
    shape = (spec.num_layers, spec.num_kv_heads, spec.head_dim)
    causal = spec.noise and spec.blocks.causal_commit
    if spec.noise:
        state = BlockState.allocate(batch, spec.block_length, device)
        cache = KVCache(shape[0], batch, shape[1], capacity, shape[2], dtype, device)
        program: StepProgram = RenoisingProgram(model, cache, state, rule, causal=causal)
    else:
        kind = ShiftedBlockProgram if spec.blocks.shift else StepProgram
        program = block_causal_program(model, rule, batch, capacity, options, dtype, shape, kind)
    if kernels:
        dim, theta = spec.head_dim, spec.rope_theta
        give_attention(program, dim, dim, theta, block_causal=not causal)
    return program
