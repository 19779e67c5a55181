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
from engine.models.diffusion_gemma_layers import inverse_of
from engine.models.diffusion_gemma_spec import DiffusionGemmaSpec
from engine.runtime.canvas_cache import CanvasAttention, CanvasCache, Kept
from engine.runtime.choice import has_triton
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
    if kernels and dtype == model.embedding.dtype:  # keys kept in FP8 are read by plain torch
        cache.compute = canvas_attention(spec, device)
    state = BlockState.allocate(batch, spec.block_length, device)
    rule = make_rule(spec, device, options)
    program = SelfConditionedProgram(model, cache, state, rule)
    if kernels and device.type == "cuda" and has_triton():
        from engine.runtime.canvas_judge import CanvasJudge

        shape = (batch, spec.block_length, spec.vocab_size)
        program.judge = CanvasJudge(*shape, spec.softcap, model.embedding)
    return program


def canvas_attention(spec: DiffusionGemmaSpec, device: torch.device) -> CanvasAttention | None:
    """The attention kernels where they run: on a GPU, with heads of a power of two that is at least
    16. None: SDPA under a mask."""
    kinds = (spec.sliding, spec.full)
    fits = all(k.head_dim >= 16 and k.head_dim & (k.head_dim - 1) == 0 for k in kinds)
    if device.type != "cuda" or not fits or not has_triton():
        return None
    from engine.runtime.canvas_kernels import TritonCanvasAttention

    return TritonCanvasAttention({kind.window: inverse_of(kind, device) for kind in kinds})


def kept(spec: DiffusionGemmaSpec) -> list[Kept]:
    """What each layer keeps of finished tokens."""
    kinds = [spec.kind_of(layer) for layer in range(spec.num_layers)]
    return [Kept(kind.kv_heads, kind.head_dim, kind.window) for kind in kinds]
