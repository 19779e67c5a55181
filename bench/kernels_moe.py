"""Experts and routing at LLaDA2.1-mini's shape: right against float64, then 19 layers of distinct
weights timed.

Knows the shape (hidden 2048, inner 512, 256 experts, top 8) and the variants worth comparing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from kernels_measure import Recorder
from torch import Tensor

from engine.kernels.cuda_moe import CudaExperts, CudaRouter, ExpertOptions
from engine.kernels.fragments import ExpertFragments, FragmentShape, pack_experts
from engine.kernels.moe import GroupedTiling, grouped_experts
from engine.kernels.nvfp4 import PackedExperts, dequantize
from engine.kernels.routing import (
    RouteRule,
    Routing,
    make_routing,
    route,
    route_reference,
    sort_reference,
)

HIDDEN, INTER, EXPERTS, TOP_K, LAYERS = 2048, 512, 256, 8, 19
RULE = RouteRule(EXPERTS, TOP_K, n_group=8, topk_group=4, scale=2.5)
EXPERT_BYTES = 3 * HIDDEN * INTER * 9 / 16

VARIANTS = {
    "direct": ExpertOptions(ring=False),
    "ring 2 groups": ExpertOptions(groups=2),
    "ring 3 groups": ExpertOptions(groups=3),
    "ring 3 groups, 7 stages": ExpertOptions(groups=3, stages=7),
    "ring 2 groups, 2 chunks": ExpertOptions(groups=2, chunks=2),
}


def uniform_routing(tokens: int) -> Routing:
    """Every token takes 8 experts uniformly: 163 distinct of 256 in expectation for 32 tokens."""
    routing = make_routing(tokens, RULE, "cuda")
    ids = torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K, dim=-1).indices
    routing.ids.copy_(ids)
    routing.weights.fill_(2.5 / TOP_K)
    sort_reference(ids, routing)
    return routing


def random_packed(rows: int, columns: int) -> PackedExperts:
    """Random codes, scales between 2^-3 and 2, global scales around 0.01."""
    codes = torch.randint(0, 256, (EXPERTS, rows, columns // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(32, 64, (EXPERTS, rows, columns // 16), dtype=torch.uint8, device="cuda")
    glob = torch.rand(EXPERTS, device="cuda") * 0.01 + 0.005
    return PackedExperts(codes, scales.view(torch.float8_e4m3fn), glob)


def random_fragments() -> ExpertFragments:
    """A layer of valid random fragments without packing one (timing needs 19 distinct layers)."""
    data: list[Tensor] = []
    for shape, matrices in ((FragmentShape(INTER, HIDDEN), 2), (FragmentShape(HIDDEN, INTER), 1)):
        size = (EXPERTS, shape.tiles, matrices, shape.tile_bytes)
        part = torch.randint(0, 256, size, dtype=torch.uint8, device="cuda")
        first = shape.slices * shape.slice_blocks * 512
        part[..., first:] = part[..., first:] % 32 + 152  # scales from 2^-3 to 2
        data.append(part)
    ones = torch.full((EXPERTS, 2), 0.01, device="cuda")
    return ExpertFragments(HIDDEN, INTER, data[0], data[1][:, :, 0], ones, ones[:, 0].contiguous())


@dataclass(frozen=True, eq=False)
class Reference:
    """Inputs and float64 results of one layer: x [T, H], act [P, I], out [P, H] for the bf16
    act."""

    x: Tensor
    routing: Routing
    act: Tensor


def reference(tokens: int, dense: list[Tensor]) -> Reference:
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    routing = uniform_routing(tokens)
    pairs = tokens * TOP_K
    expert = torch.empty(pairs, dtype=torch.long, device="cuda")
    expert[routing.pair_place.flatten().long()] = routing.ids.flatten().long()
    rows = x[routing.pair_token.long()].double()
    act = torch.empty(pairs, INTER, dtype=torch.float64, device="cuda")
    for e in expert.unique().tolist():
        mine = expert == e
        gate, up = (rows[mine] @ dense[m][e].double().T for m in (0, 1))
        act[mine] = F.silu(gate) * up
    return Reference(x, routing, act)


def down_reference(act: Tensor, routing: Routing, dense: Tensor) -> Tensor:
    out = torch.empty(act.shape[0], HIDDEN, dtype=torch.float64, device="cuda")
    for expert, first, count, _ in routing.slots[: int(routing.active)].tolist():
        part = slice(first, first + count)
        out[part] = act[part].double() @ dense[expert].double().T
    return out


Weights = tuple[PackedExperts, PackedExperts, PackedExperts]


def check_experts(recorder: Recorder, kernels: dict[str, CudaExperts]) -> None:
    packed = (
        random_packed(INTER, HIDDEN),
        random_packed(INTER, HIDDEN),
        random_packed(HIDDEN, INTER),
    )
    dense = [dequantize(w, torch.float32) for w in packed]
    fragments = pack_experts(*packed)
    for tokens in (32, 64, 256):
        want = reference(tokens, dense)
        recorder.attempt(
            f"experts triton T={tokens}",
            partial(check_portable, recorder, packed, want, dense[2]),
        )
        for name, kernel in kernels.items():
            recorder.attempt(
                f"experts {name} T={tokens}",
                partial(check_cuda, recorder, name, kernel, fragments, want, dense[2]),
            )


def workspaces(tokens: int) -> tuple[Tensor, Tensor]:
    """act and out, poisoned."""
    act = torch.full((tokens * TOP_K, INTER), float("nan"), dtype=torch.bfloat16, device="cuda")
    return act, torch.full((tokens * TOP_K, HIDDEN), float("nan"), device="cuda")


def check_portable(recorder: Recorder, packed: Weights, want: Reference, down: Tensor) -> None:
    act, out = workspaces(len(want.x))
    grouped_experts(want.x, *packed, want.routing, act, out)
    name = f"experts triton T={len(want.x)}"
    recorder.check(f"{name} act", act, want.act, 3e-3)
    recorder.check(f"{name} out", out, down_reference(act, want.routing, down), 1e-5)


def check_cuda(
    recorder: Recorder,
    name: str,
    kernel: CudaExperts,
    fragments: ExpertFragments,
    want: Reference,
    down: Tensor,
) -> None:
    """Right, and the same bits on a second run."""
    act, out = workspaces(len(want.x))
    want.routing.finished.zero_()
    kernel(fragments, want.x, want.routing, act, out)
    name = f"experts {name} T={len(want.x)}"
    recorder.check(f"{name} act", act, want.act, 3e-3)
    recorder.check(f"{name} out", out, down_reference(act, want.routing, down), 1e-5)
    again = workspaces(len(want.x))
    want.routing.finished.zero_()
    kernel(fragments, want.x, want.routing, *again)
    recorder.check_equal(f"{name} again", again[1], out)


def check_routing(recorder: Recorder) -> None:
    pool = RouteRule(EXPERTS, TOP_K, capacity=48, scale=2.5)
    for tokens in (32, 64, 256):
        for label, rule in (("groups", RULE), ("pool", pool)):
            name = f"route {label} T={tokens}"
            recorder.attempt(name, partial(check_route, recorder, name, rule, tokens))


def check_route(recorder: Recorder, name: str, rule: RouteRule, tokens: int) -> None:
    weight = (torch.randn(EXPERTS, HIDDEN, device="cuda") * 0.03).bfloat16()
    bias = torch.randn(EXPERTS, device="cuda") * 0.1
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    cuda, portable, want = (make_routing(tokens, rule, "cuda") for _ in range(3))
    CudaRouter(rule, HIDDEN, tokens)(weight, bias, x, cuda)
    recorder.check(f"{name} logits", cuda.logits, x.double() @ weight.double().T, 2e-6)
    route(cuda.logits, bias, rule, portable)
    ids, weights = route_reference(cuda.logits, bias, rule)
    sort_reference(ids, want)
    listed = int(want.active)
    for version, got in (("cuda", cuda), ("triton", portable)):
        recorder.check_equal(f"{name} {version} ids", got.ids.long(), ids)
        recorder.check(f"{name} {version} weights", got.weights, weights, 1e-6)
        recorder.check_equal(f"{name} {version} order", got.pair_place, want.pair_place)
        recorder.check_equal(f"{name} {version} tokens", got.pair_token, want.pair_token)
        recorder.check_equal(f"{name} {version} slots", got.slots[:listed], want.slots[:listed])


def time_routing(recorder: Recorder) -> None:
    bias = torch.randn(EXPERTS, device="cuda") * 0.1
    for tokens in (32, 64, 256):
        router = CudaRouter(RULE, HIDDEN, tokens)
        weights = [torch.randn(EXPERTS, HIDDEN, device="cuda").bfloat16() for _ in range(LAYERS)]
        x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        routing = make_routing(tokens, RULE, "cuda")

        def cuda(
            dependent: bool,
            router: CudaRouter = router,
            weights: list[Tensor] = weights,
            x: Tensor = x,
            routing: Routing = routing,
        ) -> None:
            for weight in weights:
                router(weight, bias, x, routing, dependent)

        def portable(routing: Routing = routing) -> None:
            for _ in range(LAYERS):
                route(routing.logits, bias, RULE, routing)

        for dependent in (False, True):
            name = f"route cuda{' pdl' if dependent else ''} T={tokens}, {LAYERS} layers"
            recorder.attempt(name, partial(recorder.time, name, partial(cuda, dependent)))
        name = f"route triton (no logits) T={tokens}, {LAYERS} layers"
        recorder.attempt(name, partial(recorder.time, name, portable))


def time_experts(recorder: Recorder, kernels: dict[str, CudaExperts]) -> None:
    layers = [random_fragments() for _ in range(LAYERS)]
    for tokens in (32, 64, 256):
        counters = torch.zeros(LAYERS, EXPERTS, dtype=torch.int32, device="cuda")
        routings = [replace(uniform_routing(tokens), finished=counters[n]) for n in range(LAYERS)]
        distinct = sum(int(r.active) for r in routings) / LAYERS
        x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        act, out = workspaces(tokens)

        def work(
            kernel: CudaExperts,
            dependent: bool,
            counters: Tensor = counters,
            routings: list[Routing] = routings,
            buffers: tuple[Tensor, Tensor, Tensor] = (x, act, out),
        ) -> None:
            counters.zero_()
            for weights, routing in zip(layers, routings, strict=True):
                kernel(weights, buffers[0], routing, buffers[1], buffers[2], dependent)

        for name, kernel in kernels.items():
            for dependent in (False, True):
                label = f"experts {name}{' pdl' if dependent else ''} T={tokens}, {LAYERS} layers"
                note = f"{distinct:.0f} distinct, {kernel.options.stages} stages"
                moved = LAYERS * distinct * EXPERT_BYTES
                run_it = partial(work, kernel, dependent)
                recorder.attempt(label, partial(recorder.time, label, run_it, moved, note))


def time_portable(recorder: Recorder) -> None:
    """Triton over weights in checkpoint order."""
    layers = [
        (random_packed(INTER, HIDDEN), random_packed(INTER, HIDDEN), random_packed(HIDDEN, INTER))
        for _ in range(LAYERS)
    ]
    tokens = 32
    routings = [uniform_routing(tokens) for _ in range(LAYERS)]
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    act, out = workspaces(tokens)
    moved = sum(int(r.active) for r in routings) * EXPERT_BYTES

    def work(tiling: GroupedTiling) -> None:
        for weights, routing in zip(layers, routings, strict=True):
            grouped_experts(x, *weights, routing, act, out, tiling)

    for tiling in (GroupedTiling(), GroupedTiling(rows=32, columns=256)):
        label = f"experts triton {tiling.rows}x{tiling.columns} T={tokens}, {LAYERS} layers"
        recorder.attempt(label, partial(recorder.time, label, partial(work, tiling), moved))


def run(recorder: Recorder) -> None:
    kernels: dict[str, CudaExperts] = {}
    for name, options in VARIANTS.items():

        def make(name: str = name, options: ExpertOptions = options) -> None:
            kernels[name] = CudaExperts(HIDDEN, INTER, options)

        recorder.attempt(f"build {name}", make)
    check_routing(recorder)
    check_experts(recorder, kernels)
    torch.cuda.empty_cache()
    time_routing(recorder)
    time_portable(recorder)
    torch.cuda.empty_cache()
    time_experts(recorder, kernels)
