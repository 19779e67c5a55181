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
SPARE_SHARED = 8 << 10  # bytes of shared memory for all that is not keys and values


def plan_attention(
    tokens: int, group: int, dim: int, item_bytes: int, shared_limit: int
) -> AttentionPlan:
    """How the work is cut for `tokens` queries in all, `group` query heads a key head. As many
    heads of a group in one program as a power of two that divides it allows, as many pipeline
    stages as fit into shared_limit bytes of shared memory."""
    if tokens > FEW_TOKENS:
        return AttentionPlan(heads=min(4, group & -group))
    plan = AttentionPlan(
        tokens=16, heads=1, columns=128, splits=4 if tokens <= 32 else 2, warps=4, stages=3
    )
    while plan.stages * plan.columns * dim * 2 * item_bytes > shared_limit - SPARE_SHARED:
        if plan.stages > 2:
            plan = replace(plan, stages=plan.stages - 1)
        elif plan.columns > 32:
            plan = replace(plan, columns=plan.columns // 2)
        else:
            break
    return plan


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
        key = (*q.shape, kv_heads)
        if key not in self._kept:
            batch, length, heads, dim = q.shape
            shape = (batch * length, heads // kv_heads, dim, q.element_size())
            plan = plan_attention(*shape, _shared_limit(q.device))
            self._kept[key] = (plan, make_workspace(batch, length, heads, dim, plan, q.device))
        return self._kept[key]


def _shared_limit(device: torch.device) -> int:
    """Bytes of shared memory one program may use."""
    if device.type != "cuda":
        return 227 << 10
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 99 << 10))
