"""The attention kernels behind the cache's seam: QK-norm, RoPE and the cache's writes in one
launch, attention in another.

Knows which buffers a call needs and the rotary tables; the maths is `engine.kernels.qk_rope` and
`engine.kernels.attention`. Needs Triton.
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
from engine.kernels.qk_rope import qk_rope
from engine.models.layers import Heads, rotary_tables

FEW_TOKENS = 64  # up to here more, smaller programs keep the GPU busy (bench/LADDER.md)


class TritonAttention:
    """`BlockAttention` in two launches. Workspaces are made once per shape and kept, because their
    tickets must be zero between launches; rotary tables once per capacity.

    rotary_dim: leading head dimensions that RoPE turns, a power of two. theta: its base.
    """

    def __init__(self, rotary_dim: int, theta: float) -> None:
        self.rotary_dim, self.theta = rotary_dim, theta
        self._kept: dict[tuple[int, ...], tuple[AttentionPlan, AttentionWorkspace]] = {}
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, heads: Heads, keys: Tensor, values: Tensor, start: Tensor, block_length: int
    ) -> Tensor:
        batch, length, width = heads.qkv.shape
        dim = heads.head_dim
        q = heads.qkv.new_empty(batch, length, width // dim - 2 * heads.kv_heads, dim)
        cos, sin = self._rotary(keys.shape[2], keys.device)
        norms = (heads.q_norm, heads.k_norm)
        q_weight, k_weight = (None if norm is None else norm.weight for norm in norms)
        eps = 0.0 if heads.q_norm is None else heads.q_norm.eps
        qkv = heads.qkv.contiguous()
        qk_rope(qkv, q_weight, k_weight, eps, cos, sin, start, keys, values, q)
        out = torch.empty_like(q)
        plan, workspace = self._workspace(q, heads.kv_heads)
        block_attention(q, keys, values, start, block_length, out, workspace, plan)
        return out

    def _rotary(self, capacity: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """float32 [capacity, rotary_dim / 2] twice."""
        if capacity not in self._tables:
            positions = torch.arange(capacity, device=device).unsqueeze(0)
            cos, sin = rotary_tables(positions, self.rotary_dim, self.theta, torch.float32)
            half = self.rotary_dim // 2
            parts = (cos[0, :, 0, :half].contiguous(), sin[0, :, 0, :half].contiguous())
            self._tables[capacity] = parts
        return self._tables[capacity]

    def _workspace(self, q: Tensor, kv_heads: int) -> tuple[AttentionPlan, AttentionWorkspace]:
        """As many heads of a group in one program as a power of two that divides it allows."""
        key = (*q.shape, kv_heads)
        if key not in self._kept:
            batch, length, heads, dim = q.shape
            group = heads // kv_heads
            plan = AttentionPlan(heads=1 if batch * length <= FEW_TOKENS else 4)
            plan = replace(plan, heads=min(plan.heads, group & -group))
            self._kept[key] = (plan, make_workspace(batch, length, heads, dim, plan, q.device))
        return self._kept[key]
