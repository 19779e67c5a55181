"""Routing and packed experts by the CUDA C++ kernels: one version of `engine.models.mixture`.

Knows which launches these are and that their weights lie in fragment order. Needs cuda-bindings and
a GPU; kernels are built when the first object is made.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from engine.kernels.cuda_moe import CudaExperts, CudaRouter, ExpertOptions, route_defines
from engine.kernels.fragments import ExpertFragments, pack_experts
from engine.kernels.routing import RouteRule, Routing
from engine.models.experts import Router, Weights
from engine.models.mixture import Workspace, Workspaces

# The ring is a fifth faster, but a race was found in it after its last run on a GPU, and the repair
# has been checked on the CPU emulator only. Until a GPU has run that, nobody gets it unasked.
OPTIONS = ExpertOptions(ring=False)


class CudaMixture:
    """CUDA C++ kernels built by NVRTC: bfloat16 activations, weights in fragment order."""

    def __init__(self, rule: RouteRule, hidden: int, inter: int) -> None:
        """Raises ValueError for a rule or sizes that the kernels do not take."""
        route_defines(rule, hidden)  # routers are made later, when there is no way back
        self.rule = rule
        self.experts = _experts(hidden, inter, torch.cuda.current_device())
        self.dependent = torch.cuda.get_device_capability() >= (9, 0)
        self._hidden = hidden
        self._routers: dict[int, CudaRouter] = {}
        self._spaces = Workspaces(rule, hidden, inter, torch.bfloat16)

    def take(self, gate: Weights, up: Weights, down: Weights) -> ExpertFragments:
        if isinstance(gate, Tensor) or isinstance(up, Tensor) or isinstance(down, Tensor):
            raise TypeError("the CUDA kernels read packed experts")
        return pack_experts(gate, up, down)

    def __call__(self, x: Tensor, router: Router, weights: object) -> Workspace:
        assert isinstance(weights, ExpertFragments)
        space = self._spaces.of(x)
        self.choose(x, router, space.routing)
        self.experts(weights, x, space.routing, space.act, space.by_pair, self.dependent)
        return space

    def choose(self, x: Tensor, router: Router, routing: Routing) -> None:
        tokens = x.shape[0]
        if tokens not in self._routers:
            device = torch.cuda.current_device()
            self._routers[tokens] = _router(self.rule, self._hidden, tokens, device)
        route = self._routers[tokens]
        route(router.weight, router.expert_bias, x, routing, self.dependent)


# Loaded code stays with the driver until the process ends, so it is loaded once for each shape.
@lru_cache
def _experts(hidden: int, inter: int, device: int) -> CudaExperts:
    return CudaExperts(hidden, inter, OPTIONS)


@lru_cache(maxsize=256)
def _router(rule: RouteRule, hidden: int, tokens: int, device: int) -> CudaRouter:
    return CudaRouter(rule, hidden, tokens)
