"""Who sees whom in a training window: the staircase mask, dense for any device and as a block mask
for flex attention on a GPU.

A window is a row of 32-token blocks: for each example its clean blocks, then noisy copies of its
answer's blocks. A noisy block sees itself and the clean blocks before it; a clean block sees itself
and the clean blocks before it (orl.md section 2). Knows block tables; no tokens, no noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from engine.models.layers import Heads, masked_attention
from trainer.batches import ORDERS

TILE = 128  # flex attention's tile, in tokens


def block_codes(segment: Tensor, order: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key codes int32 [B, G] of the blocks of B windows.

    segment: which example of the window a block belongs to; order: the block's index in its
    example, below 63; noisy: bool. Query g sees key h when g == h, or when both are of one segment
    and key code < query code. A noisy key's code is the last of its segment: no other block sees
    it.
    """
    query = segment * ORDERS + order
    key = segment * ORDERS + torch.where(noisy, ORDERS - 1, order)
    return query.int(), key.int()


def seen_blocks(query: Tensor, key: Tensor) -> Tensor:
    """bool [B, G, G]: whether query block g sees key block h."""
    q, k = query.unsqueeze(2), key.unsqueeze(1)
    same = (q // ORDERS) == (k // ORDERS)
    itself = torch.eye(query.shape[1], dtype=torch.bool, device=query.device)
    return (same & (k < q)) | itself


class DenseStaircase:
    """The mask as a tensor, for `scaled_dot_product_attention`."""

    rotates = False

    def __init__(self, windows: int, blocks: int, block_length: int, device: torch.device) -> None:
        size = blocks * block_length
        self.block_length = block_length
        self.mask = torch.zeros(windows, 1, size, size, dtype=torch.bool, device=device)

    def set(self, query: Tensor, key: Tensor) -> None:
        """Loads the block codes of the next batch."""
        seen = seen_blocks(query, key)
        length = self.block_length
        wide = seen.repeat_interleave(length, 1).repeat_interleave(length, 2)
        self.mask.copy_(wide.unsqueeze(1))

    def __call__(self, layer: int, heads: Heads) -> Tensor:
        q, k, v = heads.split()
        # Key heads are repeated: torch's memory-saving kernels take a mask, but not grouped heads.
        groups = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
        return masked_attention(q, k, v, self.mask)


class FlexStaircase:
    """The mask as flex attention's block mask, in static buffers, so that one compiled layer serves
    every batch. A window must be a whole number of tiles."""

    rotates = False

    def __init__(self, windows: int, blocks: int, block_length: int, device: torch.device) -> None:
        tiles, rest = divmod(blocks * block_length, TILE)
        if rest:
            raise ValueError(f"a window of {blocks * block_length} is not a multiple of {TILE}")
        self.block_length = block_length
        self.query = torch.zeros(windows, blocks, dtype=torch.int32, device=device)
        self.key = torch.zeros_like(self.query)
        self.mask_mod = self._mask_mod()
        whole = torch.ones(windows, 1, tiles, tiles, dtype=torch.bool, device=device)
        self.mask = self._block_mask(whole, ~whole)

    def _mask_mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        query, key, length = self.query, self.key, self.block_length

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            q_block, k_block = q // length, k // length
            q_code, k_code = query[b, q_block], key[b, k_block]
            earlier = ((q_code // ORDERS) == (k_code // ORDERS)) & (k_code < q_code)
            return earlier | (q_block == k_block)

        return sees

    def _block_mask(self, part: Tensor, full: Tensor) -> BlockMask:
        return BlockMask.from_kv_blocks(
            *_listed(part), *_listed(full), BLOCK_SIZE=TILE, mask_mod=self.mask_mod
        )

    def set(self, query: Tensor, key: Tensor) -> None:
        """Loads the block codes of the next batch."""
        self.query.copy_(query)
        self.key.copy_(key)
        per_tile = TILE // self.block_length
        seen = seen_blocks(query, key).unflatten(2, (-1, per_tile)).unflatten(1, (-1, per_tile))
        some, every = seen.any(4).any(2), seen.all(4).all(2)
        fresh = self._block_mask((some & ~every).unsqueeze(1), every.unsqueeze(1))
        for name in _TABLES:
            getattr(self.mask, name).copy_(getattr(fresh, name))

    def __call__(self, layer: int, heads: Heads) -> Tensor:
        q, k, v = heads.split()
        out = flex_attention(
            q.transpose(1, 2).contiguous(),
            k.transpose(1, 2).contiguous(),
            v.transpose(1, 2).contiguous(),
            block_mask=self.mask,
            enable_gqa=True,
        )
        assert isinstance(out, Tensor)
        return out.transpose(1, 2)


_TABLES = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Counts int32 [B, 1, T] and indices int32 [B, 1, T, T] of the True tiles, which come first."""
    count = tiles.sum(-1, dtype=torch.int32)
    order = tiles.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    return count, order.int()
