"""Routing as even as chance makes it, and a count of the experts a forward meets.

A random model's positions resemble each other (most of them hold the mask), so they share experts
and a step reads less than it would at worst. Fed with noise in place of them, routers choose evenly
and independently: E (1 - (1 - k/E)^n) distinct experts of E for n tokens of k. The routers do the
same work either way. Knows where a layer's router is; measures no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from engine.models.backbone import AnyBackbone
from engine.models.experts import Router
from engine.models.layers import Delta
from engine.models.llada2 import SparseMLP

if TYPE_CHECKING:  # they need Triton
    from engine.kernels.routing import Routing
    from engine.models.mixture import MixtureKernels

RoutingName = Literal["uniform", "own"]


class Noise:
    """The same random rows for every call with so many tokens: [T, H], of spread 1. A captured
    graph reads them where they are: to be kept as long as it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def like(self, x: Tensor) -> Tensor:
        """Made while a step is warmed up; a capture finds it there."""
        key = tuple(x.shape)
        if key not in self._kept:
            generator = torch.Generator(device=x.device).manual_seed(x.shape[0])
            drawn = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            self._kept[key] = drawn.normal_(generator=generator)
        return self._kept[key]


@contextmanager
def routed(model: AnyBackbone, routing: RoutingName, noise: Noise) -> Iterator[None]:
    """Routes so what is captured, or called, inside. "own": as the model does."""
    undo: list[Callable[[], None]] = []
    if routing == "uniform":
        undo = [_even_kernels(kernels, noise) for kernels in _kernels(model)]
        undo += [_even_router(mlp.gate, noise) for mlp in _mixtures(model) if mlp.compute is None]
    try:
        yield
    finally:
        for back in undo:
            back()


def _even_kernels(kernels: MixtureKernels, noise: Noise) -> Callable[[], None]:
    choose = kernels.choose

    def evenly(x: Tensor, router: Router, routing: Routing) -> None:
        choose(noise.like(x), router, routing)

    def back() -> None:
        kernels.choose = choose

    kernels.choose = evenly
    return back


def _even_router(router: Router, noise: Noise) -> Callable[[], None]:
    def feed(_module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        return (noise.like(arguments[0]),)

    return router.register_forward_pre_hook(feed).remove


class ExpertCount:
    """Distinct experts of every mixture that ran, by number of tokens."""

    def __init__(self) -> None:
        self.met: dict[int, list[int]] = {}

    def add(self, tokens: int, distinct: int) -> None:
        self.met.setdefault(tokens, []).append(distinct)

    def mean(self, tokens: int) -> float:
        """0 without a mixture of so many tokens."""
        met = self.met.get(tokens, [])
        return sum(met) / len(met) if met else 0.0


@contextmanager
def counting(model: AnyBackbone) -> Iterator[ExpertCount]:
    """Counts inside, reading the host after every layer: for eager steps whose time is of no
    interest."""
    count = ExpertCount()
    undo = [_count_layer(mlp, count) for mlp in _mixtures(model)]
    try:
        yield count
    finally:
        for back in undo:
            back()


def _count_layer(mlp: SparseMLP, count: ExpertCount) -> Callable[[], None]:
    compute = mlp.compute
    if compute is None:

        def seen(_module: nn.Module, _arguments: object, out: tuple[Tensor, Tensor]) -> None:
            count.add(out[0].shape[0], int(out[0].unique().numel()))

        return mlp.gate.register_forward_hook(seen).remove

    from engine.models.mixture import PendingMixture

    def counted(x: Tensor) -> Delta:
        result = compute(x)
        assert isinstance(result, PendingMixture)
        count.add(x.numel() // x.shape[-1], int(result.space.routing.active))
        return result

    mlp.compute = counted

    def back() -> None:
        mlp.compute = compute

    return back


def _mixtures(model: AnyBackbone) -> Iterator[SparseMLP]:
    return (module for module in model.modules() if isinstance(module, SparseMLP))


def _kernels(model: AnyBackbone) -> list[MixtureKernels]:
    """Each once: layers share them."""
    computed = [mlp for mlp in _mixtures(model) if mlp.compute is not None]
    if not computed:
        return []
    from engine.models.mixture import KernelMixture

    found: dict[int, MixtureKernels] = {}
    for mlp in computed:
        if isinstance(mlp.compute, KernelMixture):
            found[id(mlp.compute.kernels)] = mlp.compute.kernels
    return list(found.values())
