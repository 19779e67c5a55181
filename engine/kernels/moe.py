"""Routed experts: the portable Triton path over NVFP4 weights, and the weighted sum every path ends
with.

Knows silu(gate x) * (up x) and down per expert, over (token, expert) pairs that `routing.py` has
sorted; weights are in checkpoint order and expanded in registers (weight-only: activations are not
quantised). Knows nothing of how experts are chosen. The CUDA version of the same sums is
`cuda_moe.py`.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gelu import gelu_tanh
from engine.kernels.nvfp4 import PackedExperts, dequantize
from engine.kernels.routing import Routing

TRITON_DTYPE = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


@dataclass(frozen=True)
class GroupedTiling:
    """Tile sizes of the portable kernels: tokens x rows x columns, warps and pipeline stages."""

    tokens: int = 16
    rows: int = 64
    columns: int = 128
    warps: int = 4
    stages: int = 3


# ---- reference ----


def experts_reference(
    x: Tensor, ids: Tensor, gate: PackedExperts, up: PackedExperts, down: PackedExperts
) -> Tensor:
    """x [T, H], ids int64 [T, K] -> [T, K, H]: each chosen expert's output, unweighted, in x's
    dtype."""
    dense = [dequantize(w, x.dtype) for w in (gate, up, down)]
    out = x.new_empty(*ids.shape, x.shape[1])
    for e in ids.unique().tolist():
        where = (ids == e).nonzero()
        rows = x[where[:, 0]]
        inner = F.silu(rows @ dense[0][e].T) * (rows @ dense[1][e].T)
        out[where[:, 0], where[:, 1]] = inner @ dense[2][e].T
    return out


def combine_reference(
    by_slot: Tensor, weights: Tensor, shared: Tensor | None, residual: Tensor
) -> Tensor:
    """by_slot [T, K, H], weights float32 [T, K] -> residual + shared + sum_k w_k * by_slot_k, in
    residual's dtype."""
    total = (by_slot.float() * weights.unsqueeze(-1)).sum(1) + residual.float()
    return (total if shared is None else total + shared.float()).to(residual.dtype)


# ---- Triton ----


def grouped_experts(
    x: Tensor,
    gate: PackedExperts,
    up: PackedExperts,
    down: PackedExperts,
    routing: Routing,
    act: Tensor,
    out: Tensor,
    tiling: GroupedTiling = GroupedTiling(),
    gelu: bool = False,
) -> None:
    """x [T, H] (float32, float16 or bfloat16) -> out float32 [P, H], a row for each sorted pair,
    unweighted. gelu: in its tanh form, in place of silu.

    act [P, I] in x's dtype is a workspace. float32 inputs are multiplied in full float32.
    """
    experts, inter, hidden = gate.shape
    common = {
        "TOKENS": tiling.tokens,
        "ROWS": tiling.rows,
        "COLUMNS": tiling.columns,
        "DTYPE": TRITON_DTYPE[x.dtype],
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
    }
    slots = min(experts, routing.pair_token.shape[0])
    lists = (routing.slots, routing.active, routing.pair_token)
    _gate_up_kernel[(triton.cdiv(inter, tiling.rows), slots)](
        x,
        *(part for w in (gate, up) for part in _parts(w)),
        *lists,
        act,
        HIDDEN=hidden,
        INTER=inter,
        GELU=gelu,
        **common,
    )
    _down_kernel[(triton.cdiv(hidden, tiling.rows), slots)](
        act, *_parts(down), routing.slots, routing.active, out, HIDDEN=hidden, INTER=inter, **common
    )


def _parts(weights: PackedExperts) -> tuple[Tensor, Tensor, Tensor]:
    return weights.codes, weights.scales.view(torch.uint8), weights.global_scale


@triton.jit
def e2m1_values(codes):
    """Codes 0..15 (uint8) -> float32 times 2^-14: the code's bits are a float16's sign, exponent
    and mantissa."""
    wide = codes.to(tl.uint16)
    bits = ((wide & 7) << 9) | ((wide & 8) << 12)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e4m3_values(scales):
    """E4M3 bytes (positive) -> float32 times 2^-8, subnormals included."""
    bits = (scales.to(tl.uint16) & 0x7F) << 7
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def load_expanded(codes, scales, rows, first, limit, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Even and odd columns [first, first + COLUMNS) of some rows, expanded to float32 without the
    global scale.

    rows int64 [R], limit: rows >= limit give zeros; columns past WIDTH too. Returns two [R, COLUMNS
    / 2].
    """
    byte = first // 2 + tl.arange(0, COLUMNS // 2)
    live = (rows < limit)[:, None] & (byte < WIDTH // 2)[None, :]
    packed = tl.load(codes + rows[:, None] * (WIDTH // 2) + byte[None, :], mask=live, other=0)
    block = first // 16 + tl.arange(0, COLUMNS // 16)
    alive = (rows < limit)[:, None] & (block < WIDTH // 16)[None, :]
    scale = tl.load(scales + rows[:, None] * (WIDTH // 16) + block[None, :], mask=alive, other=0)
    scale = e4m3_values(scale) * 4194304.0  # 2^22: both factors' powers of two
    R: tl.constexpr = packed.shape[0]
    scale = tl.reshape(tl.broadcast_to(scale[:, :, None], [R, COLUMNS // 16, 8]), [R, COLUMNS // 2])
    return e2m1_values(packed & 0xF) * scale, e2m1_values(packed >> 4) * scale


@triton.jit
def dot(a, b, acc, DTYPE: tl.constexpr):
    """acc + a b^T with operands in DTYPE and float32 sums; float32 operands are not rounded to
    tf32."""
    return tl.dot(a.to(DTYPE), tl.trans(b.to(DTYPE)), acc, input_precision="ieee")


@triton.jit
def _gate_up_kernel(
    x,
    gate_codes,
    gate_scales,
    gate_global,
    up_codes,
    up_scales,
    up_global,
    slots,
    active,
    pair_token,
    act,
    HIDDEN: tl.constexpr,
    INTER: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DTYPE: tl.constexpr,
    GELU: tl.constexpr,
):
    """One tile of rows of one expert, all its tokens: act = silu(gate x) * (up x)."""
    slot = tl.program_id(1)
    if slot >= tl.load(active):
        return
    expert = tl.load(slots + slot * 4).to(tl.int64)
    begin = tl.load(slots + slot * 4 + 1)
    count = tl.load(slots + slot * 4 + 2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = expert * INTER + row
    limit = (expert + 1) * INTER
    half = tl.arange(0, COLUMNS // 2)
    for done in range(0, count, TOKENS):
        pair = done + tl.arange(0, TOKENS)
        live = pair < count
        token = tl.load(pair_token + begin + pair, mask=live, other=0).to(tl.int64)
        gate = tl.zeros([TOKENS, ROWS], dtype=tl.float32)
        up = tl.zeros([TOKENS, ROWS], dtype=tl.float32)
        for first in range(0, HIDDEN, COLUMNS):
            column = first + 2 * half
            source = x + token[:, None] * HIDDEN + column[None, :]
            inside = live[:, None] & (column < HIDDEN)[None, :]
            even = tl.load(source, mask=inside, other=0.0)
            odd = tl.load(source + 1, mask=inside, other=0.0)
            low, high = load_expanded(gate_codes, gate_scales, rows, first, limit, HIDDEN, COLUMNS)
            gate = dot(even, low, gate, DTYPE)
            gate = dot(odd, high, gate, DTYPE)
            low, high = load_expanded(up_codes, up_scales, rows, first, limit, HIDDEN, COLUMNS)
            up = dot(even, low, up, DTYPE)
            up = dot(odd, high, up, DTYPE)
        gate *= tl.load(gate_global + expert)
        up *= tl.load(up_global + expert)
        gate = gelu_tanh(gate) if GELU else gate * tl.sigmoid(gate)
        result = gate * up
        target = act + (begin + pair).to(tl.int64)[:, None] * INTER + row[None, :]
        inside = live[:, None] & (row < INTER)[None, :]
        tl.store(target, result.to(act.dtype.element_ty), mask=inside)


@triton.jit
def _down_kernel(
    act,
    codes,
    scales,
    global_scale,
    slots,
    active,
    out,
    HIDDEN: tl.constexpr,
    INTER: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """One tile of rows of one expert, all its pairs: out = down act."""
    slot = tl.program_id(1)
    if slot >= tl.load(active):
        return
    expert = tl.load(slots + slot * 4).to(tl.int64)
    begin = tl.load(slots + slot * 4 + 1)
    count = tl.load(slots + slot * 4 + 2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = expert * HIDDEN + row
    limit = (expert + 1) * HIDDEN
    half = tl.arange(0, COLUMNS // 2)
    for done in range(0, count, TOKENS):
        pair = done + tl.arange(0, TOKENS)
        live = pair < count
        place = (begin + pair).to(tl.int64)
        total = tl.zeros([TOKENS, ROWS], dtype=tl.float32)
        for first in range(0, INTER, COLUMNS):
            column = first + 2 * half
            source = act + place[:, None] * INTER + column[None, :]
            inside = live[:, None] & (column < INTER)[None, :]
            even = tl.load(source, mask=inside, other=0.0)
            odd = tl.load(source + 1, mask=inside, other=0.0)
            low, high = load_expanded(codes, scales, rows, first, limit, INTER, COLUMNS)
            total = dot(even, low, total, DTYPE)
            total = dot(odd, high, total, DTYPE)
        total *= tl.load(global_scale + expert)
        target = out + place[:, None] * HIDDEN + row[None, :]
        tl.store(target, total, mask=live[:, None] & (row < HIDDEN)[None, :])


def combine(
    by_pair: Tensor,
    routing: Routing,
    shared: Tensor | None,
    residual: Tensor,
    out: Tensor,
    norm_weight: Tensor | None = None,
    normed: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """out = residual + shared + sum_k w_k * by_pair[place_k], in slot order, rounded once; out may
    be residual.

    by_pair float32 [P, H]; shared, residual, out [T, H]. With norm_weight [H], normed [T, H] also
    gets the RMSNorm of out (rounded before the weight multiplies, as LLaDA2 does): the next layer's
    input, without another launch.
    """
    tokens, top_k = routing.ids.shape
    hidden = residual.shape[1]
    assert (norm_weight is None) == (normed is None)
    _combine_kernel[(tokens,)](
        by_pair,
        routing.pair_place,
        routing.weights,
        residual if shared is None else shared,
        residual,
        out,
        out if norm_weight is None else norm_weight,
        out if normed is None else normed,
        eps,
        HIDDEN=hidden,
        HIDDEN_2=triton.next_power_of_2(hidden),
        TOP_K=top_k,
        SHARED=shared is not None,
        NORM=norm_weight is not None,
        num_warps=8,
    )


@triton.jit
def _combine_kernel(
    by_pair,
    pair_place,
    weights,
    shared,
    residual,
    out,
    norm_weight,
    normed,
    eps,
    HIDDEN: tl.constexpr,
    HIDDEN_2: tl.constexpr,
    TOP_K: tl.constexpr,
    SHARED: tl.constexpr,
    NORM: tl.constexpr,
):
    """One token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HIDDEN_2)
    live = column < HIDDEN
    total = tl.zeros([HIDDEN_2], dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        place = tl.load(pair_place + token * TOP_K + k).to(tl.int64)
        weight = tl.load(weights + token * TOP_K + k)
        total += weight * tl.load(by_pair + place * HIDDEN + column, mask=live, other=0.0)
    if SHARED:
        total += tl.load(shared + token * HIDDEN + column, mask=live, other=0.0).to(tl.float32)
    total += tl.load(residual + token * HIDDEN + column, mask=live, other=0.0).to(tl.float32)
    rounded = total.to(out.dtype.element_ty)
    tl.store(out + token * HIDDEN + column, rounded, mask=live)
    if NORM:
        wide = rounded.to(tl.float32)
        inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / HIDDEN + eps)
        scaled = (wide * inverse).to(out.dtype.element_ty)
        weight = tl.load(norm_weight + column, mask=live, other=0.0)
        tl.store(normed + token * HIDDEN + column, scaled * weight, mask=live)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """gate_up [T, 2 I] (gate, then up) -> out [T, I] = silu(gate) * up, in float32 and rounded
    once."""
    tokens, inter = out.shape
    _silu_mul_kernel[(tokens, triton.cdiv(inter, 1024))](gate_up, out, INTER=inter, WIDTH=1024)


@triton.jit
def _silu_mul_kernel(gate_up, out, INTER: tl.constexpr, WIDTH: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    live = column < INTER
    row = gate_up + token * 2 * INTER + column
    gate = tl.load(row, mask=live, other=0.0).to(tl.float32)
    up = tl.load(row + INTER, mask=live, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(out + token * INTER + column, result.to(out.dtype.element_ty), mask=live)
