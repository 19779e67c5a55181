"""The CUDA C++ attention, run on the CPU against its reference, and compiled where clusters are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cuda_emulator import build, call

from engine.kernels.attention import attention_reference
from engine.kernels.cuda_attention import (
    ClusterPlan,
    attention_defines,
    log2_scale,
    plan_clusters,
)
from engine.kernels.nvrtc import compile_cubin

BLOCK = 8
CASES = {
    # dim, group, length, starts, plan
    "keys split over warps and blocks": (64, 2, 16, (200, 0), ClusterPlan(16, 2, 2)),
    "more stages than buffers": (64, 1, 8, (520,), ClusterPlan(16, 1, 2)),
    "queries that do not fill a tile": (128, 1, 21, (24,), ClusterPlan(16, 2, 4)),
    "a start inside a block": (64, 1, 16, (43,), ClusterPlan(32, 1, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_queries_see_what_the_reference_lets_them_see(tmp_path: Path, name: str) -> None:
    torch.manual_seed(8)
    dim, group, length, starts, plan = CASES[name]
    kv_heads, capacity, batch = 2, 544, len(starts)
    library = build(
        tmp_path, "attention.cpp", attention_defines(dim, group, BLOCK, torch.int32, plan)
    )
    q = torch.randn(batch, length, kv_heads * group, dim).bfloat16()
    keys, values = (torch.randn(batch, kv_heads, capacity, dim).bfloat16() for _ in range(2))
    start = torch.tensor(starts, dtype=torch.int32)
    want = attention_reference(q.double(), keys.double(), values.double(), start, BLOCK)
    # What no query may see is poison: one NaN read would show.
    for row, first in enumerate(starts):
        end = first + length
        last = min(end, ((end - 1) // BLOCK + 1) * BLOCK)
        keys[row, :, last:] = float("nan")
        values[row, :, last:] = float("nan")
    out = torch.full_like(q, float("nan"))
    bits = (tensor.view(torch.int16) for tensor in (q, keys, values))
    scale = torch.tensor([log2_scale(dim)])
    call(library, "run_attention", *bits, start, out, scale, batch, length, q.shape[2], capacity)
    error = (out.double() - want).norm() / want.norm()
    assert error < 5e-3, float(error)
    worst = (out.double() - want).abs().amax()
    assert worst < 0.05, float(worst)


@pytest.mark.parametrize("length", [1, 16, 32, 33, 64, 256])
def test_plans_fit_shared_memory_and_cover_all_queries(length: int) -> None:
    plan = plan_clusters(length)
    assert plan.shared_bytes(128) <= 227 << 10
    assert plan.threads <= 512
    blocks, tiles = plan.grid(16, 2, length)
    assert blocks == 16 * plan.splits
    assert tiles * plan.tokens >= 2 * length


def test_heads_the_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(ValueError, match="heads of 64 or 128"):
        attention_defines(96, 1, 32, torch.int64, ClusterPlan())


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("length", [32, 64])
def test_the_source_compiles_where_clusters_are(architecture: str, length: int) -> None:
    defines = attention_defines(128, 4, 32, torch.int64, plan_clusters(length))
    assert compile_cubin("attention.cu", defines, architecture)
