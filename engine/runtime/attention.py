"""The block attention kernel behind the cache's seam: its output and its workspace.

Knows which buffers a call needs; the maths is `engine.kernels.attention`. Needs Triton.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.kernels.attention import (
    AttentionPlan,
    AttentionWorkspace,
    block_attention,
    make_workspace,
)


class TritonAttention:
    """`BlockAttention` in one launch. Workspaces are made once per shape and kept, because their
    tickets must be zero between launches."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], tuple[AttentionPlan, AttentionWorkspace]] = {}

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, start: Tensor, block_length: int
    ) -> Tensor:
        q, out = q.contiguous(), torch.empty_like(q)
        key = (*q.shape, keys.shape[1])
        if key not in self._kept:
            self._kept[key] = self._make(q, keys.shape[1])
        plan, workspace = self._kept[key]
        block_attention(q, keys, values, start, block_length, out, workspace, plan)
        return out

    @staticmethod
    def _make(q: Tensor, kv_heads: int) -> tuple[AttentionPlan, AttentionWorkspace]:
        """As many heads of a group in one program as a power of two that divides it allows."""
        batch, length, heads, dim = q.shape
        group = heads // kv_heads
        plan = AttentionPlan()
        plan = replace(plan, heads=min(plan.heads, group & -group))
        return plan, make_workspace(batch, length, heads, dim, plan, q.device)
