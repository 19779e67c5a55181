"""Block attention over the static KV cache: a few dozen queries against everything cached, their
own block included.

Knows the block-causal rule on absolute positions (query i sees key j when block(j) <= block(i),
models.md 1.5), grouped query heads and a device-side start. The queries' own keys and values are in
the cache already (`qk_rope.py` writes them). Keys are split over programs; the last program of a
tile merges the splits in fixed order, so results are reproducible.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.moe import TRITON_DTYPE


@dataclass(frozen=True)
class AttentionPlan:
    """How the work is cut. tokens x heads query rows a program (heads: of one group, a power of two
    that divides it), columns: keys a step, splits: programs that share a tile's keys. one_launch:
    the last split merges; otherwise a second kernel does."""

    tokens: int = 32
    heads: int = 4
    columns: int = 64
    splits: int = 8
    one_launch: bool = True
    warps: int = 8
    stages: int = 2


@dataclass(frozen=True, eq=False)
class AttentionWorkspace:
    """Partial results of the splits: acc float32 [splits, rows, D], peak and mass float32 [splits,
    rows], and a ticket int32 for each tile (0 between launches). Shared by all layers."""

    acc: Tensor
    peak: Tensor
    mass: Tensor
    tickets: Tensor


def attention_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, start: Tensor, block_length: int
) -> Tensor:
    """q [B, T, Hq, D], caches [B, Hkv, capacity, D], start [B] -> [B, T, Hq, D], computed in q's
    dtype."""
    batch, length, q_heads, dim = q.shape
    kv_heads, capacity = k_cache.shape[1:3]
    positions = start.long().unsqueeze(1) + torch.arange(length, device=q.device)
    keys = torch.arange(capacity, device=q.device)
    seen = (keys // block_length).view(1, 1, -1) <= (positions // block_length).unsqueeze(-1)
    seen &= (keys < (start.long() + length).view(-1, 1, 1)).view(batch, 1, -1)
    grouped = q.view(batch, length, kv_heads, q_heads // kv_heads, dim)
    scores = torch.einsum("btkgd,bknd->bkgtn", grouped, k_cache) * dim**-0.5
    scores = scores.masked_fill(~seen.view(batch, 1, 1, length, capacity), float("-inf"))
    out = torch.einsum("bkgtn,bknd->btkgd", scores.softmax(-1), v_cache)
    return out.reshape(batch, length, q_heads, dim)


def make_workspace(
    batch: int, length: int, q_heads: int, dim: int, plan: AttentionPlan, device: torch.device | str
) -> AttentionWorkspace:
    """Buffers for calls of at most this size."""
    tokens = triton.cdiv(length, plan.tokens) * plan.tokens
    rows = batch * tokens * q_heads

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    # A group smaller than plan.heads makes more tiles: one head each is the most there can be.
    tickets = torch.zeros(rows // plan.tokens, dtype=torch.int32, device=device)
    return AttentionWorkspace(
        floats(plan.splits, rows, dim),
        floats(plan.splits, rows),
        floats(plan.splits, rows),
        tickets,
    )


def block_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    start: Tensor,
    block_length: int,
    out: Tensor,
    workspace: AttentionWorkspace,
    plan: AttentionPlan = AttentionPlan(),
) -> None:
    """q, out [B, T, Hq, D] contiguous; caches [B, Hkv, capacity, D] contiguous; start int32 or
    int64 [B] on the device.

    Query t of row b stands at start[b] + t and sees keys j < start[b] + T with block(j) <=
    block(start[b] + t). start is a multiple of block_length or the rule is applied as stated.
    Softmax in float32; scale D^-0.5.
    """
    batch, length, q_heads, dim = q.shape
    kv_heads, capacity = k_cache.shape[1:3]
    group = q_heads // kv_heads
    heads = min(plan.heads, group)
    if group % heads:
        raise ValueError(f"{heads} heads a program do not divide a group of {group}")
    token_tiles = triton.cdiv(length, plan.tokens)
    tiles = batch * kv_heads * (group // heads) * token_tiles
    shape = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "HEADS": heads,
        "TOKENS": plan.tokens,
        "DIM": dim,
        "SPLITS": plan.splits,
    }
    parts = (workspace.acc, workspace.peak, workspace.mass)
    _attend_kernel[(tiles, plan.splits)](
        q,
        k_cache,
        v_cache,
        start,
        out,
        *parts,
        workspace.tickets,
        length,
        token_tiles,
        capacity,
        dim**-0.5 * 1.4426950408889634,  # log2(e): the softmax works in powers of two
        BLOCK_LENGTH=block_length,
        COLUMNS=plan.columns,
        DTYPE=TRITON_DTYPE[q.dtype],
        ONE_LAUNCH=plan.one_launch,
        **shape,
        num_warps=plan.warps,
        num_stages=plan.stages,
    )
    if plan.splits > 1 and not plan.one_launch:
        _merge_kernel[(tiles,)](out, *parts, length, token_tiles, **shape, num_warps=plan.warps)


@triton.jit
def _tile_rows(
    tile,
    length,
    token_tiles,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Where the tile's rows are: batch, kv head, token of each row, offset / DIM of each row in q,
    rows in use."""
    PARTS: tl.constexpr = GROUP // HEADS
    token_tile = tile % token_tiles
    rest = tile // token_tiles
    part = rest % PARTS
    kv = (rest // PARTS) % KV_HEADS
    batch = (rest // (PARTS * KV_HEADS)).to(tl.int64)
    row = tl.arange(0, TOKENS * HEADS)
    token = token_tile * TOKENS + row // HEADS
    head = kv * GROUP + part * HEADS + row % HEADS
    return batch, kv, token, (batch * length + token) * (KV_HEADS * GROUP) + head, token < length


@triton.jit
def _merge_tile(
    tile,
    at,
    live,
    out,
    acc,
    peak,
    mass,
    tiles,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merges the splits of one tile in order and writes its output rows."""
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    result = tl.zeros([ROWS, DIM], dtype=tl.float32)
    for split in range(SPLITS):
        first = (split * tiles + tile).to(tl.int64) * ROWS
        m = tl.load(peak + first + row, cache_modifier=".cg")
        share = tl.load(mass + first + row, cache_modifier=".cg")
        part = tl.load(acc + (first + row)[:, None] * DIM + d[None, :], cache_modifier=".cg")
        higher = tl.maximum(top, m)
        # Split 0 always holds key 0, so `higher` is finite from the first step on.
        old, new = tl.exp2(top - higher), tl.exp2(m - higher)
        total = total * old + share * new
        result = result * old[:, None] + part * new[:, None]
        top = higher
    result = result / total[:, None]
    tl.store(
        out + at[:, None] * DIM + d[None, :], result.to(out.dtype.element_ty), mask=live[:, None]
    )


@triton.jit
def _attend_kernel(
    q,
    k_cache,
    v_cache,
    start,
    out,
    acc,
    peak,
    mass,
    tickets,
    length,
    token_tiles,
    capacity,
    scale,
    BLOCK_LENGTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    DTYPE: tl.constexpr,
    ONE_LAUNCH: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One tile of query rows over one share of its keys."""
    ROWS: tl.constexpr = TOKENS * HEADS
    tile = tl.program_id(0)
    split = tl.program_id(1)
    batch, kv, token, at, live = _tile_rows(
        tile, length, token_tiles, KV_HEADS, GROUP, HEADS, TOKENS
    )
    begin = tl.load(start + batch).to(tl.int32)
    position = begin + token
    block = position // BLOCK_LENGTH
    # Keys that some query of the tile sees.
    last = tl.minimum(tl.max(position, axis=0), begin + length - 1)
    end = tl.minimum((last // BLOCK_LENGTH + 1) * BLOCK_LENGTH, begin + length)
    per_split = tl.cdiv(tl.cdiv(end, SPLITS), COLUMNS) * COLUMNS
    first = split * per_split
    stop = tl.minimum(first + per_split, end)

    d = tl.arange(0, DIM)
    queries = tl.load(q + at[:, None] * DIM + d[None, :], mask=live[:, None], other=0.0).to(DTYPE)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    result = tl.zeros([ROWS, DIM], dtype=tl.float32)
    base = (batch * KV_HEADS + kv) * capacity
    for n in range(first, stop, COLUMNS):
        key = n + tl.arange(0, COLUMNS)
        where = (base + key)[:, None] * DIM + d[None, :]
        inside = (key < stop)[:, None]
        keys = tl.load(k_cache + where, mask=inside, other=0.0).to(DTYPE)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        seen = (key // BLOCK_LENGTH)[None, :] <= block[:, None]
        scores = tl.where(seen & (key < stop)[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        # A row may have seen nothing yet (a later block's keys): keep -inf - -inf out of the
        # exponent.
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(top - safe)
        total = total * fade + tl.sum(weights, axis=1)
        values = tl.load(v_cache + where, mask=inside, other=0.0).to(DTYPE)
        result = tl.dot(weights.to(DTYPE), values, result * fade[:, None], input_precision="ieee")
        top = higher
    if SPLITS == 1:
        result = result / total[:, None]
        tl.store(
            out + at[:, None] * DIM + d[None, :],
            result.to(out.dtype.element_ty),
            mask=live[:, None],
        )
    else:
        tiles = tl.num_programs(0)
        row = tl.arange(0, ROWS)
        here = (split * tiles + tile).to(tl.int64) * ROWS + row
        tl.store(peak + here, top)
        tl.store(mass + here, total)
        tl.store(acc + here[:, None] * DIM + d[None, :], result)
        if ONE_LAUNCH:
            # All threads' stores come before the ticket (barrier, then a release at device scope),
            # and the last program reads after an acquire and past L1.
            tl.debug_barrier()
            done = tl.atomic_add(tickets + tile, 1, sem="acq_rel", scope="gpu")
            if done == SPLITS - 1:
                tl.debug_barrier()
                _merge_tile(tile, at, live, out, acc, peak, mass, tiles, ROWS, DIM, SPLITS)
                tl.store(tickets + tile, 0)


@triton.jit
def _merge_kernel(
    out,
    acc,
    peak,
    mass,
    length,
    token_tiles,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One tile: the second launch of a plan without `one_launch`."""
    tile = tl.program_id(0)
    _, _, _, at, live = _tile_rows(tile, length, token_tiles, KV_HEADS, GROUP, HEADS, TOKENS)
    tiles = tl.num_programs(0)
    _merge_tile(tile, at, live, out, acc, peak, mass, tiles, TOKENS * HEADS, DIM, SPLITS)
