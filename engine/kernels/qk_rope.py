"""QK-norm, partial rotary embedding and the write into the KV cache, in one pass over the fused QKV
projection.

Knows models.md 1.4: RMSNorm of every query and key head (shared weight) before RoPE, rotate-half
over the first rotary_dim dimensions, the rest passed through. Positions are start[b] + t and live
on the device. Rotary tables are the caller's (so that angles are computed once, in one place).
Attention is `attention.py`.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def qk_rope_reference(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    start: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> Tensor:
    """Same contract as `qk_rope`, in plain torch; returns q [B, T, Hq, D] and writes the cache."""
    batch, length, width = qkv.shape
    kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    heads = qkv.view(batch, length, width // head_dim, head_dim)
    q_heads = heads.shape[2] - 2 * kv_heads
    q, k, v = heads.split([q_heads, kv_heads, kv_heads], dim=2)
    positions = start.long().unsqueeze(1) + torch.arange(length, device=qkv.device)
    c, s = cos[positions].unsqueeze(2), sin[positions].unsqueeze(2)

    def normed(x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return x
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return wide.to(x.dtype) * weight

    def turned(x: Tensor) -> Tensor:
        half = c.shape[-1]
        wide = x.float()
        first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
        return torch.cat((first * c - second * s, second * c + first * s, rest), -1).to(x.dtype)

    rows = torch.arange(batch, device=qkv.device).unsqueeze(1)
    k_cache[rows, :, positions] = turned(normed(k, k_weight))
    v_cache[rows, :, positions] = v
    return turned(normed(q, q_weight))


def qk_rope(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    start: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q: Tensor,
) -> None:
    """qkv [B, T, (Hq + 2 Hkv) D] contiguous (all q heads, then k, then v) -> q [B, T, Hq, D], and
    k, v written at positions start[b] .. start[b] + T - 1 of k_cache, v_cache [B, Hkv, capacity,
    D].

    q_weight, k_weight [D] or None (no QK-norm). cos, sin [capacity, rotary_dim / 2] of absolute
    positions. start int32 or int64 [B], on the device. D and rotary_dim are powers of two.
    Positions past the capacity are not written.
    """
    batch, length, width = qkv.shape
    kv_heads, capacity, head_dim = k_cache.shape[1:]
    q_heads = width // head_dim - 2 * kv_heads
    norm = q_weight is not None and k_weight is not None
    _qk_rope_kernel[(batch * length, q_heads + 2 * kv_heads)](
        qkv,
        q_weight if q_weight is not None else qkv,
        k_weight if k_weight is not None else qkv,
        eps,
        cos,
        sin,
        start,
        k_cache,
        v_cache,
        q,
        length,
        capacity,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HALF=cos.shape[1],
        NORM=norm,
        num_warps=1,
    )


@triton.jit
def _qk_rope_kernel(
    qkv,
    q_weight,
    k_weight,
    eps,
    cos,
    sin,
    start,
    k_cache,
    v_cache,
    q,
    length,
    capacity,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
):
    """One head of one token."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    batch = row // length
    position = tl.load(start + batch).to(tl.int64) + row % length
    d = tl.arange(0, HEAD_DIM)
    source = qkv + (row.to(tl.int64) * (Q_HEADS + 2 * KV_HEADS) + head) * HEAD_DIM
    value = tl.load(source + d)
    if head < Q_HEADS + KV_HEADS:
        weight = q_weight if head < Q_HEADS else k_weight
        # The partner of dimension d in rotate-half; the load hits the line just read.
        partner_at = tl.where(d < HALF, d + HALF, tl.where(d < 2 * HALF, d - HALF, d))
        partner = tl.load(source + partner_at)
        if NORM:
            wide = value.to(tl.float32)
            inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / HEAD_DIM + eps)
            kind = qkv.dtype.element_ty
            value = (wide * inverse).to(kind) * tl.load(weight + d)
            partner = (partner.to(tl.float32) * inverse).to(kind) * tl.load(weight + partner_at)
        turning = d < 2 * HALF
        angle = tl.minimum(position, capacity - 1) * HALF + d % HALF
        c = tl.load(cos + angle, mask=turning, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=turning, other=0.0).to(tl.float32)
        signed = tl.where(d < HALF, -partner.to(tl.float32), partner.to(tl.float32))
        value = (value.to(tl.float32) * c + signed * s).to(qkv.dtype.element_ty)
    if head < Q_HEADS:
        tl.store(q + (row.to(tl.int64) * Q_HEADS + head) * HEAD_DIM + d, value)
    else:
        kv = (head - Q_HEADS) % KV_HEADS
        target = ((batch.to(tl.int64) * KV_HEADS + kv) * capacity + position) * HEAD_DIM + d
        if position < capacity:
            if head < Q_HEADS + KV_HEADS:
                tl.store(k_cache + target, value)
            else:
                tl.store(v_cache + target, value)
