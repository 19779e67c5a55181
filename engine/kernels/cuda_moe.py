"""Launches the CUDA C++ kernels of a mixture-of-experts layer: routing, and NVFP4 experts.

Knows which version fits a device and a shape, and the sizes of grids and shared memory. Everything
it launches reads its lengths on the device and may be captured. The maths is in `cuda/route.cu` and
`cuda/expert_nvfp4.cu`; the references are `routing.py` and `moe.py`, whose Triton kernels are the
portable path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.kernels.cuda_linear import CudaLinear, LinearShape
from engine.kernels.fragments import ExpertFragments, FragmentShape
from engine.kernels.nvrtc import CudaModule, Define
from engine.kernels.routing import RouteRule, Routing

FUSED_TOKENS = 64  # up to here one block chooses for all tokens faster than a second launch starts
MASKED_TOKENS = 1024  # up to here the sets of tokens of all experts fit in shared memory


@dataclass(frozen=True)
class ExpertOptions:
    """How the expert kernel runs. ring: one persistent launch fed by bulk copies (sm_90 and later);
    otherwise two launches that load straight into registers.

    groups: groups of warps that take turns on the tiles. stages: tiles in the ring, 0 = as many as
    fit. chunks: groups of 8 tokens carried at once (2 pays when experts have more than 8 tokens).
    """

    ring: bool = True
    groups: int = 3
    stages: int = 0
    chunks: int = 1


@dataclass(frozen=True)
class RingSizes:
    """Shared memory of the ring version for one shape, in bytes per part."""

    unit: int
    sums: int  # of one group

    @classmethod
    def of(cls, hidden: int, inter: int, chunks: int) -> RingSizes:
        """Raises ValueError where the ring cannot take the shape."""
        gate_up, down = FragmentShape(inter, hidden), FragmentShape(hidden, inter)
        per_unit = gate_up.slices // down.slices
        while per_unit and down.tiles % per_unit:
            per_unit -= 1
        if not per_unit or per_unit * down.tile_bytes > gate_up.tile_bytes or gate_up.slices > 8:
            raise ValueError(f"hidden {hidden} and inner size {inter} do not fit the ring")
        return cls(gate_up.tile_bytes, gate_up.slices * chunks * 256 * 8)

    def stages(self, groups: int, limit: int) -> int:
        """Tiles that fit beside the partial sums in `limit` bytes of shared memory."""
        return (limit - groups * self.sums - 128) // (self.unit + 16)

    def total(self, groups: int, stages: int) -> int:
        return stages * (self.unit + 16) + groups * self.sums + 16


def fit_options(hidden: int, inter: int, wanted: ExpertOptions, shared_limit: int) -> ExpertOptions:
    """`wanted` with its stages filled in and its groups reduced to what shared memory allows.

    Falls back to ring=False where no ring fits: the caller reports which one it got.
    """
    if not wanted.ring:
        return wanted
    try:
        sizes = RingSizes.of(hidden, inter, wanted.chunks)
    except ValueError:
        return replace(wanted, ring=False, chunks=1)
    slices = FragmentShape(inter, hidden).slices
    for groups in range(min(wanted.groups, 31 // slices), 0, -1):
        stages = sizes.stages(groups, shared_limit)
        stages = min(stages, wanted.stages) if wanted.stages else stages
        if stages >= 2 * groups:
            return replace(wanted, groups=groups, stages=stages)
    return replace(wanted, ring=False, chunks=1)


class CudaExperts:
    """The expert kernel for one shape on the current device. gelu: in its tanh form, in place of
    silu."""

    def __init__(self, hidden: int, inter: int, wanted: ExpertOptions, gelu: bool = False) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        if properties.major < 9:
            wanted = replace(wanted, ring=False, chunks=1)
        limit = int(getattr(properties, "shared_memory_per_block_optin", 99 * 1024))
        self.hidden, self.inter = hidden, inter
        self.options = fit_options(hidden, inter, wanted, limit)
        self.blocks = properties.multi_processor_count
        options, shape1 = self.options, FragmentShape(inter, hidden)
        shape2 = FragmentShape(hidden, inter)
        defines: dict[str, Define] = {"HIDDEN": hidden, "INTER": inter, "CHUNKS": options.chunks}
        if gelu:
            defines["GELU"] = 1
        self.slices = shape1.slices
        if options.ring:
            defines |= {"GROUPS": options.groups, "STAGES": options.stages}
            sizes = RingSizes.of(hidden, inter, options.chunks)
            self._module = CudaModule("expert_nvfp4.cu", defines)
            self._ring = self._module.kernel(
                "experts_ring", sizes.total(options.groups, options.stages)
            )
            return
        self._module = CudaModule("expert_nvfp4.cu", defines)
        self._tiles1 = shape1.tiles
        pairs = max(1, 4 // shape2.slices)
        self._warps2 = pairs * shape2.slices
        self._grid2 = -(-(shape2.tiles // 2) // pairs)
        self._gate_up = self._module.kernel(
            "gate_up_direct", self.slices * (shape1.slice_blocks + 2) * 1024
        )
        self._down = self._module.kernel(
            "down_direct", self._warps2 * (shape2.slice_blocks + 2) * 1024
        )

    def __call__(
        self,
        weights: ExpertFragments,
        x: Tensor,
        routing: Routing,
        act: Tensor,
        out: Tensor,
        dependent: bool = False,
    ) -> None:
        """x bf16 [T, H] -> out float32 [P, H], a row for each sorted pair (not yet weighted); act
        bf16 [P, I] is a workspace. `routing` must have been filled by a CUDA routing launch of this
        step (it also clears the counters)."""
        scales1, scales2 = weights.gate_up_scale, weights.down_scale
        lists = (routing.slots, routing.active)
        if self.options.ring:
            parts = (weights.gate_up, weights.down, scales1, scales2)
            self._ring.launch(
                (self.blocks, 1),
                32 * (self.options.groups * self.slices + 1),
                (*parts, x, *lists, routing.pair_token, routing.finished, act, out),
                dependent,
            )
            return
        self._gate_up.launch(
            (self._tiles1, routing.max_slots),
            32 * self.slices,
            (weights.gate_up, scales1, x, *lists, routing.pair_token, act),
            dependent,
        )
        self._down.launch(
            (self._grid2, routing.max_slots),
            32 * self._warps2,
            (weights.down, scales2, act, *lists, out),
            dependent,
        )


def route_defines(rule: RouteRule, hidden: int) -> dict[str, Define]:
    """Macros of `cuda/route.cu`. Raises ValueError for a shape it does not take."""
    if rule.experts % 16 or rule.experts > 1024 or hidden % 64 or rule.top_k > 32:
        raise ValueError(f"the routing kernel does not take {rule.experts} experts of {hidden}")
    if rule.capacity and 32 % rule.block_length:
        raise ValueError(f"a pool block must divide 32, not {rule.block_length}")
    return {
        "HIDDEN": hidden,
        "EXPERTS": rule.experts,
        "TOP_K": rule.top_k,
        "N_GROUP": rule.n_group,
        "TOPK_GROUP": rule.topk_group,
        "CAPACITY": rule.capacity,
        "BLOCK_LENGTH": rule.block_length,
        "NORMALISE": int(rule.normalise),
        "SCALE": f"{float(rule.scale)}f",
    }


class CudaRouter:
    """Router logits, choice and sorting: one launch up to 64 tokens, two above. split: logits as a
    product of their own over the whole GPU (`CudaLinear`) and then `CudaChoice`, up to
    MASKED_TOKENS tokens. Not yet run on a GPU, hence not the default."""

    def __init__(self, rule: RouteRule, hidden: int, tokens: int, split: bool = False) -> None:
        self.rule, self.tokens = rule, tokens
        self._choice: CudaChoice | None = None
        self.fused = False
        if split:
            self._choice = CudaChoice(rule, hidden, tokens)
            self._product = CudaLinear(LinearShape(0, hidden, logits=rule.experts), tokens)
            return
        self._module = CudaModule("route.cu", route_defines(rule, hidden))
        lists = 16 + 8 * rule.experts + 2 * 1024 + 2 * tokens * rule.top_k + 4 * rule.experts
        self.fused = tokens <= FUSED_TOKENS
        if self.fused:
            self._route = self._module.kernel("route_fused", max(65536, lists))
        else:
            self._logits = self._module.kernel("router_logits", 65536)
            self._route = self._module.kernel("route", lists + 4 * rule.experts)

    def __call__(
        self, weight: Tensor, bias: Tensor, x: Tensor, routing: Routing, dependent: bool = False
    ) -> None:
        """weight bf16 [E, H], bias float32 [E], x bf16 [T, H] -> every list of `routing`."""
        if self._choice is not None:
            self._product(weight, x, x, weight, routing.logits, dependent)
            self._choice(bias, routing, dependent)
            return
        outputs = _lists(routing)
        parts = (self.rule.experts // 16, 1)
        if self.fused:
            arguments = (weight, x, bias, self.tokens, routing.logits, *outputs)
            self._route.launch(parts, 1024, arguments, dependent)
            return
        self._logits.launch(parts, 1024, (weight, x, self.tokens, routing.logits), dependent)
        arguments = (routing.logits, bias, self.tokens, *outputs)
        self._route.launch((-(-self.tokens // 32), 1), 1024, arguments, dependent)


class CudaChoice:
    """Choice and sorting from `routing.logits`, in one launch. Raises ValueError above
    MASKED_TOKENS tokens."""

    def __init__(self, rule: RouteRule, hidden: int, tokens: int) -> None:
        if tokens > MASKED_TOKENS:
            raise ValueError(f"choosing from masks takes {MASKED_TOKENS} tokens, not {tokens}")
        self.tokens = tokens
        self._blocks = 1 if tokens <= FUSED_TOKENS else -(-tokens // 32)
        module = CudaModule("route.cu", route_defines(rule, hidden))
        self._kernel = module.kernel("choose_and_list", choice_shared_bytes(rule, tokens))

    def __call__(self, bias: Tensor, routing: Routing, dependent: bool = False) -> None:
        """bias float32 [E] -> every list of `routing` but its logits, which it reads."""
        arguments = (routing.logits, bias, self.tokens, *_lists(routing))
        self._kernel.launch((self._blocks, 1), 1024, arguments, dependent)


def choice_shared_bytes(rule: RouteRule, tokens: int) -> int:
    """Shared memory of `choose_and_list`."""
    words = rule.experts * -(-tokens // 32) + 2 * rule.experts + 32 * -(-rule.experts // 32) + 32
    return 16 + 4 * words + 2 * rule.top_k * tokens


def _lists(routing: Routing) -> tuple[Tensor, ...]:
    """What the kernels write, in their order."""
    choice = (routing.ids, routing.weights, routing.slots, routing.active)
    return (*choice, routing.pair_token, routing.pair_place, routing.finished, routing.ticket)
