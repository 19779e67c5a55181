"""DiffusionGemma's kernels against plain torch, through Triton's interpreter; the attention against
the cache's own, in both passes."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_emulator import build, call
from gemma_models import Passes, eager, gemma_model, reply, request, with_noise
from torch import Tensor

from engine.errors import RuntimeFailure
from engine.kernels.canvas_attention import choose_plan
from engine.kernels.fragments import pack_experts
from engine.kernels.gelu import gelu_mul, gelu_mul_reference
from engine.kernels.moe import grouped_experts
from engine.kernels.moe_dense import grouped_dense_experts
from engine.kernels.noise_head import (
    rounded_softmax,
    rounded_softmax_reference,
    temper,
    temper_reference,
)
from engine.kernels.nvfp4 import PackedExperts, dequantize, quantize
from engine.kernels.routing import RouteRule, make_routing, sort_reference
from engine.kernels.sandwich import (
    EnterWeights,
    LeaveWeights,
    enter,
    enter_reference,
    leave,
    leave_reference,
)
from engine.kernels.softmax_route import softmax_route, softmax_route_reference
from engine.models.accelerate import use_kernels
from engine.models.diffusion_gemma import DiffusionGemma
from engine.models.diffusion_gemma_layers import gelu_tanh, inverse_of
from engine.models.experts import Experts
from engine.models.reduced import reduced_layers
from engine.runtime.canvas_judge import CanvasJudge
from engine.runtime.canvas_kernels import TritonCanvasAttention
from engine.runtime.self_conditioned import SelfConditionedProgram

HIDDEN, EPS = 80, 1e-3
SIZES: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32}


def packed(experts: int, rows: int, columns: int) -> PackedExperts:
    parts = [quantize(torch.randn(rows, columns) * 0.1) for _ in range(experts)]
    return PackedExperts(
        torch.stack([part.codes for part in parts]),
        torch.stack([part.scales for part in parts]),
        torch.stack([part.global_scale for part in parts]),
    )


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    if dtype == torch.float32:
        return {"atol": 2e-6, "rtol": 2e-6}
    return {"atol": 2e-2, "rtol": 2e-2}  # a rounding may fall the other way, and is then squared


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_halves_of_a_layers_norms(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    attended, x, dense = draw(5, HIDDEN), draw(5, HIDDEN), draw(5, HIDDEN)
    norms = [(1 + 0.3 * draw(HIDDEN)).to(dtype) for _ in range(8)]
    into, out = EnterWeights(*norms[:4]), LeaveWeights(*norms[4:7])
    entered, wanted = (f(attended, x, into, EPS) for f in (enter, enter_reference))
    for name in ("total", "dense", "experts", "router"):
        found = getattr(entered, name)
        torch.testing.assert_close(found, getattr(wanted, name), **tolerance(dtype))
    routing = make_routing(5, RouteRule(4, 2), "cpu")
    sort_reference(torch.tensor([[0, 1], [2, 1], [3, 0], [1, 2], [3, 1]]), routing)
    routing.weights.copy_(torch.rand(5, 2))
    by_pair, scalar = torch.randn(10, HIDDEN), torch.tensor([0.6]).to(dtype)
    pairs = by_pair[routing.pair_place.long()]
    routed = (pairs * routing.weights.unsqueeze(-1)).sum(1).to(dtype)
    rest = (wanted.total, out, scalar, norms[7], EPS)
    for found, reference in zip(
        leave(dense, by_pair, routing, *rest), leave_reference(dense, routed, *rest), strict=True
    ):
        torch.testing.assert_close(found, reference, **tolerance(dtype))


def test_gelu_times_another_matrix() -> None:
    gate_up = torch.cat((torch.linspace(-8, 8, 96).view(2, 48), torch.randn(2, 48)), dim=1)
    out = torch.empty(2, 48)
    gelu_mul(gate_up, out)
    torch.testing.assert_close(out, gelu_mul_reference(gate_up), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_experts_are_chosen_by_softmax_and_sorted(top_k: int) -> None:
    torch.manual_seed(1)
    logits, scale = torch.randn(21, 16) * 3, 1 + 0.2 * torch.randn(16)
    logits[0, 3] = logits[0, 9]  # the lower expert wins
    routing, wanted = (make_routing(21, RouteRule(16, top_k), "cpu") for _ in range(2))
    routing.finished.fill_(5)
    softmax_route(logits, scale, routing)
    ids, weights = softmax_route_reference(logits, scale, top_k)
    assert torch.equal(routing.ids.long(), ids)
    torch.testing.assert_close(routing.weights, weights)
    sort_reference(ids, wanted)
    for name in ("slots", "active", "pair_token", "pair_place"):
        found, expected = getattr(routing, name), getattr(wanted, name)
        count = int(wanted.active) if name == "slots" else len(expected)
        assert torch.equal(found[:count], expected[:count]), name
    assert not routing.finished.any()  # which the CUDA experts count up


def test_a_number_of_experts_that_sorting_does_not_take_is_refused() -> None:
    routing = make_routing(2, RouteRule(6, 2), "cpu")
    with pytest.raises(ValueError, match="6 experts"):
        softmax_route(torch.randn(2, 6), torch.ones(6), routing)


@pytest.mark.parametrize("dense", [False, True])
def test_expert_kernels_with_gelu(dense: bool) -> None:
    torch.manual_seed(2)
    shapes = ((48, 64), (48, 64), (64, 48))
    gate, up, down = (packed(4, *shape) for shape in shapes)
    experts = Experts(4, 64, 48, gelu_tanh)
    wide = [dequantize(part, torch.float32) for part in (gate, up, down)]
    experts.gate, experts.up, experts.down = (torch.nn.Parameter(w) for w in wide)
    x = torch.randn(9, 64)
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(9)])
    weights = torch.rand(9, 2)
    routing = make_routing(9, RouteRule(4, 2), "cpu")
    sort_reference(ids, routing)
    act, out = torch.empty(18, 48), torch.empty(18, 64)
    if dense:
        grouped_dense_experts(x, *wide, routing, act, out, gelu=True)
    else:
        grouped_experts(x, gate, up, down, routing, act, out, gelu=True)
    found = (out[routing.pair_place.long()] * weights.unsqueeze(-1)).sum(1)
    torch.testing.assert_close(found, experts(x, ids, weights), atol=1e-5, rtol=1e-4)


def test_the_cuda_experts_run_on_the_cpu_with_gelu(tmp_path: Path) -> None:
    """Two slices of columns, and about 20 tokens an expert: more than are taken at once."""
    torch.manual_seed(1)
    hidden, inter, tokens, experts, top_k = 576, 64, 30, 3, 2
    defines: dict[str, int | str] = {"HIDDEN": hidden, "INTER": inter, "CHUNKS": 2, "GELU": 1}
    library = build(tmp_path, "experts.cpp", defines | {"GROUPS": 2, "STAGES": 5})
    shapes = ((inter, hidden), (inter, hidden), (hidden, inter))
    gate, up, down = (packed(experts, *shape) for shape in shapes)
    fragments = pack_experts(gate, up, down)
    routing = make_routing(tokens, RouteRule(experts, top_k), "cpu")
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    sort_reference(ids, routing)
    x = torch.randn(tokens, hidden).bfloat16()
    wide = [dequantize(part, torch.float64) for part in (gate, up, down)]
    expert_of = ids.flatten()[routing.pair_place.flatten().argsort()]
    rows = x.double()[routing.pair_token.long()]
    for version in ("run_direct", "run_ring"):
        act = torch.full((tokens * top_k, inter), float("nan"), dtype=torch.bfloat16)
        out = torch.full((tokens * top_k, hidden), float("nan"))
        routing.finished.zero_()
        lists = (routing.slots, routing.active, routing.pair_token, routing.finished, act, out)
        weights = (fragments.gate_up, fragments.down, fragments.gate_up_scale, fragments.down_scale)
        call(library, version, *weights, x.view(torch.int16), *lists, experts, 3)
        for e in range(experts):
            mine = expert_of == e
            inner = gelu_tanh(rows[mine] @ wide[0][e].T) * (rows[mine] @ wide[1][e].T)
            torch.testing.assert_close(act[mine].double(), inner, rtol=2**-7, atol=1e-4)
            product = act[mine].double() @ wide[2][e].T
            assert (out[mine].double() - product).norm() / product.norm() < 1e-6


# --- a whole model ----------------------------------------------------------------------------


def attention_of(model: DiffusionGemma) -> TritonCanvasAttention:
    kinds = (model.spec.sliding, model.spec.full)
    return TritonCanvasAttention({k.window: inverse_of(k, torch.device("cpu")) for k in kinds})


@pytest.mark.parametrize("heads", [(4, 2, 1), (6, 2, 2)])
def test_the_attention_kernel_sees_and_keeps_what_plain_torch_does(
    heads: tuple[int, int, int],
) -> None:
    """Prefixes shorter and longer than the window, in pieces, padded, in a ring that wraps. heads:
    of queries, of keys in both kinds of layers; a group of 3 is padded to 4."""
    names = ("num_attention_heads", "num_key_value_heads", "num_global_key_value_heads")
    model = gemma_model(**SIZES, **dict(zip(names, heads, strict=True)))
    plain, fast = (Passes(model, chunk=11, capacity=64) for _ in range(2))
    fast.cache.compute = attention_of(model)
    draw = torch.Generator().manual_seed(4)
    ids = torch.randint(0, model.spec.vocab_size, (60,), generator=draw)
    start = 0
    for size, ends in ((3, None), (11, None), (11, None), (7, 28)):
        found, wanted = (p.encode(ids[start : start + size], start, ends) for p in (fast, plain))
        real = size if ends is None else ends - start
        torch.testing.assert_close(found[:real], wanted[:real], atol=2e-5, rtol=1e-4)
        start = start + size if ends is None else ends
        said = [p.decode(ids[start : start + 8], start) for p in (fast, plain)]
        torch.testing.assert_close(said[0], said[1], atol=1e-4, rtol=1e-4)
    for layer in range(model.spec.num_layers):
        kept = zip(fast.cache.of(layer), plain.cache.of(layer), strict=True)
        for found, wanted in kept:  # but for the spare slot, which holds anything
            torch.testing.assert_close(found[:, :, :-1], wanted[:, :, :-1], atol=1e-5, rtol=1e-4)


def test_plans_fit_a_cards_shared_memory_and_keep_it_busy() -> None:
    for dim, kv_heads in ((256, 8), (512, 2)):
        for length in (256, 1024):
            for limit in (99 * 1024, 227 * 1024):
                plan = choose_plan((1, length, 16, dim), kv_heads, limit)
                rows = plan.tokens * 16 // kv_heads
                assert rows >= 16
                used = 2 * rows * dim + plan.stages * 4 * plan.columns * dim
                assert used <= limit or plan.stages == 1
                tiles = kv_heads * length // plan.tokens
                assert tiles * plan.splits >= 512
    assert choose_plan((1, 1024, 16, 512), 2, 227 * 1024).splits == 1


@pytest.mark.parametrize("form", ["packed", "dense"])
def test_a_model_with_kernels_says_what_plain_torch_says(form: str) -> None:
    plain = gemma_model(**SIZES, seed=3)
    if form == "packed":
        for layer in plain.layers:
            experts = layer.experts
            parts = (experts.gate, experts.up, experts.down)
            experts.pack(*(packed_of(part) for part in parts))
    fast = copy.deepcopy(plain)
    report = use_kernels(fast, interpret=True)
    assert report.used
    assert all(layer.compute is not None for layer in fast.layers)
    assert all(layer.self_attn.compute is not None for layer in fast.layers)
    assert ("NVFP4 experts" in " ".join(report.sentences)) == (form == "packed")
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(0, plain.spec.vocab_size, (27,), generator=draw)
    before = torch.randn(8, plain.spec.vocab_size, generator=draw)
    said = []
    for model in (plain, fast):
        passes = Passes(model)
        if model is fast:
            passes.cache.compute = attention_of(model)
        hidden = passes.encode(ids[:19])
        said.append((hidden, passes.decode(ids[19:], 19), passes.decode(ids[19:], 19, before)))
    for found, wanted in zip(said[1], said[0], strict=True):
        torch.testing.assert_close(found, wanted, atol=3e-4, rtol=1e-3)


def packed_of(stack: Tensor) -> PackedExperts:
    parts = [quantize(matrix) for matrix in stack]
    return PackedExperts(
        torch.stack([part.codes for part in parts]),
        torch.stack([part.scales for part in parts]),
        torch.stack([part.global_scale for part in parts]),
    )


def test_a_reply_with_attention_kernels_has_the_ids_of_one_without() -> None:
    model = gemma_model(**SIZES)
    settings = with_noise(replace(model.spec.defaults, steps=2, seed=3), entropy_bound=2.0)
    found = []
    for kernel in (False, True):
        runtime = eager(model, exact=False)
        program = runtime.pieces.program
        assert isinstance(program, SelfConditionedProgram)
        if kernel:
            program.canvas_cache.compute = attention_of(model)
        row = request(model, [3, 1, 4, 1, 5, 9, 2], 16, settings, stops=[-1])
        reply(runtime, row)
        found.append((row.ids, row.forwards, row.commits))
    assert found[0] == found[1]


def test_fewer_digits_are_not_for_the_router() -> None:
    """Nor for routed experts, which are no linear layers, nor the head, which is the embedding."""
    model = gemma_model(**SIZES)
    names = {id(module): name for name, module in model.named_modules()}
    reduced = {names[id(layer)] for layer in reduced_layers(model)}
    assert not any("router" in name for name in reduced)
    assert {"layers.0.self_attn.k_proj", "self_conditioning.gate_proj"} <= reduced


# --- judging ----------------------------------------------------------------------------------


def test_a_soft_cap_at_a_temperature_in_one_pass() -> None:
    raw = torch.cat((torch.linspace(-200, 200, 5000), torch.tensor([float("nan"), 0.0])))
    raw, heat = raw.expand(2, 3, -1).contiguous().bfloat16(), torch.tensor([[0.8], [0.41]])
    out = torch.empty(raw.shape)
    temper(raw, heat, 30.0, out)
    wanted = temper_reference(raw, heat, 30.0)
    torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_softmax_of_rounded_scores(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    scores = torch.randn(3, 9001) * 6
    scores[1, :5000] = float("-inf")
    out = torch.empty(scores.shape, dtype=dtype)
    rounded_softmax(scores, out)
    limits = {"atol": 1e-8, "rtol": 2e-5 if dtype == torch.float32 else 2**-10}
    torch.testing.assert_close(out, rounded_softmax_reference(scores, dtype), **limits)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_replies_judged_by_kernels_take_the_same_steps(temperature: float) -> None:
    model = gemma_model(**SIZES, seed=1)
    spec = model.spec
    settings = replace(spec.defaults, steps=3, seed=5, temperature=temperature)
    settings = with_noise(settings, entropy_bound=1.5)
    found, shown = [], []
    for kernels in (False, True):
        runtime = eager(model, exact=False, batch=2)
        program = runtime.pieces.program
        assert isinstance(program, SelfConditionedProgram)
        if kernels:
            shape = (2, spec.block_length, spec.vocab_size)
            program.judge = CanvasJudge(*shape, spec.softcap, model.embedding)
        rows = [request(model, [3, 1, 4], 16, settings, stops=[-1]) for _ in range(2)]
        rows[1].prompt = [7] * 9
        marks = reply(runtime, *rows)
        steps = [mark.step_taken for mark in marks]
        found.append([(row.ids, row.forwards) for row in rows])
        found[-1] += [(step.ids.tolist(), step.state.tolist()) for step in steps if step]
        shown.append(torch.stack([torch.tensor(s.entropy) for s in steps if s]))
    assert found[0] == found[1]
    torch.testing.assert_close(shown[0], shown[1], atol=2e-3, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy speaks of the NaN
def test_logits_that_are_not_finite_end_a_reply_judged_by_kernels() -> None:
    model = gemma_model(**SIZES)
    model.norm.weight.data[0] = float("nan")
    runtime = eager(model)
    program = runtime.pieces.program
    assert isinstance(program, SelfConditionedProgram)
    spec = model.spec
    shape = (1, spec.block_length, spec.vocab_size)
    program.judge = CanvasJudge(*shape, spec.softcap, model.embedding)
    row = request(model, [3, 1, 4], 8, spec.defaults)
    with pytest.raises(RuntimeFailure) as caught:
        reply(runtime, row)
    assert caught.value.code == "runtime.nonfinite"
