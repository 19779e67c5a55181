"""Attention of a model whose finished tokens see what is before them and whose canvas sees itself
both ways, over a cache of all positions or a ring of the last ones.

Knows the two masks (`engine.runtime.canvas_cache`), heads that are normalised, turned by position
and kept in one launch, and grouped queries at scale 1. Lengths are read on the device; keys are
split over programs and merged in fixed order by a last launch, so results are reproducible.
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
class CanvasPlan:
    """tokens x heads of one group are the rows of a program, at least 16; columns: keys a step;
    splits: programs that share a tile's keys."""

    tokens: int = 16
    columns: int = 32
    splits: int = 4
    warps: int = 4
    stages: int = 2


# Sizes that the compiler holds in registers on sm_90 without spilling. Not measured on a GPU yet.
ROWS, TILE, PROGRAMS, MOST_SPLITS = 32, 8192, 512, 8


def choose_plan(shape: tuple[int, int, int, int], kv_heads: int, shared_limit: int) -> CanvasPlan:
    """For queries [B, T, Hq, D] in 16-bit numbers and `shared_limit` bytes of shared memory."""
    batch, length, heads, dim = shape
    group = triton.next_power_of_2(heads // kv_heads)
    tokens = max(1, ROWS // group)
    tiles = batch * kv_heads * triton.cdiv(length, tokens)
    columns = max(16, min(64, TILE // dim))
    stages = (shared_limit - 2 * tokens * group * dim) // (4 * columns * dim)
    return CanvasPlan(
        tokens,
        columns,
        min(MOST_SPLITS, max(1, PROGRAMS // tiles)),
        8 if dim > 256 else 4,
        max(1, min(2, stages)),
    )


@dataclass(frozen=True, eq=False)
class KeptHeads:
    """Where one layer's heads go and what makes them. keys, values [B, Hkv, slots, D] contiguous,
    position j in slot j % ring; spare: the slot for what is not kept. q_weight, k_weight [D];
    inverse float32 [D / 2]: RoPE's angle per position and pair."""

    keys: Tensor
    values: Tensor
    ring: int
    spare: int
    q_weight: Tensor
    k_weight: Tensor
    inverse: Tensor
    eps: float


def keep_heads(
    qkv: Tensor, kept: KeptHeads, start: Tensor, ends: Tensor | None, shared: bool
) -> Tensor:
    """qkv [B, T, (Hq + Hkv (+ Hkv)) D] contiguous, shared: its values are its keys; start int64
    [B]. Writes keys and values; with ends int64 [B], those from a row's end on into the spare slot.
    Returns q [B, T, Hq, D]. The reference is `GemmaHeads.split` and an indexed write."""
    batch, length, width = qkv.shape
    kv_heads, slots, dim = kept.keys.shape[1:]
    q_heads = width // dim - (1 if shared else 2) * kv_heads
    q = qkv.new_empty(batch, length, q_heads, dim)
    _keep_kernel[(batch * length, q_heads + 2 * kv_heads)](
        qkv,
        kept.q_weight,
        kept.k_weight,
        kept.inverse,
        start,
        start if ends is None else ends,
        kept.keys,
        kept.values,
        q,
        length,
        slots,
        kept.ring,
        kept.spare,
        kept.eps,
        WIDTH=width,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        HALF=dim // 2,
        SHARED=shared,
        ENDS=ends is not None,
        num_warps=1 if dim <= 256 else 2,
    )
    return q


@triton.jit
def _keep_kernel(
    qkv,
    q_weight,
    k_weight,
    inverse,
    start,
    ends,
    keys,
    values,
    q,
    length,
    slots,
    ring,
    spare,
    eps,
    WIDTH: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    SHARED: tl.constexpr,
    ENDS: tl.constexpr,
):
    """One head of one token: query, key or value."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = token // length
    position = tl.load(start + row) + token % length
    is_value = head >= Q_HEADS + KV_HEADS
    source = head
    if SHARED:
        source = tl.where(is_value, head - KV_HEADS, head)
    i = tl.arange(0, HALF)
    at = qkv + token * WIDTH + source * (2 * HALF)
    kind = q.dtype.element_ty
    first = tl.load(at + i).to(tl.float32)
    second = tl.load(at + HALF + i).to(tl.float32)
    mean = (tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / (2 * HALF)
    scale = 1.0 / tl.sqrt(mean + eps)
    first *= scale
    second *= scale
    if not is_value:
        weights = q_weight
        if head >= Q_HEADS:
            weights = k_weight
        first *= tl.load(weights + i).to(tl.float32)
        second *= tl.load(weights + HALF + i).to(tl.float32)
        first = first.to(kind).to(tl.float32)
        second = second.to(kind).to(tl.float32)
        angle = position.to(tl.float32) * tl.load(inverse + i)
        cos = tl.cos(angle).to(kind).to(tl.float32)
        sin = tl.sin(angle).to(kind).to(tl.float32)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    if head < Q_HEADS:
        target = q + (token * Q_HEADS + head) * (2 * HALF)
        tl.store(target + i, first.to(kind))
        tl.store(target + HALF + i, second.to(kind))
    else:
        slot = position % ring
        if ENDS:
            slot = tl.where(position < tl.load(ends + row), slot, spare)
        place = (head - Q_HEADS) % KV_HEADS
        where = ((row * KV_HEADS + place) * slots + slot) * (2 * HALF)
        if is_value:
            tl.store(values + where + i, first.to(kind))
            tl.store(values + where + HALF + i, second.to(kind))
        else:
            tl.store(keys + where + i, first.to(kind))
            tl.store(keys + where + HALF + i, second.to(kind))


@dataclass(frozen=True, eq=False)
class CanvasWorkspace:
    """Partial results: acc float32 [splits, rows, D], peak and mass float32 [splits, rows]."""

    acc: Tensor
    peak: Tensor
    mass: Tensor


def make_canvas_workspace(q: Tensor, plan: CanvasPlan) -> CanvasWorkspace:
    """For calls with queries [B, T, Hq, D] of this size."""
    batch, length, heads, dim = q.shape
    rows = batch * triton.cdiv(length, plan.tokens) * plan.tokens * heads

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    return CanvasWorkspace(
        floats(plan.splits, rows, dim), floats(plan.splits, rows), floats(plan.splits, rows)
    )


def canvas_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    ring: int,
    window: int | None,
    causal: bool,
    workspace: CanvasWorkspace,
    plan: CanvasPlan = CanvasPlan(),
) -> Tensor:
    """q [B, T, Hq, D] at positions start[b] + t; keys, values [B, Hkv, slots, D], position j in
    slot j % ring, this forward's own included. causal: position i sees j <= i, with a window only
    j > i - window. Otherwise all see j < start[b] + T, with a window only j > start[b] - window.
    Softmax in float32, scale 1. Returns [B, T, Hq, D]."""
    batch, length, q_heads, dim = q.shape
    kv_heads, slots = keys.shape[1:3]
    group = q_heads // kv_heads
    tiles = batch * kv_heads * triton.cdiv(length, plan.tokens)
    out = torch.empty_like(q)
    shape = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "GROUP_2": triton.next_power_of_2(group),
        "TOKENS": plan.tokens,
        "DIM": dim,
        "SPLITS": plan.splits,
        "num_warps": plan.warps,
    }
    parts = (workspace.acc, workspace.peak, workspace.mass)
    _attend_kernel[(tiles, plan.splits)](
        q,
        keys,
        values,
        start,
        *parts,
        length,
        slots,
        ring,
        WINDOW=window or 0,
        CAUSAL=causal,
        COLUMNS=plan.columns,
        DTYPE=TRITON_DTYPE[q.dtype],
        num_stages=plan.stages,
        **shape,
    )
    _merge_kernel[(tiles,)](out, *parts, length, **shape)
    return out


@triton.jit
def _tile(
    tile,
    length,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_2: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Batch row, KV head, token of each row of the tile, its place in q / DIM, and which are real.
    Rows are padded to a power of two of heads."""
    token_tiles = tl.cdiv(length, TOKENS)
    first = (tile % token_tiles) * TOKENS
    kv = (tile // token_tiles) % KV_HEADS
    batch = (tile // (token_tiles * KV_HEADS)).to(tl.int64)
    row = tl.arange(0, TOKENS * GROUP_2)
    token = first + row // GROUP_2
    head = row % GROUP_2
    place = (batch * length + token) * (KV_HEADS * GROUP) + kv * GROUP + head
    return batch, kv, first, token, place, (token < length) & (head < GROUP)


@triton.jit
def _attend_kernel(
    q,
    keys,
    values,
    start,
    acc,
    peak,
    mass,
    length,
    slots,
    ring,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    COLUMNS: tl.constexpr,
    DTYPE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_2: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One tile of query rows over one share of the keys that some of them see."""
    ROWS: tl.constexpr = TOKENS * GROUP_2
    tile, split = tl.program_id(0), tl.program_id(1)
    batch, kv, first, token, place, live = _tile(tile, length, KV_HEADS, GROUP, GROUP_2, TOKENS)
    begin = tl.load(start + batch).to(tl.int32)
    position = begin + token
    low, high = 0, begin + length
    if CAUSAL:
        high = tl.minimum(high, begin + first + TOKENS)
    if WINDOW > 0:
        low = begin + 1 - WINDOW
        if CAUSAL:
            low += first
        low = tl.maximum(low, 0)
    share = tl.cdiv(tl.cdiv(high - low, SPLITS), COLUMNS) * COLUMNS
    low += split * share
    high = tl.minimum(low + share, high)
    d = tl.arange(0, DIM)
    queries = tl.load(q + place[:, None] * DIM + d[None, :], mask=live[:, None], other=0.0)
    queries = queries.to(DTYPE)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    result = tl.zeros([ROWS, DIM], dtype=tl.float32)
    base = (batch * KV_HEADS + kv) * slots
    for n in range(low, high, COLUMNS):
        key = n + tl.arange(0, COLUMNS)
        where = (base + key % ring)[:, None] * DIM + d[None, :]
        inside = key < high
        loaded = tl.load(keys + where, mask=inside[:, None], other=0.0).to(DTYPE)
        scores = tl.dot(queries, tl.trans(loaded), input_precision="ieee") * 1.4426950408889634
        seen = inside[None, :] & (token < length)[:, None]
        if CAUSAL:
            seen &= key[None, :] <= position[:, None]
            if WINDOW > 0:
                seen &= key[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        # A row may have seen nothing yet: keep -inf - -inf out of the exponent.
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(top - safe)
        total = total * fade + tl.sum(weights, axis=1)
        loaded = tl.load(values + where, mask=inside[:, None], other=0.0).to(DTYPE)
        result = tl.dot(weights.to(DTYPE), loaded, result * fade[:, None], input_precision="ieee")
        top = higher
    rows = tl.num_programs(0).to(tl.int64) * TOKENS * GROUP
    here = split * rows + _row_of(tile, GROUP, GROUP_2, TOKENS)
    real = tl.arange(0, ROWS) % GROUP_2 < GROUP
    tl.store(peak + here, top, mask=real)
    tl.store(mass + here, total, mask=real)
    tl.store(acc + here[:, None] * DIM + d[None, :], result, mask=real[:, None])


@triton.jit
def _row_of(tile, GROUP: tl.constexpr, GROUP_2: tl.constexpr, TOKENS: tl.constexpr):
    """Where a tile's rows lie among partial results, which are not padded."""
    row = tl.arange(0, TOKENS * GROUP_2)
    return (tile.to(tl.int64) * TOKENS + row // GROUP_2) * GROUP + row % GROUP_2


@triton.jit
def _merge_kernel(
    out,
    acc,
    peak,
    mass,
    length,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_2: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One tile: its splits in order. Some split has seen a key for every real row: its own."""
    tile = tl.program_id(0)
    _, _, _, _, place, live = _tile(tile, length, KV_HEADS, GROUP, GROUP_2, TOKENS)
    d = tl.arange(0, DIM)
    rows = tl.num_programs(0).to(tl.int64) * TOKENS * GROUP
    first = _row_of(tile, GROUP, GROUP_2, TOKENS)
    top = tl.full([TOKENS * GROUP_2], float("-inf"), dtype=tl.float32)
    for split in range(SPLITS):
        here = split * rows + first
        top = tl.maximum(top, tl.load(peak + here, mask=live, other=float("-inf")))
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([TOKENS * GROUP_2], dtype=tl.float32)
    result = tl.zeros([TOKENS * GROUP_2, DIM], dtype=tl.float32)
    for split in range(SPLITS):
        here = split * rows + first
        share = tl.exp2(tl.load(peak + here, mask=live, other=float("-inf")) - top)
        total += share * tl.load(mass + here, mask=live, other=0.0)
        part = tl.load(acc + here[:, None] * DIM + d[None, :], mask=live[:, None], other=0.0)
        result += share[:, None] * part
    result = result / tl.where(live, total, 1.0)[:, None]
    target = out + place[:, None] * DIM + d[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=live[:, None])
