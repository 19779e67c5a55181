"""Building blocks shared by every backbone: norms, rotary embedding, linear layers, the attention
seam.

Knows tensor maths only. Knows nothing of families, checkpoints, caches or decoding. Autograd works
through all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.nvfp4 import PackedWeight, dequantize


class Pending(Protocol):
    """A sublayer's output that is not summed up yet: the next norm does it in the same launch."""

    def add_norm(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(x + this output, its RMSNorm times weight), both like x [..., H]."""
        ...


Delta = Tensor | Pending  # what a sublayer adds to the residual stream
AddNorm = Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]


class RMSNorm(nn.Module):
    """y = cast(x_fp32 * rsqrt(mean(x^2) + eps)) * w: the weight multiplies after the cast back
    (models.md 1.4).

    compute: how `add` is done (x, delta, weight, eps -> sum, norm); None = plain torch.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.compute: AddNorm | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        return h.to(x.dtype) * self.weight

    def add(self, x: Tensor, delta: Delta | None) -> tuple[Tensor, Tensor]:
        """The residual stream x [..., H] with a sublayer's output added, and its norm."""
        if delta is not None and not isinstance(delta, Tensor):
            return delta.add_norm(x, self.weight, self.eps)
        if self.compute is not None:
            return self.compute(x, delta, self.weight, self.eps)
        x = x if delta is None else x + delta
        return x, self(x)


@dataclass(frozen=True, eq=False)
class Heads:
    """One layer's projection on its way to attention.

    qkv [B, T, (Hq + 2 Hkv) D]: all query heads, then keys, then values. q_norm, k_norm: QK-norm
    before RoPE, None = none. rotary: cos and sin of the positions [B, T, 1, R], or None where the
    attention has tables of its own (`Attend.rotates`).
    """

    qkv: Tensor
    kv_heads: int
    head_dim: int
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    rotary: tuple[Tensor, Tensor] | None

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, Hq, D] and k, v [B, T, Hkv, D], after QK-norm and RoPE."""
        assert self.rotary is not None
        batch, length, _ = self.qkv.shape
        heads = self.qkv.view(batch, length, -1, self.head_dim)
        queries = heads.shape[2] - 2 * self.kv_heads
        q, k, v = heads.split([queries, self.kv_heads, self.kv_heads], dim=2)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        return apply_rotary(q, *self.rotary), apply_rotary(k, *self.rotary), v


class Attend(Protocol):
    """How the queries of one layer see keys: the block rule and the KV cache live behind this.

    rotates: it turns queries and keys by position itself, so `Heads.rotary` is not needed.
    Called with the layer's index; returns [B, T, Hq, D].
    """

    @property
    def rotates(self) -> bool: ...

    def __call__(self, layer: int, heads: Heads) -> Tensor: ...


class Linear(nn.Module):
    """y = x W^T (+ b) with W [out, in] stored dense, or packed as NVFP4 and expanded where it is
    used.

    A packed weight is frozen; the gradient to x flows through its dequantised values. compute: how
    x W^T is done where a kernel does it (which then holds the weight); None = plain torch.
    """

    def __init__(self, size_in: int, size_out: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in))
        self.bias = nn.Parameter(torch.zeros(size_out)) if bias else None
        self.packed: PackedWeight | None = None
        self.compute: Callable[[Tensor], Tensor] | None = None

    def pack(self, packed: PackedWeight) -> None:
        """Replaces the dense weight by its packed form; the dense storage is freed."""
        self.packed = packed
        self.weight = nn.Parameter(torch.empty(0), requires_grad=False)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """W [out, in]: a packed one expanded to `dtype`, a dense one as it is."""
        return self.weight if self.packed is None else dequantize(self.packed, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if self.compute is not None:
            out = self.compute(x)
            return out if self.bias is None else out + self.bias
        return F.linear(x, self.dense(x.dtype), self.bias)


def rotary_tables(
    positions: Tensor, rotary_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, 1, rotary_dim] of absolute positions [B, T], computed in float32 (NeoX
    halves)."""
    exponent = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=torch.float32)
    inverse = 1.0 / (theta ** (exponent / rotary_dim))
    angles = positions.to(torch.float32).unsqueeze(-1) * inverse
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first rotary_dim dims of x [B, T, heads, D] (rotate-half); the rest pass
    unchanged."""
    rotary_dim = cos.shape[-1]
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, kept), dim=-1) if kept.shape[-1] else turned


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention with grouped heads: q [B, T, Hq, D]; k, v [B, S, Hkv, D]; mask bool [T, S]
    or [B, 1, T, S], True = seen, None = everything is seen. Scale D^-0.5. Returns [B, T, Hq, D]."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=True
    )
    return out.transpose(1, 2)


class MaskAttend:
    """No cache: every query sees the keys of the same forward that `mask` allows. Training and
    references use it."""

    rotates = False

    def __init__(self, mask: Tensor | None) -> None:
        self.mask = mask

    def __call__(self, layer: int, heads: Heads) -> Tensor:
        return masked_attention(*heads.split(), self.mask)


def block_causal_mask(positions: Tensor, block_length: int) -> Tensor:
    """bool [B, 1, T, T]: i sees j when block(j) <= block(i), blocks being absolute (models.md
    1.5)."""
    block = positions // block_length
    return (block.unsqueeze(1) <= block.unsqueeze(2)).unsqueeze(1)
