"""The portable expert kernels and the weighted sum against their torch references."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.moe import (
    GroupedTiling,
    combine,
    combine_reference,
    experts_reference,
    grouped_experts,
    silu_mul,
)
from engine.kernels.nvfp4 import PackedExperts, quantize
from engine.kernels.routing import RouteRule, make_routing, sort_reference
from engine.models.layers import RMSNorm

TILING = GroupedTiling(tokens=16, rows=32, columns=64)


def quantized(experts: int, rows: int, columns: int) -> PackedExperts:
    parts = [quantize(torch.randn(rows, columns) * 0.1) for _ in range(experts)]
    return PackedExperts(
        torch.stack([p.codes for p in parts]),
        torch.stack([p.scales for p in parts]),
        torch.stack([p.global_scale for p in parts]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("hidden", "inter", "tokens"), [(128, 64, 5), (80, 48, 40)])
def test_grouped_experts_give_each_chosen_experts_output(
    dtype: torch.dtype, hidden: int, inter: int, tokens: int
) -> None:
    torch.manual_seed(0)
    rule = RouteRule(4, 2)
    gate, up, down = (
        quantized(4, inter, hidden),
        quantized(4, inter, hidden),
        quantized(4, hidden, inter),
    )
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(tokens)])
    routing = make_routing(tokens, rule, "cpu")
    sort_reference(ids, routing)
    x = torch.randn(tokens, hidden).to(dtype)
    act = torch.full((tokens * 2, inter), float("nan"), dtype=dtype)
    out = torch.full((tokens * 2, hidden), float("nan"))
    grouped_experts(x, gate, up, down, routing, act, out, TILING)
    got = out[routing.pair_place.long()].double()
    want = experts_reference(x.double(), ids, gate, up, down)
    error = (got - want).norm() / want.norm()
    assert error < (1e-6 if dtype == torch.float32 else 1e-3), float(error)


def test_experts_without_tokens_are_left_alone() -> None:
    """All tokens go to experts 1 and 3 of 4: two slots are active and every pair is written."""
    torch.manual_seed(0)
    routing = make_routing(3, RouteRule(4, 2), "cpu")
    ids = torch.tensor([[1, 3]] * 3)
    sort_reference(ids, routing)
    assert routing.slots[:2, 0].tolist() == [1, 3]
    gate, up, down = quantized(4, 32, 64), quantized(4, 32, 64), quantized(4, 64, 32)
    act, out = torch.full((6, 32), float("nan")), torch.full((6, 64), float("nan"))
    grouped_experts(torch.randn(3, 64), gate, up, down, routing, act, out, TILING)
    assert bool(torch.isfinite(out).all())


@pytest.mark.parametrize("with_shared", [True, False])
def test_combine_sums_in_slot_order_and_norms_the_rounded_sum(with_shared: bool) -> None:
    torch.manual_seed(0)
    tokens, top_k, hidden = 4, 3, 48
    routing = make_routing(tokens, RouteRule(8, top_k), "cpu")
    ids = torch.stack([torch.randperm(8)[:top_k] for _ in range(tokens)])
    sort_reference(ids, routing)
    routing.weights.copy_(torch.rand(tokens, top_k))
    by_pair = torch.randn(tokens * top_k, hidden)
    residual, shared = torch.randn(tokens, hidden).half(), torch.randn(tokens, hidden).half()
    norm = RMSNorm(hidden, 1e-5).half()
    norm.weight.data.normal_()
    want = combine_reference(
        by_pair[routing.pair_place.long()],
        routing.weights,
        shared if with_shared else None,
        residual,
    )
    out, normed = torch.empty_like(residual), torch.empty_like(residual)
    combine(
        by_pair, routing, shared if with_shared else None, residual, out, norm.weight, normed, 1e-5
    )
    torch.testing.assert_close(out, want, rtol=2**-10, atol=1e-6)
    torch.testing.assert_close(normed, norm(out), rtol=2**-9, atol=1e-6)


def test_combine_may_write_over_the_residual() -> None:
    torch.manual_seed(0)
    routing = make_routing(2, RouteRule(4, 2), "cpu")
    sort_reference(torch.tensor([[0, 1], [2, 0]]), routing)
    routing.weights.fill_(0.5)
    by_pair, residual = torch.randn(4, 32), torch.randn(2, 32)
    want = combine_reference(by_pair[routing.pair_place.long()], routing.weights, None, residual)
    combine(by_pair, routing, None, residual, residual)
    torch.testing.assert_close(residual, want)


def test_silu_mul_is_the_shared_experts_middle() -> None:
    torch.manual_seed(0)
    gate_up, out = torch.randn(3, 96), torch.empty(3, 48)
    silu_mul(gate_up, out)
    want = torch.nn.functional.silu(gate_up[:, :48]) * gate_up[:, 48:]
    torch.testing.assert_close(out, want)
