"""The arm that everybody runs otherwise: the same dense shape decoded one token at a time, batch 1,
a CUDA graph a token, nothing asked of the host between tokens.

Made as fast as the parts here allow, so that the comparison is fair: norms and sums in one launch,
attention with its length on the device, bfloat16, and for every matrix whichever is fastest here of
cuBLAS and a kernel that reads it once. Several versions are timed and the fastest one counts.
Knows the order of a token; the layers are `engine.models.dense`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.bench.machine import gpu_times, time_gpu
from engine.kernels.attention import AttentionPlan, AttentionWorkspace, make_workspace
from engine.kernels.moe import silu_mul
from engine.kernels.streams import stream
from engine.models.dense import Attention, DecoderLayer, Dense
from engine.models.experts import GatedMLP
from engine.models.layers import Linear
from engine.runtime.attention import TritonAttention
from engine.runtime.cache import CachedAttend, KVCache
from engine.runtime.choice import block_attention

TOKENS = 48  # timed one by one in a round
PREFILL = 256  # positions read at once
Product = Callable[[Tensor, Tensor], Tensor]  # x [1, K], weight [N, K] -> [1, N]

ALL_HEADS = "one-vector kernels, grouped heads"
ONE_HEAD = "one-vector kernels"
PLAIN = "cuBLAS"
VERSIONS = (PLAIN, ONE_HEAD, ALL_HEADS)


class GroupAttention(TritonAttention):
    """One query of every head: the heads of a group share a program, which reads their keys
    once."""

    def _workspace(self, q: Tensor, kv_heads: int) -> tuple[AttentionPlan, AttentionWorkspace]:
        batch, length, heads, dim = q.shape
        group = heads // kv_heads
        if length > 1 or group & (group - 1) or group > 16:
            return super()._workspace(q, kv_heads)
        key = (*q.shape, kv_heads)
        if key not in self._kept:
            # Sixteen rows are the fewest a tensor core takes.
            plan = AttentionPlan(
                tokens=16 // group, heads=group, columns=32, splits=32, warps=4, stages=2
            )
            self._kept[key] = (plan, make_workspace(batch, length, heads, dim, plan, q.device))
        return self._kept[key]


class Decoder:
    """Greedy decoding with a cache of `capacity` positions. token int64 [1, 1]: the last one said;
    position int64 [1, 1]: where it stands."""

    def __init__(self, model: Dense, capacity: int, attention: TritonAttention | None) -> None:
        spec, weight = model.spec, model.norm.weight
        self.model = model
        shape = (spec.num_layers, 1, spec.num_kv_heads, capacity, spec.head_dim)
        self.cache = KVCache(*shape, weight.dtype, weight.device)
        self.cache.attention = attention
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
        self.position = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)

    @torch.inference_mode()
    def read(self, prompt: Tensor) -> None:
        """Writes the cache of all but the last token of `prompt` int64 [n], which `step` reads."""
        for first in range(0, len(prompt) - 1, PREFILL):
            last = min(first + PREFILL, len(prompt) - 1)
            positions = torch.arange(first, last, device=prompt.device).unsqueeze(0)
            self._forward(prompt[first:last].unsqueeze(0), positions)
        self.token.copy_(prompt[-1:].unsqueeze(0))
        self.position.fill_(len(prompt) - 1)

    @torch.inference_mode()
    def step(self) -> None:
        """Says the next token. Reads nothing on the host."""
        hidden = self._forward(self.token, self.position)
        self.token.copy_(self.model.logits(hidden).argmax(-1))
        self.position.add_(1)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        # Blocks of one position: every query sees what is before it, and itself.
        attend = CachedAttend(self.cache, positions, self.cache.capacity, 1)
        return self.model(self.model.embed(ids), positions, attend)


@dataclass
class Version:
    """One way to decode, captured. times: milliseconds a token."""

    name: str
    decoder: Decoder
    graph: torch.cuda.CUDAGraph
    start: int
    times: list[float]

    def round(self) -> None:
        """Decodes behind the prompt anew."""
        self.decoder.position.fill_(self.start)
        self.graph.replay()
        self.times += gpu_times(self.graph.replay, TOKENS)


def capture_versions(model: Dense, context: int) -> list[Version]:
    """Every version over the same weights, each with a cache of its own that holds `context`
    tokens. Needs a GPU with Triton, and a model that has its kernels."""
    capacity = -(-(context + TOKENS + 8) // PREFILL) * PREFILL
    device = model.norm.weight.device
    prompt = torch.arange(context, device=device) * 7 % model.spec.vocab_size
    versions: list[Version] = []
    for name in VERSIONS:
        attention = _attention(model, grouped=name == ALL_HEADS)
        decoder = Decoder(model, capacity, attention)
        decoder.read(prompt)
        if name == PLAIN:
            graph = _captured(decoder.step)
        else:
            with one_vector_products(model, fastest_product):
                graph = _captured(decoder.step)
        versions.append(Version(name, decoder, graph, context - 1, []))
    return versions


def _attention(model: Dense, grouped: bool) -> TritonAttention | None:
    spec, device = model.spec, model.norm.weight.device
    found = block_attention(device, spec.head_dim, spec.head_dim, spec.rope_theta)
    if found is not None and grouped:
        return GroupAttention(spec.head_dim, spec.rope_theta)
    assert found is None or isinstance(found, TritonAttention)
    return found


def _captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = stream(torch.device("cuda"), "capture")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # compiles and allocates
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    return graph


@contextmanager
def one_vector_products(model: Dense, choose: Callable[[list[Tensor]], Product]) -> Iterator[None]:
    """Inside, every matrix of the model multiplies by what `choose` returns for its kind (one
    matrix of every layer). For a model whose projections lie together."""
    layers = [cast(DecoderLayer, layer) for layer in model.layers]
    kinds = {
        "qkv": [lying_together(layer.self_attn.projections) for layer in layers],
        "o": [layer.self_attn.o_proj.weight for layer in layers],
        "gate_up": [lying_together((x.mlp.gate_proj, x.mlp.up_proj)) for x in layers],
        "down": [layer.mlp.down_proj.weight for layer in layers],
        "head": [model.embedding if model.lm_head is None else model.lm_head.weight],
    }
    by_kind = {kind: choose(weights) for kind, weights in kinds.items()}
    undo: list[Callable[[], None]] = []

    def put(module: Attention | GatedMLP | Linear, compute: Callable[[Tensor], Tensor]) -> None:
        undo.append(partial(setattr, module, "compute", module.compute))
        module.compute = compute

    for index, layer in enumerate(layers):
        weights = {kind: found[index] for kind, found in kinds.items() if kind != "head"}
        put(layer.self_attn, partial(_product, by_kind["qkv"], weights["qkv"]))
        put(layer.self_attn.o_proj, partial(_product, by_kind["o"], weights["o"]))
        put(layer.mlp, partial(_inner, by_kind["gate_up"], weights["gate_up"]))
        put(layer.mlp.down_proj, partial(_product, by_kind["down"], weights["down"]))
    head = kinds["head"][0]
    model.logits = lambda hidden: _product(by_kind["head"], head, hidden).float()
    undo.append(partial(delattr, model, "logits"))  # the class's own again
    try:
        yield
    finally:
        for back in undo:
            back()


def _product(multiply: Product, weight: Tensor, x: Tensor) -> Tensor:
    """x [1, 1, K] -> [1, 1, N]."""
    return multiply(x.view(1, -1), weight).view(*x.shape[:-1], -1)


def _inner(multiply: Product, weight: Tensor, x: Tensor) -> Tensor:
    """silu(gate x) * up x."""
    both = multiply(x.view(1, -1), weight)
    out = both.new_empty(1, both.shape[1] // 2)
    silu_mul(both, out)
    return out.view(*x.shape[:-1], -1)


def lying_together(parts: tuple[Linear, ...]) -> Tensor:
    """The matrices of several layers as one view. Raises ValueError if they are not rows of one
    matrix."""
    first = parts[0].weight
    rows, width = 0, first.shape[1]
    for part in parts:
        expected = first.data_ptr() + rows * width * first.element_size()
        if part.weight.data_ptr() != expected or not part.weight.is_contiguous():
            raise ValueError("these matrices do not lie together in memory")
        rows += part.weight.shape[0]
    return first.detach().as_strided((rows, width), (width, 1))


def fastest_product(weights: list[Tensor]) -> Product:
    """Of cuBLAS and the tilings of one kernel, over all the given matrices in turn, so that no
    cache holds the next one."""
    from engine.bench.gpu_kernels import TILINGS, times_vector

    x = torch.randn(1, weights[0].shape[1], device=weights[0].device).to(weights[0].dtype)
    candidates: list[Product] = [F.linear]
    candidates += [partial(times_vector, tiling=tiling) for tiling in TILINGS]

    def all_of(multiply: Product) -> None:
        for weight in weights:
            multiply(x, weight)

    times = [time_gpu(_captured(partial(all_of, m)).replay, 10) for m in candidates]
    return candidates[times.index(min(times))]
