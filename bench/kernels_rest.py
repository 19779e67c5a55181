"""Everything but the experts, at LLaDA2.1-mini's shape: read bandwidth, attention, norms, rotary,
head and sampler, NVFP4 linears; each right against float64 (or the torch reference) first, then
timed.

Knows the shapes and the tilings worth comparing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from kernels_measure import Recorder
from torch import Tensor

from engine.kernels.attention import (
    AttentionPlan,
    AttentionWorkspace,
    attention_reference,
    block_attention,
    make_workspace,
)
from engine.kernels.linear_nvfp4 import LinearTiling, linear
from engine.kernels.nvfp4 import PackedWeight, dequantize
from engine.kernels.qk_rope import qk_rope, qk_rope_reference
from engine.kernels.rmsnorm import add_rmsnorm, add_rmsnorm_reference
from engine.kernels.sampler import (
    HeadPlan,
    RowInputs,
    judge_head,
    judge_logits,
    make_sampler_workspace,
    make_verdict,
)

HIDDEN, HEADS, KV_HEADS, DIM, VOCAB, BLOCK, LAYERS = 2048, 16, 4, 128, 157184, 32, 20
CAPACITY, CONTEXT, MASK = 2048, 1024, 156895

ATTENTION_PLANS = {
    "4 heads, 8 splits": AttentionPlan(),
    "4 heads, 16 splits": AttentionPlan(splits=16),
    "4 heads, 8 splits, two launches": AttentionPlan(one_launch=False),
    "1 head, 4 splits": AttentionPlan(heads=1, splits=4, warps=4),
    "1 head, 8 splits": AttentionPlan(heads=1, splits=8, warps=4),
    "2 heads, 8 splits": AttentionPlan(heads=2, splits=8, warps=4),
}
HEAD_PLANS = {
    "128x128, 4 stages": HeadPlan(),
    "128x64, 6 stages, 4 warps": HeadPlan(columns=64, stages=6, warps=4),
    "64x128, 4 stages, 4 warps": HeadPlan(vocab=64, stages=4, warps=4),
    "256x64, 4 stages": HeadPlan(vocab=256, columns=64, stages=4),
}


@triton.jit
def _read_kernel(data, out, STEPS: tl.constexpr, WIDTH: tl.constexpr):
    """Sums STEPS x WIDTH words and writes one."""
    base = data + tl.program_id(0).to(tl.int64) * (STEPS * WIDTH)
    lane = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.int32)
    for step in range(STEPS):
        total += tl.load(base + step * WIDTH + lane)
    tl.store(out + tl.program_id(0), tl.sum(total, axis=0))


def bandwidth(recorder: Recorder) -> None:
    """The ceiling of everything below: reading 4 GiB once, and copying it."""
    words = 1 << 30
    data = torch.randint(0, 1 << 20, (words,), dtype=torch.int32, device="cuda")
    for steps, width in ((16, 2048), (8, 4096)):
        programs = words // (steps * width)
        out = torch.empty(programs, dtype=torch.int32, device="cuda")

        def read(steps: int = steps, width: int = width, out: Tensor = out) -> None:
            _read_kernel[(len(out),)](data, out, STEPS=steps, WIDTH=width, num_warps=8)

        recorder.time(f"read 4 GiB, {steps} x {width} words", read, 4.0 * words)
    half = words // 2
    recorder.time("copy 2 GiB", lambda: data[half:].copy_(data[:half]), 4.0 * words)


def attention_case(length: int, plan: AttentionPlan, layers: int) -> tuple[Tensor, ...]:
    q = torch.randn(1, length, HEADS, DIM, device="cuda").bfloat16()
    keys, values = (
        torch.randn(layers, 1, KV_HEADS, CAPACITY, DIM, device="cuda").bfloat16() for _ in range(2)
    )
    start = torch.tensor([CONTEXT], dtype=torch.int64, device="cuda")
    return q, keys, values, start, torch.full_like(q, float("nan"))


def check_attention(recorder: Recorder, name: str, plan: AttentionPlan, length: int) -> None:
    """At three starts with the same buffers: the length is read on the device."""
    q, keys, values, start, out = attention_case(length, plan, 1)
    workspace = make_workspace(1, length, HEADS, DIM, plan, "cuda")
    for first in (CONTEXT, 0, 160):
        start.fill_(first)
        block_attention(q, keys[0], values[0], start, BLOCK, out, workspace, plan)
        wide = (t.double() for t in (q, keys[0], values[0]))
        want = attention_reference(*wide, start, BLOCK)
        recorder.check(f"{name} start={first}", out, want, 5e-3)
    recorder.check_equal(f"{name} tickets", workspace.tickets, torch.zeros_like(workspace.tickets))


def time_attention(recorder: Recorder, name: str, plan: AttentionPlan, length: int) -> None:
    q, keys, values, start, out = attention_case(length, plan, LAYERS)
    workspace: AttentionWorkspace = make_workspace(1, length, HEADS, DIM, plan, "cuda")

    def work() -> None:
        for layer in range(LAYERS):
            block_attention(q, keys[layer], values[layer], start, BLOCK, out, workspace, plan)

    moved = LAYERS * 2.0 * KV_HEADS * (CONTEXT + length) * DIM * 2
    recorder.time(f"{name}, {LAYERS} layers", work, moved)


def attention(recorder: Recorder) -> None:
    for length in (32, 64, 256):
        for label, plan in ATTENTION_PLANS.items():
            name = f"attention {label} T={length}"
            recorder.attempt(name, partial(check_attention, recorder, name, plan, length))
            recorder.attempt(name, partial(time_attention, recorder, name, plan, length))


def norms(recorder: Recorder) -> None:
    x, residual = (torch.randn(32, HIDDEN, device="cuda").bfloat16() for _ in range(2))
    weight = torch.randn(HIDDEN, device="cuda").bfloat16()
    total, normed = torch.empty_like(x), torch.empty_like(x)
    add_rmsnorm(x, residual, weight, 1e-6, total, normed)
    want_total, want = add_rmsnorm_reference(x, residual, weight, 1e-6)
    recorder.check_equal("add_rmsnorm total", total, want_total)
    recorder.check("add_rmsnorm normed", normed, want, 1e-3)

    def norm_work() -> None:
        for _ in range(LAYERS):
            add_rmsnorm(x, residual, weight, 1e-6, total, normed)

    recorder.time(f"add_rmsnorm T=32, {LAYERS} times", norm_work)
    qkv = torch.randn(1, 32, (HEADS + 2 * KV_HEADS) * DIM, device="cuda").bfloat16()
    weights = [torch.randn(DIM, device="cuda").bfloat16() for _ in range(2)]
    angle = torch.arange(CAPACITY, device="cuda").unsqueeze(1) * 600000 ** (
        -torch.arange(32, device="cuda") / 32
    )
    cos, sin = angle.cos(), angle.sin()
    start = torch.tensor([CONTEXT], device="cuda")
    caches = [
        torch.zeros(1, KV_HEADS, CAPACITY, DIM, dtype=torch.bfloat16, device="cuda")
        for _ in range(4)
    ]
    q = torch.full((1, 32, HEADS, DIM), float("nan"), dtype=torch.bfloat16, device="cuda")
    want = qk_rope_reference(qkv, *weights, 1e-6, cos, sin, start, caches[0], caches[1])

    def rope_work() -> None:
        for _ in range(LAYERS):
            qk_rope(qkv, *weights, 1e-6, cos, sin, start, caches[2], caches[3], q)

    rope_work()
    recorder.check("qk_rope q", q, want, 3e-3)
    recorder.check("qk_rope keys", caches[2], caches[0], 3e-3)
    recorder.check_equal("qk_rope values", caches[3], caches[1])
    recorder.time(f"qk_rope T=32, {LAYERS} times", rope_work)


def head_inputs(temperature: float) -> RowInputs:
    one = torch.ones(1, dtype=torch.int64, device="cuda")
    return RowInputs(
        temperature=torch.full((1,), temperature, device="cuda"),
        seed=one * 7,
        start=one * CONTEXT,
        step=one * 3,
        asked=torch.arange(32, device="cuda").unsqueeze(0) * 4001,
        banned=torch.full((1, 32, 1), MASK, dtype=torch.int32, device="cuda"),
    )


def check_head(
    recorder: Recorder, name: str, plan: HeadPlan, hidden: Tensor, weight: Tensor
) -> None:
    logits = hidden.float() @ weight.float().T
    logits[:, MASK] = float("-inf")
    norm = logits.double().logsumexp(-1)
    probabilities = (logits.double() - norm.unsqueeze(-1)).exp()
    for temperature, top in ((0.0, 0), (1.0, 16)):
        verdict = make_verdict(32, top, "cuda")
        workspace = make_sampler_workspace(32, VOCAB, top, temperature > 0, plan, "cuda")
        judge_head(hidden, weight, head_inputs(temperature), verdict, workspace, plan)
        label = f"{name} t={temperature:.0f}"
        recorder.check_equal(f"{label} greedy", verdict.greedy.long(), logits.argmax(-1))
        recorder.check(f"{label} log_norm", verdict.log_norm, norm, 1e-6)
        plain = torch.where(probabilities > 0, probabilities * probabilities.log(), 0.0)
        recorder.check(f"{label} entropy", verdict.entropy, -plain.sum(-1), 1e-4)
        chosen = verdict.proposal.long().unsqueeze(1)
        sure = probabilities.gather(1, chosen).squeeze(1)
        recorder.check(f"{label} confidence", verdict.confidence, sure, 1e-4)
        asked = head_inputs(0.0).asked.view(-1, 1)
        recorder.check(
            f"{label} asked", verdict.asked, probabilities.gather(1, asked).squeeze(1), 1e-4
        )
        if top:
            values, _ = probabilities.topk(top, dim=-1)
            recorder.check(f"{label} top {top}", verdict.top_prob, values, 1e-4)


def head(recorder: Recorder) -> None:
    hidden = torch.randn(32, HIDDEN, device="cuda").bfloat16()
    weight = (torch.randn(VOCAB, HIDDEN, device="cuda") * 0.05).bfloat16()
    moved = 2.0 * VOCAB * HIDDEN
    verdict, most = make_verdict(32, 0, "cuda"), make_verdict(32, 16, "cuda")
    for label, plan in HEAD_PLANS.items():
        name = f"head {label}"
        recorder.attempt(name, partial(check_head, recorder, name, plan, hidden, weight))
        workspace = make_sampler_workspace(32, VOCAB, 0, False, plan, "cuda")
        work = partial(judge_head, hidden, weight, head_inputs(0.0), verdict, workspace, plan)
        recorder.attempt(name, partial(recorder.time, name, work, moved))
    plan = HeadPlan()
    kept = make_sampler_workspace(32, VOCAB, 16, True, plan, "cuda")
    work = partial(judge_head, hidden, weight, head_inputs(1.0), verdict, kept, plan)
    recorder.attempt("kept", partial(recorder.time, "head, warm, logits kept", work, moved))
    work = partial(judge_head, hidden, weight, head_inputs(0.0), most, kept, plan)
    recorder.attempt("top", partial(recorder.time, "head, best 16", work, moved))
    recorder.time("head product alone (cuBLAS)", partial(F.linear, hidden, weight), moved)
    wide = HeadPlan(vocab=2048)
    workspace = make_sampler_workspace(32, VOCAB, 0, False, wide, "cuda")

    def in_two() -> None:
        logits = F.linear(hidden, weight)
        judge_logits(logits, head_inputs_static, verdict, workspace, wide)

    head_inputs_static = head_inputs(0.0)
    recorder.attempt("two", partial(recorder.time, "head by cuBLAS, then judged", in_two, moved))


def random_linear(rows: int, columns: int) -> PackedWeight:
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(32, 64, (rows, columns // 16), dtype=torch.uint8, device="cuda")
    return PackedWeight(codes, scales.view(torch.float8_e4m3fn), torch.tensor(0.01, device="cuda"))


def linears(recorder: Recorder) -> None:
    packed = [random_linear(3072, HIDDEN) for _ in range(LAYERS)]
    dense = [dequantize(w, torch.bfloat16) for w in packed]
    for tokens in (32, 64):
        x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        want = x.double() @ dequantize(packed[0], torch.float32).double().T
        recorder.check(f"linear nvfp4 T={tokens}", linear(x, packed[0]), want, 3e-3)
        moved = LAYERS * 3072 * HIDDEN * 9 / 16

        def work(tiling: LinearTiling, x: Tensor = x) -> None:
            for weight in packed:
                linear(x, weight, tiling=tiling)

        base = LinearTiling(tokens=tokens)
        for tiling in (base, replace(base, rows=16, columns=256), replace(base, rows=64)):
            name = f"linear nvfp4 {tiling.rows}x{tiling.columns} T={tokens}, {LAYERS} of 3072x2048"
            run_it = partial(work, tiling)
            recorder.attempt(name, partial(recorder.time, name, run_it, moved))

        def plain(x: Tensor = x) -> None:
            for weight in dense:
                F.linear(x, weight)

        name = f"linear bf16 cuBLAS T={tokens}, {LAYERS} of 3072x2048"
        recorder.time(name, plain, LAYERS * 2.0 * 3072 * HIDDEN)


def run(recorder: Recorder) -> None:
    for part in (bandwidth, norms, attention, head, linears):
        recorder.attempt(part.__name__, partial(part, recorder))
        torch.cuda.empty_cache()
