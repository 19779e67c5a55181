"""RMSNorm and QK-norm + RoPE kernels against their references, and those against the backbone's own
layers."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.qk_rope import qk_rope, qk_rope_reference
from engine.kernels.rmsnorm import add_rmsnorm, add_rmsnorm_reference
from engine.models.layers import RMSNorm, apply_rotary, rotary_tables


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("with_residual", [True, False])
def test_add_rmsnorm_gives_the_sum_and_its_norm(dtype: torch.dtype, with_residual: bool) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(5, 80).to(dtype), torch.randn(5, 80).to(dtype)
    norm = RMSNorm(80, 1e-6).to(dtype)
    norm.weight.data.normal_()
    before = residual if with_residual else None
    want_total, want = add_rmsnorm_reference(x, before, norm.weight, 1e-6)
    torch.testing.assert_close(want, norm(want_total), rtol=0, atol=0)
    total, normed = torch.empty_like(x), torch.empty_like(x)
    add_rmsnorm(x, before, norm.weight, 1e-6, total, normed)
    if with_residual:
        assert torch.equal(total, want_total)
    torch.testing.assert_close(
        normed, want, rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=1e-6
    )


def test_add_rmsnorm_may_write_over_the_residual() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(2, 32), torch.randn(2, 32), torch.ones(32)
    want, _ = add_rmsnorm_reference(x, residual, weight, 1e-6)
    add_rmsnorm(x, residual, weight, 1e-6, residual, torch.empty_like(x))
    assert torch.equal(residual, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("norm", [True, False])
def test_qk_rope_writes_queries_and_cache_at_their_positions(
    dtype: torch.dtype, norm: bool
) -> None:
    torch.manual_seed(0)
    batch, length, q_heads, kv_heads, dim, rotary, capacity = 2, 3, 4, 2, 32, 16, 24
    qkv = torch.randn(batch, length, (q_heads + 2 * kv_heads) * dim).to(dtype)
    weights = (torch.randn(dim).to(dtype), torch.randn(dim).to(dtype)) if norm else (None, None)
    cos, sin = rotary_tables(torch.arange(capacity).unsqueeze(0), rotary, 1e4, torch.float32)
    cos, sin = cos[0, :, 0, : rotary // 2].contiguous(), sin[0, :, 0, : rotary // 2].contiguous()
    start = torch.tensor([4, 19], dtype=torch.int32)
    caches = [torch.zeros(batch, kv_heads, capacity, dim, dtype=dtype) for _ in range(4)]
    want = qk_rope_reference(qkv, *weights, 1e-6, cos, sin, start, caches[0], caches[1])
    q = torch.full_like(want, float("nan"))
    qk_rope(qkv, *weights, 1e-6, cos, sin, start, caches[2], caches[3], q)
    tolerance = (
        {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-5}
    )
    torch.testing.assert_close(q, want, **tolerance)
    torch.testing.assert_close(caches[2], caches[0], **tolerance)
    assert torch.equal(caches[3], caches[1])
    assert int((caches[3] != 0).any(-1).sum()) == batch * length * kv_heads


def test_the_qk_rope_reference_is_the_backbones_own_maths() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(1, 4, 6 * 16)
    norms = [RMSNorm(16, 1e-6) for _ in range(2)]
    for norm in norms:
        norm.weight.data.normal_()
    positions = torch.arange(8, 12).unsqueeze(0)
    cos, sin = rotary_tables(torch.arange(16).unsqueeze(0), 8, 1e4, torch.float32)
    caches = [torch.zeros(1, 2, 16, 16) for _ in range(2)]
    weights = (norms[0].weight.detach(), norms[1].weight.detach())
    tables = (cos[0, :, 0, :4], sin[0, :, 0, :4])
    q = qk_rope_reference(qkv, *weights, 1e-6, *tables, torch.tensor([8]), *caches)
    heads = qkv.view(1, 4, 6, 16)
    rotary = rotary_tables(positions, 8, 1e4, torch.float32)
    torch.testing.assert_close(q, apply_rotary(norms[0](heads[:, :, :2]), *rotary))
    keys = apply_rotary(norms[1](heads[:, :, 2:4]), *rotary)
    torch.testing.assert_close(caches[0][:, :, 8:12].transpose(1, 2), keys)


def test_positions_past_the_capacity_are_not_written() -> None:
    qkv = torch.randn(1, 2, 3 * 16)
    caches = [torch.zeros(1, 1, 4, 16) for _ in range(2)]
    tables = torch.ones(4, 4), torch.zeros(4, 4)
    q = torch.empty(1, 2, 1, 16)
    qk_rope(qkv, None, None, 1e-6, *tables, torch.tensor([3]), *caches, q)
    assert int((caches[1] != 0).any(-1).sum()) == 1
    assert bool(torch.isfinite(q).all())
