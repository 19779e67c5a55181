"""Block attention over the cache against the reference, for every way of cutting the work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.kernels.attention import (
    AttentionPlan,
    attention_reference,
    block_attention,
    make_workspace,
)
from engine.models.layers import masked_attention

PLAN = AttentionPlan(tokens=16, heads=2, columns=16, splits=3)


def attend(
    plan: AttentionPlan,
    length: int,
    start: list[int],
    block_length: int,
    dtype: torch.dtype,
    q_heads: int = 4,
    kv_heads: int = 2,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(kernel, reference in float64). The cache past each row's keys holds NaN, which must not be
    read as a value."""
    torch.manual_seed(0)
    batch, dim, capacity = len(start), 16, 96
    q = torch.randn(batch, length, q_heads, dim).to(dtype)
    k, v = (torch.randn(batch, kv_heads, capacity, dim).to(dtype) for _ in range(2))
    where = torch.tensor(start, dtype=torch.int32)
    want = attention_reference(q.double(), k.double(), v.double(), where, block_length)
    for row, first in enumerate(start):
        k[row, :, first + length :] = float("nan")
        v[row, :, first + length :] = float("nan")
    out = torch.full_like(q, float("nan"))
    workspace = make_workspace(batch, length, q_heads, dim, plan, "cpu")
    block_attention(q, k, v, where, block_length, out, workspace, plan)
    assert int(workspace.tickets.abs().sum()) == 0
    return out.double(), want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, one_launch=False),
        replace(PLAN, splits=1),
        replace(PLAN, heads=1),
        replace(PLAN, splits=8, columns=32),
    ],
    ids=["merged", "two launches", "one split", "one head", "empty splits"],
)
def test_one_block_sees_all_keys_before_it_and_itself(
    plan: AttentionPlan, dtype: torch.dtype
) -> None:
    out, want = attend(plan, length=16, start=[32, 0], block_length=16, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-3
    torch.testing.assert_close(out, want, rtol=tolerance, atol=tolerance)


def test_two_blocks_in_one_forward_do_not_see_ahead() -> None:
    """The commit of a block rides with the next one's first step: its queries must not see the new
    block."""
    out, want = attend(PLAN, length=32, start=[16], block_length=16, dtype=torch.float32)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_blocks_smaller_than_a_tile_and_tiles_that_are_not_full() -> None:
    out, want = attend(PLAN, length=20, start=[40, 4], block_length=4, dtype=torch.float32)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_the_start_is_read_at_run_time() -> None:
    """Same buffers, another start: nothing of the first call is kept."""
    for start in (0, 16, 64):
        out, want = attend(PLAN, length=16, start=[start], block_length=16, dtype=torch.float32)
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_the_reference_is_masked_attention() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 8, 4, 16), torch.randn(1, 2, 24, 16), torch.randn(1, 2, 24, 16)
    got = attention_reference(q, k, v, torch.tensor([8]), 4)
    block = torch.arange(24) // 4
    mask = block.view(1, -1) <= block[8:16].view(-1, 1)
    seen = mask & (torch.arange(24) < 16)
    want = masked_attention(q, k.transpose(1, 2), v.transpose(1, 2), seen)
    torch.testing.assert_close(got, want)
