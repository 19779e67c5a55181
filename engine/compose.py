"""Puts a checkpoint's parts together: its backbone, its decoding rule, and the step over both.

Knows where a family's parts are found (`engine.models.registry`) and what several families put
together alike. Which parts a family takes is its own file's business (`engine.families`).
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

import torch

from engine.decoding.rules import Rule, RuleOptions
from engine.decoding.state import BlockState
from engine.models.backbone import AnyBackbone
from engine.models.family import FamilySpec
from engine.models.registry import family_of
from engine.runtime.cache import KVCache
from engine.runtime.step import StepProgram


class Parts(Protocol):
    """What a module of `engine.families` offers, for specs and backbones of its own family."""

    def build(self, spec: FamilySpec) -> AnyBackbone:
        """The backbone, with weights that are to be replaced, on the current default device."""
        ...

    def make_rule(self, spec: FamilySpec, device: torch.device, options: RuleOptions) -> Rule: ...

    def make_program(
        self,
        model: AnyBackbone,
        batch: int,
        capacity: int,
        options: RuleOptions,
        dtype: torch.dtype,
        kernels: bool,
    ) -> StepProgram: ...


def parts_of(spec: FamilySpec) -> Parts:
    """The family's file, imported now."""
    return cast(Parts, importlib.import_module(family_of(spec.family).parts))


def make_rule(spec: FamilySpec, device: torch.device, options: RuleOptions) -> Rule:
    """The decoding rule a checkpoint asks for."""
    return parts_of(spec).make_rule(spec, device, options)


def make_program(
    model: AnyBackbone,
    batch: int,
    capacity: int,
    options: RuleOptions,
    dtype: torch.dtype,
    *,
    kernels: bool = False,
) -> StepProgram:
    """The model's step for `batch` rows, with its own state and room for `capacity` positions.
    kernels: attention kernels where the device and the shapes allow them."""
    parts = parts_of(model.spec)
    return parts.make_program(model, batch, capacity, options, dtype, kernels)


def block_causal_program(
    model: AnyBackbone,
    rule: Rule,
    batch: int,
    capacity: int,
    options: RuleOptions,
    dtype: torch.dtype,
    cache_shape: tuple[int, int, int],
    kind: type[StepProgram] = StepProgram,
) -> StepProgram:
    """Blocks on absolute positions, a KV cache, masks for noise. cache_shape: layers, KV heads,
    dimensions of a head. kind: which step is taken over them."""
    spec, device = model.spec, model.norm.weight.device
    layers, heads, dim = cache_shape
    cache = KVCache(layers, batch, heads, capacity, dim, dtype, device)
    state = BlockState.allocate(batch, spec.block_length, device)
    suppressed = spec.mask_token_id if options.suppress_mask else None
    return kind(model, cache, state, rule, suppressed)
