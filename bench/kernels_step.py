"""A whole denoising step of LLaDA2.1-mini's shape from these kernels and cuBLAS, in one graph:
where do its milliseconds go?

Knows the order of a layer and how to leave parts out (time by difference). Random weights; the real
runtime is engine/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from kernels_measure import Recorder
from kernels_moe import EXPERT_BYTES, RULE, TOP_K, random_fragments
from kernels_rest import BLOCK, CAPACITY, CONTEXT, DIM, HEADS, HIDDEN, KV_HEADS, VOCAB, head_inputs
from torch import Tensor

from engine.kernels.attention import AttentionPlan, block_attention, make_workspace
from engine.kernels.cuda_moe import CudaExperts, CudaRouter, ExpertOptions
from engine.kernels.fragments import ExpertFragments
from engine.kernels.moe import combine, silu_mul
from engine.kernels.qk_rope import qk_rope
from engine.kernels.rmsnorm import add_rmsnorm
from engine.kernels.routing import Routing, make_routing
from engine.kernels.sampler import HeadPlan, judge_head, make_sampler_workspace, make_verdict

LAYERS, DENSE_INTER, INTER = 20, 5120, 512
EPS = 1e-6
ATTENTION = AttentionPlan(heads=1, splits=4, warps=4)
HEAD = HeadPlan()


def bf16(*shape: int, scale: float = 0.02) -> Tensor:
    return (torch.randn(*shape, device="cuda") * scale).bfloat16()


@dataclass(eq=False)
class Layer:
    """One layer's weights; layer 0 has a dense MLP instead of experts."""

    dense: bool
    qkv: Tensor = field(default_factory=lambda: bf16((HEADS + 2 * KV_HEADS) * DIM, HIDDEN))
    out: Tensor = field(default_factory=lambda: bf16(HIDDEN, HIDDEN))
    q_norm: Tensor = field(default_factory=lambda: bf16(DIM, scale=1.0))
    k_norm: Tensor = field(default_factory=lambda: bf16(DIM, scale=1.0))
    norm: Tensor = field(default_factory=lambda: torch.ones(HIDDEN, device="cuda").bfloat16())
    router: Tensor = field(default_factory=lambda: bf16(RULE.experts, HIDDEN))
    experts: ExpertFragments | None = None
    gate_up: Tensor = field(init=False)
    down: Tensor = field(init=False)
    keys: Tensor = field(default_factory=lambda: bf16(1, KV_HEADS, CAPACITY, DIM, scale=1.0))
    values: Tensor = field(default_factory=lambda: bf16(1, KV_HEADS, CAPACITY, DIM, scale=1.0))

    def __post_init__(self) -> None:
        inter = DENSE_INTER if self.dense else INTER
        self.gate_up, self.down = bf16(2 * inter, HIDDEN), bf16(HIDDEN, inter)
        self.experts = None if self.dense else random_fragments()


@dataclass(frozen=True)
class Choice:
    """One arm: parts left out, programmatic dependent launches, the shared expert on a stream of
    its own."""

    without: frozenset[str] = frozenset()
    dependent: bool = False
    beside: bool = False


class Step:
    """Buffers for T tokens and the step over all layers; the last 32 tokens are judged."""

    def __init__(
        self, layers: list[Layer], tokens: int, experts: CudaExperts, head: Tensor
    ) -> None:
        self.layers, self.tokens, self.experts, self.head = layers, tokens, experts, head
        self.router = CudaRouter(RULE, HIDDEN, tokens)
        self.routing: list[Routing] = [make_routing(tokens, RULE, "cuda") for _ in layers]
        self.bias = torch.zeros(RULE.experts, device="cuda")
        self.embedded = bf16(tokens, HIDDEN, scale=1.0)
        self.hidden, self.normed, self.ffn_in = (torch.empty_like(self.embedded) for _ in range(3))
        self.q = torch.empty(1, tokens, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
        self.attended = torch.empty_like(self.q)
        self.act = torch.empty(tokens * TOP_K, INTER, dtype=torch.bfloat16, device="cuda")
        self.by_pair = torch.zeros(tokens * TOP_K, HIDDEN, device="cuda")
        self.start = torch.tensor([CONTEXT + BLOCK - tokens], device="cuda")
        self.workspace = make_workspace(1, tokens, HEADS, DIM, ATTENTION, "cuda")
        angle = torch.arange(CAPACITY, device="cuda").unsqueeze(1) * 600000 ** (
            -torch.arange(32, device="cuda") / 32
        )
        self.cos, self.sin = angle.cos(), angle.sin()
        self.inputs = head_inputs(0.0)
        self.verdict = make_verdict(32, 0, "cuda")
        self.sampler = make_sampler_workspace(32, VOCAB, 0, False, HEAD, "cuda")
        self.side = torch.cuda.Stream()

    def run(self, choice: Choice) -> None:
        skip = choice.without
        first = self.layers[0]
        self.hidden.copy_(self.embedded)
        add_rmsnorm(self.hidden, None, first.norm, EPS, self.hidden, self.normed)
        for index, layer in enumerate(self.layers):
            if "attention" not in skip:
                self._attention(layer)
            following = self.layers[min(index + 1, len(self.layers) - 1)].norm
            if layer.dense:
                inner = self._gated(layer)
                add_rmsnorm(inner, self.hidden, following, EPS, self.hidden, self.normed)
            else:
                self._mixture(layer, self.routing[index], following, choice)
        if "head" not in skip:
            last = self.normed[-32:]
            judge_head(last, self.head, self.inputs, self.verdict, self.sampler, HEAD)

    def _attention(self, layer: Layer) -> None:
        qkv = F.linear(self.normed, layer.qkv).unsqueeze(0)
        tables = (self.cos, self.sin, self.start, layer.keys, layer.values)
        qk_rope(qkv, layer.q_norm, layer.k_norm, EPS, *tables, self.q)
        block_attention(
            self.q,
            layer.keys,
            layer.values,
            self.start,
            BLOCK,
            self.attended,
            self.workspace,
            ATTENTION,
        )
        out = F.linear(self.attended.view(self.tokens, HIDDEN), layer.out)
        add_rmsnorm(out, self.hidden, layer.norm, EPS, self.hidden, self.ffn_in)

    def _gated(self, layer: Layer) -> Tensor:
        gate_up = F.linear(self.ffn_in, layer.gate_up)
        inner = gate_up.new_empty(self.tokens, layer.down.shape[1])
        silu_mul(gate_up, inner)
        return F.linear(inner, layer.down)

    def _mixture(self, layer: Layer, routing: Routing, following: Tensor, choice: Choice) -> None:
        skip = choice.without
        shared: Tensor | None = None
        current = torch.cuda.current_stream()
        if "shared" not in skip:
            if choice.beside:
                self.side.wait_stream(current)
                with torch.cuda.stream(self.side):
                    shared = self._gated(layer)
            else:
                shared = self._gated(layer)
        if "router" not in skip:
            self.router(layer.router, self.bias, self.ffn_in, routing, choice.dependent)
        if "experts" not in skip and layer.experts is not None:
            buffers = (routing, self.act, self.by_pair)
            self.experts(layer.experts, self.ffn_in, *buffers, choice.dependent)
        if choice.beside and shared is not None:
            current.wait_stream(self.side)
        combine(
            self.by_pair, routing, shared, self.hidden, self.hidden, following, self.normed, EPS
        )


CHOICES = {
    "all": Choice(),
    "all, pdl": Choice(dependent=True),
    "all, shared beside": Choice(beside=True),
    "all, pdl, shared beside": Choice(dependent=True, beside=True),
    "without experts": Choice(frozenset({"experts"})),
    "without experts, router": Choice(frozenset({"experts", "router"})),
    "without shared": Choice(frozenset({"shared"})),
    "without attention": Choice(frozenset({"attention"})),
    "without head": Choice(frozenset({"head"})),
}
EXPERT_ARMS = {"ring": ExpertOptions(), "direct": ExpertOptions(ring=False)}


def bytes_of(step: Step, choice: Choice) -> float:
    """What must be read, given the experts the step's own routing has chosen."""
    total = 0.0
    for layer, routing in zip(step.layers, step.routing, strict=True):
        if "attention" not in choice.without:
            total += layer.qkv.nbytes + layer.out.nbytes + 4 * KV_HEADS * CONTEXT * DIM
        if layer.dense or "shared" not in choice.without:
            total += layer.gate_up.nbytes + layer.down.nbytes
        if not layer.dense:
            total += layer.router.nbytes * ("router" not in choice.without)
            total += int(routing.active) * EXPERT_BYTES * ("experts" not in choice.without)
    return total + step.head.nbytes * ("head" not in choice.without)


def arm(recorder: Recorder, step: Step, name: str, choice: Choice) -> None:
    step.run(Choice())  # routing of every layer, for the bytes and for arms without a router
    torch.cuda.synchronize()
    moved = bytes_of(step, choice)
    active = sum(int(r.active) for r in step.routing[1:]) / (len(step.layers) - 1)
    for routing in step.routing:
        routing.finished.zero_()
    work: Callable[[], None] = partial(step.run, choice)
    note = f"{moved / 1e9:.2f} GB, {active:.0f} distinct experts"
    recorder.time(name, work, moved, note)
    if not choice.without:
        finite = torch.isfinite(step.verdict.log_norm).all()
        recorder.check_equal(f"{name} finite", finite, torch.ones_like(finite))


def run(recorder: Recorder) -> None:
    layers = [Layer(dense=index == 0) for index in range(LAYERS)]
    head = bf16(VOCAB, HIDDEN)
    for label, options in EXPERT_ARMS.items():
        kernel = CudaExperts(HIDDEN, INTER, options)
        for tokens in (32, 64):
            step = Step(layers, tokens, kernel, head)
            for name, choice in CHOICES.items():
                if label == "direct" and choice.without:
                    continue
                if tokens == 64 and choice.without:
                    continue
                full = f"step {label} T={tokens}: {name}"
                recorder.attempt(full, partial(arm, recorder, step, full, choice))
