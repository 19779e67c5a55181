"""The CUDA C++ product for few tokens: its plans, its packing, the kernel itself run on the CPU,
its source compiled for every architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cuda_emulator import build, call

from engine.kernels.cuda_linear import LinearPlan, LinearShape, linear_defines, plan_linear
from engine.kernels.fragments import pack_linear, unpack_linear
from engine.kernels.nvfp4 import dequantize, quantize
from engine.kernels.nvrtc import ARCHITECTURES, compile_cubin

SMALLEST_SHARED = 99 << 10  # of a block on the cards without clusters

PLANS = {
    "one pass in a cluster": (LinearShape(80, 256), LinearPlan(16, 2, 1, 2), 13),
    "padded columns, rows and passes": (LinearShape(48, 1160), LinearPlan(8, 2, 2, 1), 11),
    "activated, with logits": (
        LinearShape(96, 128, gated=True, logits=48),
        LinearPlan(8, 2, 2, 2),
        5,
    ),
}
PACKED_PLANS = {
    "a unit for each of a cluster": (LinearShape(64, 1024, packed=True), LinearPlan(8, 2, 1, 2), 9),
    "padded columns": (LinearShape(32, 208, packed=True), LinearPlan(16, 2, 1, 1), 16),
    "more units than warps, activated": (
        LinearShape(96, 1040, packed=True, gated=True),
        LinearPlan(8, 2, 2, 1),
        3,
    ),
}


def gated(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


@pytest.mark.parametrize("name", PLANS)
def test_bf16_weights_give_the_references_products(tmp_path: Path, name: str) -> None:
    torch.manual_seed(4)
    shape, plan, tokens = PLANS[name]
    library = build(tmp_path, "linear.cpp", linear_defines(shape, plan))
    weight = torch.randn(shape.size, shape.columns).bfloat16()
    second = torch.randn(max(shape.logits, 1), shape.columns).bfloat16()
    x = torch.randn(tokens, shape.columns).bfloat16()
    want = x.double() @ weight.double().T
    want = gated(want) if shape.gated else want
    out = torch.full(want.shape, float("nan"), dtype=torch.bfloat16)
    logits = torch.full((tokens, max(shape.logits, 1)), float("nan"))
    inputs = (weight.view(torch.int16), torch.empty(1), x.view(torch.int16))
    call(library, "run_linear", *inputs, tokens, out, second.view(torch.int16), logits)
    torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=2e-3)
    if shape.logits:
        exact = x.double() @ second.double().T
        torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", PACKED_PLANS)
def test_nvfp4_weights_give_the_references_products(tmp_path: Path, name: str) -> None:
    torch.manual_seed(5)
    shape, plan, tokens = PACKED_PLANS[name]
    library = build(tmp_path, "linear.cpp", linear_defines(shape, plan))
    parts = [quantize(torch.randn(shape.size // 2, shape.columns) * by) for by in (1.0, 3.0)]
    fragments = pack_linear(parts)
    x = torch.randn(tokens, shape.columns).bfloat16()
    weight = torch.cat([dequantize(part, torch.float64) for part in parts])
    want = x.double() @ weight.T
    want = gated(want) if shape.gated else want
    out = torch.full(want.shape, float("nan"), dtype=torch.bfloat16)
    inputs = (fragments.data, fragments.tile_scales, x.view(torch.int16))
    call(library, "run_linear", *inputs, tokens, out, x, torch.empty(1))
    torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=2e-3)


def test_a_tokens_result_does_not_depend_on_the_others(tmp_path: Path) -> None:
    torch.manual_seed(6)
    shape, plan, tokens = PLANS["one pass in a cluster"]
    library = build(tmp_path, "linear.cpp", linear_defines(shape, plan))
    weight = torch.randn(shape.size, shape.columns).bfloat16().view(torch.int16)
    x = torch.randn(tokens, shape.columns).bfloat16().view(torch.int16)
    together = torch.empty(tokens, shape.size, dtype=torch.bfloat16)
    alone = torch.empty(1, shape.size, dtype=torch.bfloat16)
    unused = torch.empty(1)
    call(library, "run_linear", weight, unused, x, tokens, together, weight, unused)
    call(library, "run_linear", weight, unused, x[7:8].contiguous(), 1, alone, weight, unused)
    assert torch.equal(alone[0], together[7])


def test_joined_matrices_survive_packing() -> None:
    torch.manual_seed(7)
    parts = [quantize(torch.randn(rows, 96)) for rows in (32, 16, 16)]
    fragments = pack_linear(parts)
    codes, scales = unpack_linear(fragments)
    assert torch.equal(codes, torch.cat([part.codes for part in parts]))
    want = torch.cat([part.scales.view(torch.uint8) for part in parts])
    assert torch.equal(scales.view(torch.uint8), want)
    assert fragments.tile_scales.tolist() == [float(parts[n].global_scale) for n in (0, 0, 1, 2)]


def test_matrices_that_do_not_fill_tiles_are_not_joined() -> None:
    with pytest.raises(ValueError, match="joined by 16 rows"):
        pack_linear([quantize(torch.randn(24, 64)), quantize(torch.randn(8, 64))])


@pytest.mark.parametrize("columns", [64, 160, 384, 512, 1024, 2048, 2560, 4096, 5120, 9728])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tokens", [1, 17, 32, 64, 2048])
def test_plans_cover_all_columns_and_fit_shared_memory(
    columns: int, packed: bool, tokens: int
) -> None:
    shape = LinearShape(128, columns, packed=packed, gated=True)
    for clusters, limit in ((True, 227 << 10), (False, SMALLEST_SHARED)):
        plan = plan_linear(shape, tokens, clusters)
        assert plan.shared_bytes(shape) <= limit
        assert plan.cluster == 1 or clusters
        assert plan.grid(shape, tokens)[1] * plan.tokens >= tokens
        assert plan.grid(shape, tokens)[0] % plan.cluster == 0
        assert linear_defines(shape, plan)["GATED"] == 1


def test_shapes_the_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(ValueError, match="does not take"):
        LinearShape(24, 64)
    with pytest.raises(ValueError, match="does not take"):
        LinearShape(32, 72, packed=True)
    with pytest.raises(ValueError, match="second matrix"):
        LinearShape(32, 64, packed=True, logits=16)
    with pytest.raises(ValueError, match="even number"):
        linear_defines(LinearShape(32, 64, gated=True), LinearPlan(8, 1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_source_compiles_for_every_architecture(architecture: str) -> None:
    clusters = architecture not in ("sm_80", "sm_89")
    for shape in (LinearShape(64, 512, packed=True), LinearShape(64, 256, gated=True, logits=32)):
        plan = plan_linear(shape, 16, clusters)
        assert compile_cubin("linear.cu", linear_defines(shape, plan), architecture)
