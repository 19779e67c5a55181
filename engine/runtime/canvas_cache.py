"""The cache of a model whose layers see different lengths, and the attention of its two passes.

Knows that layers which see everything keep every position, and the others only the last ones, in a
ring; and who sees whom when finished tokens are read and when a canvas is denoised (models.md 2.4).
Keys and values may be kept in FP8: what a forward computes itself it then sees unrounded, what was
written by an earlier one rounded. Knows no family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.layers import Heads
from engine.runtime.cache import KVCache

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0  # larger numbers saturate; keys and values are normalised before they are kept


@dataclass(frozen=True)
class Kept:
    """What one layer keeps. window: keys a query sees, itself included; None = all."""

    kv_heads: int
    head_dim: int
    window: int | None


class CanvasAttention(Protocol):
    """Attention by a kernel that normalises, rotates, writes and reads: T queries of every row at
    positions start[b] + t against one layer's keys and values [B, Hkv, slots, D], position j lying
    in slot j % slots. ends int64 [B, 1], or None for a canvas: see `CanvasAttend`. Returns [B, T,
    Hq, D]."""

    def __call__(
        self,
        heads: Heads,
        keys: Tensor,
        values: Tensor,
        start: Tensor,
        window: int | None,
        ends: Tensor | None,
    ) -> Tensor: ...


class CanvasCache(KVCache):
    """keys, values [layers of the kind, B, Hkv, slots, D] for the layers that see everything (slots
    = capacity), ring_keys, ring_values for the others. chunk: most positions of one forward.

    A ring has room for a window and a chunk, so that no forward writes over a key that one of its
    queries sees, and a last slot for what belongs nowhere. compute: how queries are answered where
    a kernel does it; None = SDPA under a mask.
    """

    def __init__(
        self,
        layers: Sequence[Kept],
        batch: int,
        capacity: int,
        chunk: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = tuple(layers)
        every = [kept for kept in self.layers if kept.window is None]
        ringed = [kept for kept in self.layers if kept.window is not None]
        if len(set(every)) != 1 or len(set(ringed)) != 1:
            raise ValueError("a cache holds one kind of full layers and one with a window")
        full, ring = every[0], ringed[0]
        super().__init__(len(every), batch, full.kv_heads, capacity, full.head_dim, dtype, device)
        assert ring.window is not None
        slots = min(capacity, ring.window - 1 + chunk)
        shape = (len(ringed), batch, ring.kv_heads, slots + 1, ring.head_dim)
        self.ring_keys = torch.zeros(shape, dtype=dtype, device=device)
        self.ring_values = torch.zeros(shape, dtype=dtype, device=device)
        self.chunk = chunk
        self.compute: CanvasAttention | None = None
        self._places: list[int] = []  # of each layer among its kind
        for index, kept in enumerate(self.layers):
            alike = [other.window is None for other in self.layers[:index]]
            self._places.append(alike.count(kept.window is None))

    @property
    def ring_slots(self) -> int:
        """Slots of a ring, the last one left out."""
        return self.ring_keys.shape[3] - 1

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values [B, Hkv, slots, D]."""
        place = self._places[layer]
        if self.layers[layer].window is None:
            return self.keys[place], self.values[place]
        return self.ring_keys[place], self.ring_values[place]

    def clear(self) -> None:
        super().clear()
        self.ring_keys.zero_()
        self.ring_values.zero_()

    def first(self, size: int) -> list[Tensor]:
        return [
            *super().first(size),
            self.ring_keys[:, :, :, :size],
            self.ring_values[:, :, :, :size],
        ]

    @property
    def bytes(self) -> int:
        return super().bytes + 2 * self.ring_keys.numel() * self.ring_keys.element_size()


class CanvasAttend:
    """Attention of one forward over positions [B, T] that follow each other.

    ends int64 [B, 1]: finished tokens are read, up to a row's end; positions from there on hold
    anything, and nothing of them is kept in a ring. Queries see what is before them and themselves,
    in layers with a window its last keys only. None: the T positions are a canvas. Each sees all of
    it, and what lies before it, in layers with a window the last window - 1 keys, the same ones for
    the whole canvas. bound: keys [0, bound) are scanned in full layers, at least the last position
    + 1.
    """

    def __init__(
        self, cache: CanvasCache, positions: Tensor, bound: int, ends: Tensor | None
    ) -> None:
        self.cache, self.positions, self.bound, self.ends = cache, positions, bound, ends
        self.rotates = cache.compute is not None
        if positions.shape[1] > cache.chunk:
            raise ValueError(
                f"a forward of {positions.shape[1]} positions, more than {cache.chunk}"
            )
        if self.rotates:
            self.start = positions[:, 0].contiguous()
            return
        device = positions.device
        self.rows = torch.arange(positions.shape[0], device=device).unsqueeze(1)
        keys = torch.arange(bound, device=device)
        last = positions if ends is not None else positions[:, -1:].expand_as(positions)
        self.full_mask = (keys <= last.unsqueeze(-1)).unsqueeze(1)
        window = next(kept.window for kept in cache.layers if kept.window is not None)
        slots, length = cache.ring_slots, positions.shape[1]
        before = torch.arange(1 - window, length, device=device)
        seen = positions[:, :1] + before  # the window before the first position, and all of them
        self.own_slots, self.ring_slots = positions % slots, seen % slots
        mask = (seen >= 0).unsqueeze(1)
        if ends is not None:
            self.own_slots = torch.where(positions < ends, self.own_slots, slots)
            here, there = positions.unsqueeze(-1), seen.unsqueeze(1)
            mask = mask & (there <= here) & (there > here - window)
        self.ring_mask = mask.unsqueeze(1)

    def __call__(self, layer: int, heads: Heads) -> Tensor:
        cache = self.cache
        keys, values = cache.of(layer)
        window = cache.layers[layer].window
        if cache.compute is not None:
            return cache.compute(heads, keys, values, self.start, window, self.ends)
        q, k, v = heads.split()
        if window is None:
            k, v = (self._all(store, own) for store, own in ((keys, k), (values, v)))
            return _attention(q, k, v, self.full_mask)
        k, v = (self._last(store, own) for store, own in ((keys, k), (values, v)))
        return _attention(q, k, v, self.ring_mask)

    def _all(self, store: Tensor, own: Tensor) -> Tensor:
        """[B, bound, Hkv, D]: everything kept, with this forward's own [B, T, Hkv, D] in place."""
        self._keep(store, self.positions, own)
        seen = store[:, :, : self.bound].transpose(1, 2)
        if store.dtype == own.dtype:
            return seen
        seen = seen.to(own.dtype)
        seen[self.rows, self.positions] = own
        return seen

    def _last(self, store: Tensor, own: Tensor) -> Tensor:
        """[B, window - 1 + T, Hkv, D]: what lies before this forward's own, and these."""
        self._keep(store, self.own_slots, own)
        if store.dtype == own.dtype:
            return store[self.rows, :, self.ring_slots]
        before = self.ring_slots[:, : -own.shape[1]]
        kept = store.view(torch.uint8)[self.rows, :, before].view(store.dtype)
        return torch.cat((kept.to(own.dtype), own), dim=1)

    def _keep(self, store: Tensor, slots: Tensor, own: Tensor) -> None:
        """A canvas's own are kept only where they are read back from the cache unrounded."""
        if store.dtype == own.dtype:
            store[self.rows, :, slots] = own
        elif self.ends is not None:
            rounded = own.clamp(-FP8_MAX, FP8_MAX).to(store.dtype)
            store.view(torch.uint8)[self.rows, :, slots] = rounded.view(torch.uint8)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention of scale 1 with grouped heads: q [B, T, Hq, D]; k, v [B, S, Hkv, D]; mask
    bool [B, 1, T or 1, S]. Returns [B, T, Hq, D]."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mask = mask.expand(-1, -1, q.shape[2], -1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=True)
    return out.transpose(1, 2)
