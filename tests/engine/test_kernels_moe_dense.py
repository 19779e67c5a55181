"""The grouped products of dense experts against their torch reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.moe_dense import DenseTiling, experts_dense_reference, grouped_dense_experts
from engine.kernels.routing import RouteRule, make_routing, sort_reference

TILING = DenseTiling(tokens=16, rows=32, columns=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("hidden", "inter", "tokens"), [(128, 64, 5), (80, 48, 40)])
def test_grouped_dense_experts_give_each_chosen_experts_output(
    dtype: torch.dtype, hidden: int, inter: int, tokens: int
) -> None:
    torch.manual_seed(0)
    gate, up, down = (
        (torch.randn(4, *shape) * 0.1).to(dtype)
        for shape in ((inter, hidden), (inter, hidden), (hidden, inter))
    )
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(tokens)])
    routing = make_routing(tokens, RouteRule(4, 2), "cpu")
    sort_reference(ids, routing)
    x = torch.randn(tokens, hidden).to(dtype)
    act = torch.full((tokens * 2, inter), float("nan"), dtype=dtype)
    out = torch.full((tokens * 2, hidden), float("nan"))
    grouped_dense_experts(x, gate, up, down, routing, act, out, TILING)
    got = out[routing.pair_place.long()].double()
    want = experts_dense_reference(x.double(), ids, gate.double(), up.double(), down.double())
    error = (got - want).norm() / want.norm()
    assert error < (1e-6 if dtype == torch.float32 else 1e-3), float(error)
