"""Kernels that are written but not in use, each against the one that is, at LLaDA2.1-mini's shape:
right first (float64, or the portable kernel), then timed beside it in the same process.

Knows the candidates by name. `bench/kernels.py --sections next` runs each in a process of its own,
because one that is wrong may take the CUDA context with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from kernels_measure import Recorder
from kernels_moe import (
    EXPERT_BYTES,
    EXPERTS,
    INTER,
    RULE,
    check_cuda,
    random_fragments,
    random_packed,
    reference,
    uniform_routing,
    workspaces,
)
from kernels_rest import BLOCK, CAPACITY, CONTEXT, DIM, HEADS, HIDDEN, KV_HEADS
from torch import Tensor

from engine.kernels.attention import attention_reference, block_attention, make_workspace
from engine.kernels.cuda_attention import CudaAttention
from engine.kernels.cuda_linear import CudaLinear, LinearShape
from engine.kernels.cuda_moe import CudaExperts, CudaRouter, ExpertOptions
from engine.kernels.fragments import ExpertFragments, pack_experts, pack_linear
from engine.kernels.linear_nvfp4 import linear
from engine.kernels.moe import silu_mul
from engine.kernels.nvfp4 import dequantize, quantize
from engine.kernels.routing import make_routing, route_reference, sort_reference
from engine.runtime.attention import plan_attention

MIXTURES, LAYERS = 19, 20
TOKENS = (32, 64)  # a step; a step that also commits
SHARED_LIMIT = 227 << 10
CALLS = 300

RINGS = {
    "ring 11": ExpertOptions(groups=3),
    "ring 7": ExpertOptions(groups=3, stages=7),
    "ring 2 chunks": ExpertOptions(groups=2, chunks=2),
}
# name: rows, columns, whether two halves become silu(gate) * up
MATRICES = {
    "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, False),
    "attention out": (HIDDEN, HIDDEN, False),
    "shared gate and up": (2 * INTER, HIDDEN, True),
    "shared down": (HIDDEN, INTER, False),
}


def both(recorder: Recorder, label: str, work: Callable[[bool], None], moved: float = 0.0) -> None:
    """With and without programmatic dependent launch."""
    for dependent in (False, True):
        name = f"{label}{', pdl' if dependent else ''}"
        recorder.attempt(name, partial(recorder.time, name, partial(work, dependent), moved))


def ring(recorder: Recorder, name: str) -> None:
    """Checked many times with fresh inputs: the fault that was found in it is a race."""
    kernel, now = (
        CudaExperts(HIDDEN, INTER, options) for options in (RINGS[name], ExpertOptions(ring=False))
    )
    sizes = ((INTER, HIDDEN), (INTER, HIDDEN), (HIDDEN, INTER))
    packed = [random_packed(*size) for size in sizes]
    fragments = pack_experts(packed[0], packed[1], packed[2])
    dense = [dequantize(part, torch.float32) for part in packed]
    for tokens in (*TOKENS, 256):
        want = reference(tokens, dense)
        check_cuda(recorder, name, kernel, fragments, want, dense[2])
    del dense
    worst = torch.zeros((), device="cuda")
    for turn in range(CALLS):
        tokens = TOKENS[turn % 2]
        routing, x = uniform_routing(tokens), torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        outs = [workspaces(tokens) for _ in range(2)]
        for run, (act, out) in zip((kernel, now), outs, strict=True):
            routing.finished.zero_()
            run(fragments, x, routing, act, out)
        got, want = (out for _, out in outs)
        worst = torch.maximum(worst, ((got - want).norm() / want.norm()).nan_to_num(1.0))
    # One of 5,000 tiles that had not arrived would be 1e-2; roundings of the inner values are 1e-3.
    error = float(worst)
    label = f"{name}, the worst of {CALLS} calls beside the one in use"
    recorder.add(kind="check", name=label, error=error, limit=3e-3, ok=error <= 3e-3)
    del fragments, packed
    layers = [random_fragments() for _ in range(MIXTURES)]
    for tokens in (*TOKENS, 256):
        for label, run in (("in use", now), (name, kernel)):
            time_experts(recorder, f"experts T={tokens}, {label}", run, layers, tokens)


def time_experts(
    recorder: Recorder, label: str, run: CudaExperts, layers: list[ExpertFragments], tokens: int
) -> None:
    """All layers, one after another."""
    counters = torch.zeros(MIXTURES, EXPERTS, dtype=torch.int32, device="cuda")
    routings = [replace(uniform_routing(tokens), finished=row) for row in counters]
    moved = sum(int(routing.active) for routing in routings) * EXPERT_BYTES
    x, (act, out) = torch.randn(tokens, HIDDEN, device="cuda").bfloat16(), workspaces(tokens)

    def work(dependent: bool) -> None:
        counters.zero_()
        for weights, routing in zip(layers, routings, strict=True):
            run(weights, x, routing, act, out, dependent)

    both(recorder, f"{label}, {MIXTURES} layers", work, moved)


def router(recorder: Recorder) -> None:
    """Logits as a product over the whole GPU, then one launch that chooses."""
    bias = torch.randn(EXPERTS, device="cuda") * 0.1
    for tokens in (*TOKENS, 256):
        weights = [(torch.randn(EXPERTS, HIDDEN, device="cuda") * 0.03).bfloat16()]
        weights += [torch.randn_like(weights[0]) for _ in range(MIXTURES - 1)]
        x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        for label, split in (("in use", False), ("split", True)):
            run = CudaRouter(RULE, HIDDEN, tokens, split)
            routing, want = (make_routing(tokens, RULE, "cuda") for _ in range(2))
            run(weights[0], bias, x, routing)
            name = f"routing T={tokens}, {label}"
            exact = x.double() @ weights[0].double().T
            recorder.check(f"{name} logits", routing.logits, exact, 2e-6)
            ids, shares = route_reference(routing.logits, bias, RULE)
            sort_reference(ids, want)
            listed = int(want.active)
            recorder.check_equal(f"{name} ids", routing.ids.long(), ids)
            recorder.check(f"{name} weights", routing.weights, shares, 1e-6)
            recorder.check_equal(f"{name} order", routing.pair_place, want.pair_place)
            recorder.check_equal(f"{name} tokens", routing.pair_token, want.pair_token)
            recorder.check_equal(f"{name} slots", routing.slots[:listed], want.slots[:listed])

            def work(
                dependent: bool,
                run: CudaRouter = run,
                weights: list[Tensor] = weights,
                x: Tensor = x,
                routing: object = routing,
            ) -> None:
                for weight in weights:
                    run(weight, bias, x, routing, dependent)  # pyright: ignore[reportArgumentType]

            both(recorder, f"{name}, {MIXTURES} layers", work)


def product(recorder: Recorder, name: str, packed: bool) -> None:
    """`CudaLinear` beside cuBLAS (bfloat16) or the Triton kernel (NVFP4), with what follows."""
    rows, columns, gated = MATRICES[name]
    dense = [torch.randn(rows, columns, device="cuda").bfloat16() * 0.03 for _ in range(LAYERS)]
    stored = [quantize(weight.float()) for weight in dense] if packed else []
    if packed:
        dense = [dequantize(weight, torch.bfloat16) for weight in stored]
    weights = [pack_linear([weight]) for weight in stored] if packed else dense
    size = rows // 2 if gated else rows
    for tokens in TOKENS:
        x = torch.randn(tokens, columns, device="cuda").bfloat16()
        out = torch.full((tokens, size), float("nan"), device="cuda", dtype=torch.bfloat16)
        run = CudaLinear(LinearShape(rows, columns, packed, gated), tokens)
        run(weights[0], x, out)
        exact = (
            x.double() @ (dequantize(stored[0], torch.float64) if packed else dense[0].double()).T
        )
        if gated:
            exact = F.silu(exact[:, :size]) * exact[:, size:]
        label = f"{name} {'nvfp4' if packed else 'bf16'} T={tokens}"
        recorder.check(f"{label} candidate", out, exact, 4e-3)

        def candidate(
            dependent: bool, run: CudaLinear = run, x: Tensor = x, out: Tensor = out
        ) -> None:
            for weight in weights:
                run(weight, x, out, dependent=dependent)

        def in_use(x: Tensor = x, out: Tensor = out) -> None:
            for index in range(LAYERS):
                y = linear(x, stored[index]) if packed else F.linear(x, dense[index])
                if gated:
                    silu_mul(y, out)

        moved = LAYERS * rows * columns * (9 / 16 if packed else 2)
        recorder.time(f"{label}, in use, {LAYERS} layers", in_use, moved)
        both(recorder, f"{label}, candidate, {LAYERS} layers", candidate, moved)


def attention(recorder: Recorder) -> None:
    """Splits merged inside a cluster, beside the Triton kernel at the plan in use."""
    for tokens in TOKENS:
        q = torch.randn(1, tokens, HEADS, DIM, device="cuda").bfloat16()
        keys, values = (
            torch.randn(LAYERS, 1, KV_HEADS, CAPACITY, DIM, device="cuda").bfloat16()
            for _ in range(2)
        )
        start = torch.tensor([CONTEXT], dtype=torch.int64, device="cuda")
        run = CudaAttention(DIM, HEADS // KV_HEADS, BLOCK, tokens)
        plan = plan_attention(tokens, HEADS // KV_HEADS, DIM, 2, SHARED_LIMIT)
        space = make_workspace(1, tokens, HEADS, DIM, plan, "cuda")
        out = torch.empty_like(q)
        for first in (CONTEXT, 0, 160):
            start.fill_(first)
            out.fill_(float("nan"))
            run(q, keys[0], values[0], start, out)
            wide = (part.double() for part in (q, keys[0], values[0]))
            want = attention_reference(*wide, start, BLOCK)
            recorder.check(f"attention T={tokens} cluster start={first}", out, want, 5e-3)
        start.fill_(CONTEXT)
        parts = (q, keys, values, start, out)

        def candidate(dependent: bool, run: CudaAttention = run, parts=parts) -> None:
            q, keys, values, start, out = parts
            for layer in range(LAYERS):
                run(q, keys[layer], values[layer], start, out, dependent)

        def in_use(plan=plan, space=space, parts=parts) -> None:
            q, keys, values, start, out = parts
            for layer in range(LAYERS):
                block_attention(q, keys[layer], values[layer], start, BLOCK, out, space, plan)

        moved = LAYERS * 2.0 * KV_HEADS * (CONTEXT + tokens) * DIM * 2
        recorder.time(f"attention T={tokens}, in use, {LAYERS} layers", in_use, moved)
        both(recorder, f"attention T={tokens}, cluster, {LAYERS} layers", candidate, moved)


def run(recorder: Recorder) -> None:
    """The candidate that the section is named after: `next: NAME`."""
    name = recorder.section.partition(":")[2].strip()
    if name in RINGS:
        ring(recorder, name)
    elif name == "router":
        router(recorder)
    elif name == "attention":
        attention(recorder)
    else:
        for matrix in MATRICES:
            product(recorder, matrix, name == "products nvfp4")
