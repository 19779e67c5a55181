"""Routed experts whose weights are dense (bfloat16 checkpoints): grouped products of sorted pairs.

The same sums and the same lists as `moe.py`, whose weights are packed; the reference is
`experts_dense_reference`. Knows nothing of how experts are chosen.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gelu import gelu_tanh
from engine.kernels.moe import TRITON_DTYPE, dot
from engine.kernels.routing import Routing


@dataclass(frozen=True)
class DenseTiling:
    """Tile sizes: tokens x rows x columns, warps and pipeline stages."""

    tokens: int = 16
    rows: int = 64
    columns: int = 128
    warps: int = 4
    stages: int = 4


def experts_dense_reference(
    x: Tensor, ids: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """x [T, H], ids int64 [T, K], gate, up [E, I, H], down [E, H, I] -> [T, K, H], unweighted, in
    x's dtype."""
    out = x.new_empty(*ids.shape, x.shape[1])
    for e in ids.unique().tolist():
        where = (ids == e).nonzero()
        rows = x[where[:, 0]]
        inner = F.silu(rows @ gate[e].T) * (rows @ up[e].T)
        out[where[:, 0], where[:, 1]] = inner @ down[e].T
    return out


def grouped_dense_experts(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    routing: Routing,
    act: Tensor,
    out: Tensor,
    tiling: DenseTiling = DenseTiling(),
    gelu: bool = False,
) -> None:
    """x [T, H], gate, up [E, I, H] and down [E, H, I] contiguous, of one dtype (float32, float16 or
    bfloat16) -> out float32 [P, H], a row for each sorted pair, unweighted.

    act [P, I] in x's dtype is a workspace. Sums are float32; float32 inputs are multiplied in full.
    gelu: in its tanh form, in place of silu.
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
    lists = (routing.slots, routing.active)
    _gate_up_kernel[(triton.cdiv(inter, tiling.rows), slots)](
        x,
        gate,
        up,
        *lists,
        routing.pair_token,
        act,
        HIDDEN=hidden,
        INTER=inter,
        GELU=gelu,
        **common,
    )
    _down_kernel[(triton.cdiv(hidden, tiling.rows), slots)](
        act, down, *lists, out, HIDDEN=hidden, INTER=inter, **common
    )


@triton.jit
def _gate_up_kernel(
    x,
    gate_weight,
    up_weight,
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
    column = tl.arange(0, COLUMNS)
    rows = (expert * INTER + row) * HIDDEN
    for done in range(0, count, TOKENS):
        pair = done + tl.arange(0, TOKENS)
        live = pair < count
        token = tl.load(pair_token + begin + pair, mask=live, other=0).to(tl.int64)
        gate = tl.zeros([TOKENS, ROWS], dtype=tl.float32)
        up = tl.zeros([TOKENS, ROWS], dtype=tl.float32)
        for first in range(0, HIDDEN, COLUMNS):
            inside = first + column < HIDDEN
            here = rows[:, None] + first + column[None, :]
            weights = (row < INTER)[:, None] & inside[None, :]
            source = x + token[:, None] * HIDDEN + first + column[None, :]
            left = tl.load(source, mask=live[:, None] & inside[None, :], other=0.0)
            gate = dot(left, tl.load(gate_weight + here, mask=weights, other=0.0), gate, DTYPE)
            up = dot(left, tl.load(up_weight + here, mask=weights, other=0.0), up, DTYPE)
        gate = gelu_tanh(gate) if GELU else gate * tl.sigmoid(gate)
        result = gate * up
        target = act + (begin + pair).to(tl.int64)[:, None] * INTER + row[None, :]
        inside = live[:, None] & (row < INTER)[None, :]
        tl.store(target, result.to(act.dtype.element_ty), mask=inside)


@triton.jit
def _down_kernel(
    act,
    weight,
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
    column = tl.arange(0, COLUMNS)
    rows = (expert * HIDDEN + row) * INTER
    for done in range(0, count, TOKENS):
        pair = done + tl.arange(0, TOKENS)
        live = pair < count
        place = (begin + pair).to(tl.int64)
        total = tl.zeros([TOKENS, ROWS], dtype=tl.float32)
        for first in range(0, INTER, COLUMNS):
            inside = first + column < INTER
            here = rows[:, None] + first + column[None, :]
            weights = (row < HIDDEN)[:, None] & inside[None, :]
            source = act + place[:, None] * INTER + first + column[None, :]
            left = tl.load(source, mask=live[:, None] & inside[None, :], other=0.0)
            total = dot(left, tl.load(weight + here, mask=weights, other=0.0), total, DTYPE)
        target = out + place[:, None] * HIDDEN + row[None, :]
        tl.store(target, total, mask=live[:, None] & (row < HIDDEN)[None, :])
