"""LLaDA2's parts: its mixture-of-experts backbone, blocks on absolute positions, and the rule of
2.0, 2.1 or 2.2.

Knows which part belongs to which checkpoint; computes nothing.
"""

from __future__ import annotations

import torch

from engine.compose import block_causal_program
from engine.decoding.levenshtein import LevenshteinRule
from engine.decoding.rules import EditingRule, QuotaRule, Rule, RuleOptions
from engine.errors import RuntimeFailure
from engine.models.llada2 import LLaDA2
from engine.models.llada2_spec import LLaDA2Spec
from engine.runtime.choice import give_attention
from engine.runtime.step import StepProgram


def build(spec: LLaDA2Spec) -> LLaDA2:
    return LLaDA2(spec)


def make_rule(spec: LLaDA2Spec, device: torch.device, options: RuleOptions) -> Rule:
    stop_ids = torch.tensor(spec.stop_ids, dtype=torch.int64, device=device)
    if spec.decoding == "llada2.0":
        return QuotaRule(spec.mask_token_id, stop_ids, options)
    if spec.decoding == "llada2.1":
        return EditingRule(spec.mask_token_id, stop_ids, options)
    if spec.delete_token_id is None or spec.split_token_id is None:
        raise RuntimeFailure(
            "load.no_edit_tokens",
            "The checkpoint decodes with block edits, but names no delete and split tokens.",
            "Add delete_token_id and split_token_id to config.json.",
        )
    return LevenshteinRule(
        spec.mask_token_id, spec.delete_token_id, spec.split_token_id, stop_ids, options
    )


def make_program(
    model: LLaDA2,
    batch: int,
    capacity: int,
    options: RuleOptions,
    dtype: torch.dtype,
    kernels: bool,
) -> StepProgram:
    spec, device = model.spec, model.norm.weight.device
    rule = make_rule(spec, device, options)
    shape = (spec.num_layers, spec.num_kv_heads, spec.head_dim)
    program = block_causal_program(model, rule, batch, capacity, options, dtype, shape)
    if kernels:
        give_attention(program, spec.head_dim, spec.rotary_dim, spec.rope_theta)
    return program
