"""Writes a trace record in one launch: the Triton counterpart of `TraceRing.record`.

Knows the record's layout (`engine.runtime.ring`) and nothing of what the numbers mean. One program
a row of the batch. At capture level 0 only the header and the counters are written.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from engine.decoding.state import BlockState
from engine.runtime.reply import Control, ReplyState
from engine.runtime.ring import ARRAYS, HEADER, META, TraceRing
from engine.types import TokenState

_STEPS = tl.constexpr(int(Control.STEPS))
_KEEP_STEP = tl.constexpr(int(Control.KEEP_STEP))
_LEVEL = tl.constexpr(int(Control.LEVEL))
_HEADER, _META = tl.constexpr(HEADER), tl.constexpr(META)
_PROMPT = tl.constexpr(int(TokenState.PROMPT))
_DRAFT = tl.constexpr(int(TokenState.DRAFT))
_EDITED = tl.constexpr(int(TokenState.EDITED))
_COMMITTED = tl.constexpr(int(TokenState.COMMITTED))


@triton.jit
def _record_kernel(
    records,
    control,
    blocks,
    forwards,
    prompt_length,
    step,
    start,
    tokens,
    proposal,
    edited,
    confidence,
    entropy,
    replaced,
    slots,
    words,
    mask_id,
    length: tl.constexpr,
    padded: tl.constexpr,
):
    row = tl.program_id(0)
    batch = tl.num_programs(0)
    index = tl.load(control + _STEPS)
    record = records + (index % slots) * words
    taken, first = tl.load(step + row), tl.load(start + row)
    if row == 0:
        tl.store(record + 2, index.to(tl.int32))
        tl.store(record + 3, (tl.load(control + _KEEP_STEP) == 0).to(tl.int32))
    meta = record + _HEADER + row * _META
    tl.store(meta, tl.load(blocks + row).to(tl.int32))
    tl.store(meta + 1, (taken - 1).to(tl.int32))
    tl.store(meta + 2, first.to(tl.int32))
    tl.store(meta + 3, (tl.load(forwards + row) + taken).to(tl.int32))
    if tl.load(control + _LEVEL) > 0:
        column = tl.arange(0, padded)
        inside = column < length
        at = row * length + column
        token = tl.load(tokens + at, inside, 0)
        masked = token == mask_id
        prompt = first + column < tl.load(prompt_length + row)
        shown = tl.where(masked, tl.load(proposal + at, inside, 0), token)
        was_edited = tl.load(edited + at, inside, 0) != 0
        kind = tl.where(was_edited, _EDITED, _COMMITTED)
        kind = tl.where(masked, _DRAFT, kind)
        kind = tl.where(prompt, _PROMPT, kind)
        sure = tl.where(prompt, float("nan"), tl.load(confidence + at, inside, 0.0))
        spread = tl.where(prompt, float("nan"), tl.load(entropy + at, inside, 0.0))
        size = batch * length
        array = record + _HEADER + batch * _META + at
        tl.store(array, shown.to(tl.int32), inside)
        tl.store(array + size, kind.to(tl.int32), inside)
        tl.store(array + 2 * size, sure.to(tl.int32, bitcast=True), inside)
        tl.store(array + 3 * size, spread.to(tl.int32, bitcast=True), inside)
        tl.store(array + 4 * size, tl.load(replaced + at, inside, 0).to(tl.int32), inside)


def record_in_one_launch(ring: TraceRing, state: BlockState, reply: ReplyState) -> None:
    """See `TraceRing.record`. All tensors contiguous, on one device."""
    assert ARRAYS == 5
    length = ring.block_length
    _record_kernel[(ring.batch,)](
        ring.records,
        reply.control,
        reply.blocks,
        reply.forwards,
        reply.prompt_length,
        state.step,
        state.start,
        state.tokens,
        state.proposal,
        state.edited,
        state.confidence,
        state.entropy,
        state.replaced,
        ring.slots,
        ring.words,
        reply.mask_id,
        length=length,
        padded=triton.next_power_of_2(length),
    )
