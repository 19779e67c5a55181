"""The static KV cache and the block-causal attention over it.

Knows where keys and values of absolute positions lie and who sees whom. Every forward writes the KV
of its own positions first; a block's KV is final when the forward's input was the final block.
Slots past the last written position hold stale values, which no query can see.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.models.layers import Heads, masked_attention


class BlockAttention(Protocol):
    """Attention that rotates, writes the cache and reads lengths on the device: T queries of every
    row at positions start[b] + t, start int64 [B], against one layer's cache [B, Hkv, capacity, D],
    into which the keys and values of these positions are written. Returns [B, T, Hq, D]."""

    def __call__(
        self, heads: Heads, keys: Tensor, values: Tensor, start: Tensor, block_length: int
    ) -> Tensor: ...


class KVCache:
    """keys, values [layers, B, Hkv, capacity, D]. capacity is in positions and covers the context
    plus one block. attention: how queries are answered where a kernel does it; None = SDPA under a
    mask, over as many slots as the host says."""

    def __init__(
        self,
        layers: int,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, batch, kv_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.attention: BlockAttention | None = None

    def clear(self) -> None:
        """After a reply that was not finite: a masked NaN would still poison a sum over all
        slots."""
        self.keys.zero_()
        self.values.zero_()

    def first(self, size: int) -> list[Tensor]:
        """What positions [0, size) are kept in, as views."""
        return [self.keys[:, :, :, :size], self.values[:, :, :, :size]]

    @property
    def bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()


class CachedAttend:
    """Attention of one forward: queries at `positions` [B, T] see cached keys j with block(j) <=
    block(i).

    T is a whole number of blocks that starts at a block boundary and has no gap, so every visible
    key has been written by an earlier forward or by this one. bound: keys [0, bound) are scanned
    where the cache has no attention of its own; at least the last position + 1 (a host number:
    eager passes the exact length, a captured graph the capacity).
    """

    def __init__(self, cache: KVCache, positions: Tensor, bound: int, block_length: int) -> None:
        self.cache = cache
        self.positions = positions
        self.bound = bound
        self.block_length = block_length
        self.rotates = cache.attention is not None
        if self.rotates:
            self.start = positions[:, 0].contiguous()
        else:
            self.rows = torch.arange(positions.shape[0], device=positions.device).unsqueeze(1)
            self.mask = self._mask()

    def _mask(self) -> Tensor:
        """bool [B, 1, T, bound]."""
        length = self.block_length
        key_block = torch.arange(self.bound, device=self.positions.device) // length
        return (key_block <= (self.positions // length).unsqueeze(-1)).unsqueeze(1)

    def __call__(self, layer: int, heads: Heads) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        if self.cache.attention is not None:
            return self.cache.attention(heads, keys, values, self.start, self.block_length)
        q, k, v = heads.split()
        keys[self.rows, :, self.positions] = k
        values[self.rows, :, self.positions] = v
        seen_k = keys[:, :, : self.bound].transpose(1, 2)
        seen_v = values[:, :, : self.bound].transpose(1, 2)
        return masked_attention(q, seen_k, seen_v, self.mask)
