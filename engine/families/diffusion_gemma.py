"""DiffusionGemma's parts: its mixture-of-experts backbone, canvases of noise behind the prompt, and
the entropy-bound sampler.

Knows which part belongs to which checkpoint; computes nothing.
"""

from __future__ import annotations

import torch

from engine.decoding.renoise import EntropyBoundRule
from engine.decoding.rules import Rule, RuleOptions
from engine.decoding.state import BlockState
from engine.models.diffusion_gemma import DiffusionGemma
from engine.models.diffusion_gemma_spec import DiffusionGemmaSpec
from engine.runtime.canvas_cache import CanvasCache, Kept
from engine.runtime.self_conditioned import SelfConditionedProgram
from engine.runtime.step import StepProgram


def build(spec: DiffusionGemmaSpec) -> DiffusionGemma:
    return DiffusionGemma(spec)


def make_rule(spec: DiffusionGemmaSpec, device: torch.device, options: RuleOptions) -> Rule:
    return EntropyBoundRule()


def make_program(
    model: DiffusionGemma,
    batch: int,
    capacity: int,
    options: RuleOptions,
    dtype: torch.dtype,
    kernels: bool,
) -> StepProgram:
    spec, device = model.spec, model.norm.weight.device
    cache = CanvasCache(kept(spec), batch, capacity, spec.chunk, dtype, device)
    state = BlockState.allocate(batch, spec.block_length, device)
    rule = make_rule(spec, device, options)
    return SelfConditionedProgram(model, cache, state, rule)


def kept(spec: DiffusionGemmaSpec) -> list[Kept]:
    """What each layer keeps of finished tokens."""
    kinds = [spec.kind_of(layer) for layer in range(spec.num_layers)]
    return [Kept(kind.kv_heads, kind.head_dim, kind.window) for kind in kinds]
