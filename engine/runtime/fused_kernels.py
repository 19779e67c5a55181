"""The bookkeeping of a reply in one launch a piece: Triton counterparts of the rules of
`engine.decoding.rules` and of `ReplyState.begin_block`, `end_step`, `look_ahead`, `end_block`.

Same numbers in the same buffers, so that the torch functions are the reference. One program a row
of the batch; what depends on all rows is done by the last program to finish, in no particular
order (flags only, so the result does not depend on it).
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from engine.runtime.reply import FAR, LOG_FIELDS, LOG_HEADER, STOP_IDS, Control, Reason
from engine.runtime.ring import HEADER, META
from engine.types import TokenState

_KEEP_STEP = tl.constexpr(int(Control.KEEP_STEP))
_KEEP_BLOCK = tl.constexpr(int(Control.KEEP_BLOCK))
_COMMIT = tl.constexpr(int(Control.COMMIT))
_STOP = tl.constexpr(int(Control.STOP))
_STEPS = tl.constexpr(int(Control.STEPS))
_BLOCKS = tl.constexpr(int(Control.BLOCKS))
_LEVEL = tl.constexpr(int(Control.LEVEL))
_READY = tl.constexpr(int(Control.READY))
_ACCEPTED = tl.constexpr(int(Control.ACCEPTED))
_STOP_TOKEN = tl.constexpr(int(Reason.STOP_TOKEN))
_LENGTH = tl.constexpr(int(Reason.LENGTH))
_STOPPED = tl.constexpr(int(Reason.STOPPED))
_DID_NOT_CONVERGE = tl.constexpr(int(Reason.DID_NOT_CONVERGE))
_NONFINITE = tl.constexpr(int(Reason.NONFINITE))
_FAR, _STOP_IDS = tl.constexpr(FAR), tl.constexpr(STOP_IDS)
_LOG_HEADER, _LOG_FIELDS = tl.constexpr(LOG_HEADER), tl.constexpr(LOG_FIELDS)
_HEADER, _META = tl.constexpr(HEADER), tl.constexpr(META)
_PROMPT = tl.constexpr(int(TokenState.PROMPT))
_DRAFT = tl.constexpr(int(TokenState.DRAFT))
_EDITED = tl.constexpr(int(TokenState.EDITED))
_COMMITTED = tl.constexpr(int(TokenState.COMMITTED))


@triton.jit
def any_of(flags):
    """int1: whether any element is set."""
    return tl.max(flags.to(tl.int32), axis=0) > 0


@triton.jit
def all_rows(flags, inside):
    """int1: whether every row's flag (a loaded byte) is set."""
    return tl.min(tl.where(inside, (flags != 0).to(tl.int32), 1), axis=0) > 0


@triton.jit
def any_row(flags, inside):
    """int1: whether some row's flag is set."""
    return tl.max(tl.where(inside, (flags != 0).to(tl.int32), 0), axis=0) > 0


@triton.jit
def stops_of(tokens, stop_ids, COUNT: tl.constexpr):
    """int1 [L]: tokens that are one of COUNT stop ids."""
    found = tokens < 0  # none
    for n in tl.static_range(COUNT):
        found = found | (tokens == tl.load(stop_ids + n))
    return found


@triton.jit
def step_kernel(
    tokens, prompt, start, step, post, finished, settled, converged, nonfinite, proposal,
    confidence, entropy, changed, edited, replaced,
    said_proposal, said_confidence, said_asked, said_entropy, said_nonfinite,
    reals, counts, rule_stops,
    reason, blocks, max_blocks, prompt_length, step_cap, stop_ids, forwards, control,
    records, slots, words, flags, ticket, mask_id, capacity,
    LENGTH: tl.constexpr, PADDED: tl.constexpr, BATCH: tl.constexpr, BATCH_2: tl.constexpr,
    EDITING: tl.constexpr, RULE_STOPS: tl.constexpr, STOP_INSIDE: tl.constexpr,
    STOP_AFTER: tl.constexpr, AHEAD: tl.constexpr, VERIFY: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """The rule, the end of the step and its record. flags int32 [2, BATCH]: scratch. EDITING: the
    rule of 2.1, else that of 2.0. AHEAD: READY is wanted, VERIFY: ACCEPTED too."""
    row = tl.program_id(0)
    column = tl.arange(0, PADDED)
    inside = column < LENGTH
    at = row * LENGTH + column
    index = tl.load(control + _STEPS)
    level = tl.load(control + _LEVEL)

    old = tl.load(tokens + at, inside, 0)
    held = tl.load(prompt + at, inside, 1) != 0
    free = inside & (held == 0)
    masked = free & (old == mask_id)
    active = tl.load(finished + row) == 0
    taken = tl.load(step + row)
    wanted = tl.load(said_proposal + at, inside, 0).to(tl.int64)
    sure = tl.load(said_confidence + at, inside, 0.0)
    threshold = tl.load(reals + row)

    over = masked & (sure > threshold)
    rated = tl.where(masked, sure, float("-inf"))
    better = rated[None, :] > rated[:, None]
    same = (rated[None, :] == rated[:, None]) & (column[None, :] < column[:, None])
    rank = tl.sum((better | same).to(tl.int64), axis=1)
    if EDITING:
        need = tl.load(counts + BATCH + row)
    else:
        steps = tl.load(counts + 2 * BATCH + row)
        need = LENGTH // steps + tl.where(taken < LENGTH % steps, 1, 0)
    enough = tl.sum(over.to(tl.int64), axis=0) >= need
    chosen = (over & enough) | (masked & (rank < need) & (enough == 0))
    edits = inside & (column < 0)
    if EDITING:
        editing = tl.load(reals + BATCH + row)
        edits = free & (masked == 0) & (sure > editing) & (wanted != old)
    new = tl.where(chosen | edits, wanted, old)
    open_now = free & (new == mask_id)
    open_after = any_of(open_now)
    stop = free & stops_of(new, rule_stops, RULE_STOPS)
    before_stop = tl.cumsum(stop.to(tl.int32), axis=0) == 0
    complete = any_of(stop) & (any_of(open_now & before_stop) == 0)
    was_settled = tl.load(settled + row) != 0
    if EDITING:
        open_before = any_of(masked)
        edited_now = any_of(edits)
        after = tl.load(post + row) + (active & (open_before == 0)).to(tl.int64)
        settled_now = (open_before == 0) & (edited_now == 0)
        out_of_steps = (open_after == 0) & (after + 1 > tl.load(counts + row))
        done = settled_now | out_of_steps
        if STOP_INSIDE:
            fixed = tl.load(reals + BATCH + row) == float("inf")
            done = done | (fixed & (complete | (open_after == 0)))
        was_settled = (active & settled_now) | ((active == 0) & was_settled)
        unsettled = active & out_of_steps & edited_now
        fine = (tl.load(converged + row) != 0) & (unsettled == 0)
        tl.store(post + row, after)
        tl.store(settled + row, was_settled.to(tl.uint8))
        tl.store(converged + row, fine.to(tl.uint8))
    else:
        steps = tl.load(counts + 2 * BATCH + row)
        done = (open_after == 0) | (taken + 1 >= steps)
        if STOP_INSIDE:
            done = done | complete

    # What `write` does.
    edits = edits & active
    now = tl.where(active, new, old)
    was_edited = (tl.load(edited + at, inside, 0) != 0) | edits
    kept_proposal = tl.load(proposal + at, inside, 0)
    shown_proposal = tl.where(active, wanted, kept_proposal)
    asked = tl.load(said_asked + at, inside, 0.0)
    chance = tl.where((now == mask_id) | chosen | edits, sure, asked)
    shown_chance = tl.where(active, chance, tl.load(confidence + at, inside, 0.0))
    doubt = tl.load(said_entropy + at, inside, 0.0)
    shown_doubt = tl.where(active, doubt, tl.load(entropy + at, inside, 0.0))
    gone = tl.where(edits, old, -1)
    tl.store(tokens + at, now, inside)
    tl.store(replaced + at, gone, inside)
    tl.store(changed + at, (active & (new != old)).to(tl.uint8), inside)
    tl.store(edited + at, was_edited.to(tl.uint8), inside)
    tl.store(proposal + at, shown_proposal, inside)
    tl.store(confidence + at, shown_chance, inside)
    tl.store(entropy + at, shown_doubt, inside)
    broken = any_of(inside & (tl.load(said_nonfinite + at, inside, 0) > 0)) & active
    bad = (tl.load(nonfinite + row) != 0) | broken
    taken += active.to(tl.int64)
    over_now = (active == 0) | done | (taken >= tl.load(step_cap + row))
    tl.store(nonfinite + row, bad.to(tl.uint8))
    tl.store(step + row, taken)
    tl.store(finished + row, over_now.to(tl.uint8))

    # What the reductions over all rows need.
    first = tl.load(start + row)
    known = tl.load(prompt_length + row)
    waiting = any_of(free & (now == mask_id)) & (over_now == 0)
    more = (tl.load(reason + row) == 0) & (tl.load(blocks + row) + 1 < tl.load(max_blocks + row))
    if STOP_AFTER:
        own = stops_of(now, stop_ids + row * _STOP_IDS, _STOP_IDS)
        own = own & inside & (first + column >= known)
        more = more & (any_of(own) == 0)
    tl.store(flags + row, waiting.to(tl.int32))
    tl.store(flags + BATCH + row, more.to(tl.int32))

    if RECORD:
        record = records + (index % slots) * words
        meta = record + _HEADER + row * _META
        tl.store(meta, tl.load(blocks + row).to(tl.int32))
        tl.store(meta + 1, (taken - 1).to(tl.int32))
        tl.store(meta + 2, first.to(tl.int32))
        tl.store(meta + 3, (tl.load(forwards + row) + taken).to(tl.int32))
        if level > 0:
            still = now == mask_id
            prompted = first + column < known
            kind = tl.where(was_edited, _EDITED, _COMMITTED)
            kind = tl.where(still, _DRAFT, kind)
            kind = tl.where(prompted, _PROMPT, kind)
            not_judged = float("nan")
            size = BATCH * LENGTH
            array = record + _HEADER + BATCH * _META + at
            chance_bits = tl.where(prompted, not_judged, shown_chance).to(tl.int32, bitcast=True)
            doubt_bits = tl.where(prompted, not_judged, shown_doubt).to(tl.int32, bitcast=True)
            tl.store(array, tl.where(still, shown_proposal, now).to(tl.int32), inside)
            tl.store(array + size, kind.to(tl.int32), inside)
            tl.store(array + 2 * size, chance_bits, inside)
            tl.store(array + 3 * size, doubt_bits, inside)
            tl.store(array + 4 * size, gone.to(tl.int32), inside)

    tl.debug_barrier()
    if tl.atomic_add(ticket, 1) == BATCH - 1:
        tl.store(ticket, 0)
        rows = tl.arange(0, BATCH_2)
        there = rows < BATCH
        ended = all_rows(tl.load(finished + rows, there, 1, volatile=True), there)
        failed = any_row(tl.load(nonfinite + rows, there, 0, volatile=True), there)
        keep = (ended | failed) == 0
        tl.store(control + _KEEP_STEP, keep.to(tl.int64))
        waits = tl.load(flags + rows, there, 0, volatile=True)
        needs = tl.load(flags + BATCH + rows, there, 0, volatile=True)
        if AHEAD:
            starts = tl.load(start + rows, there, 0)
            room = all_rows((starts + 2 * LENGTH <= capacity).to(tl.int32), there)
            ready = keep & room & (any_row(waits, there) == 0) & any_row(needs, there)
            tl.store(control + _READY, ready.to(tl.int64))
        if VERIFY:
            calm = tl.load(settled + rows, there, 1, volatile=True)
            agreed = all_rows(((calm != 0) | (needs == 0)).to(tl.int32), there)
            accepted = ended & (failed == 0) & any_row(needs, there) & agreed
            tl.store(control + _ACCEPTED, accepted.to(tl.int64))
        if RECORD:
            header = records + (index % slots) * words
            tl.store(header + 2, index.to(tl.int32))
            tl.store(header + 3, (keep == 0).to(tl.int32))
        tl.store(control + _STEPS, index + 1)


@triton.jit
def begin_kernel(
    previous, tokens, prompt, start, step, post, finished, settled, converged, nonfinite, edited,
    replaced, original, initial_masks, seen_count,
    known, first_start, reason, blocks, forwards, control, mask_id, capacity,
    LENGTH: tl.constexpr, PADDED: tl.constexpr, FREE: tl.constexpr,
):  # fmt: skip
    """Lays the next block of a row onto the canvas. FREE: its first step takes no forward of its
    own (`ReplyState.count_step_ahead`)."""
    row = tl.program_id(0)
    column = tl.arange(0, PADDED)
    inside = column < LENGTH
    at = row * LENGTH + column
    over = tl.load(reason + row) != 0
    first = tl.load(first_start + row) + tl.load(blocks + row) * LENGTH
    first = tl.where(over, tl.minimum(first, tl.maximum(capacity - 2 * LENGTH, 0)), first)
    there = tl.load(known + row.to(tl.int64) * capacity + first + column, inside, -1)
    held = there >= 0
    canvas = tl.where(held, there, mask_id)
    tl.store(previous + at, tl.load(tokens + at, inside, 0), inside)
    tl.debug_barrier()
    empty = inside & (canvas == mask_id)
    tl.store(tokens + at, canvas, inside)
    tl.store(prompt + at, held.to(tl.uint8), inside)
    tl.store(original + at, empty.to(tl.uint8), inside)
    tl.store(edited + at, (column < 0).to(tl.uint8), inside)
    tl.store(replaced + at, (column * 0 - 1).to(tl.int64), inside)
    tl.store(start + row, first)
    tl.store(initial_masks + row, tl.sum(empty.to(tl.int64), axis=0))
    none = row.to(tl.int64) * 0
    tl.store(step + row, none)
    tl.store(post + row, none)
    tl.store(seen_count + row, none)
    tl.store(settled + row, none.to(tl.uint8))
    tl.store(nonfinite + row, none.to(tl.uint8))
    tl.store(converged + row, (none + 1).to(tl.uint8))
    tl.store(finished + row, over.to(tl.uint8))
    if FREE:
        tl.store(forwards + row, tl.load(forwards + row) - (over == 0).to(tl.int64))
    if row == 0:
        tl.store(control + _KEEP_STEP, none + 1)
        tl.store(control + _READY, none)
        tl.store(control + _ACCEPTED, none)


@triton.jit
def end_kernel(
    tokens, start, step, finished, settled, state_converged, nonfinite,
    prompt_length, max_new, max_blocks, stop_ids, reason, blocks, length, forwards, commits,
    first_stop, converged, control, log, words, ticket, mask_id,
    LENGTH: tl.constexpr, PADDED: tl.constexpr, BATCH: tl.constexpr, BATCH_2: tl.constexpr,
    STOP_AFTER: tl.constexpr,
):  # fmt: skip
    """Takes the block of a row into its reply and logs it; see `ReplyState.end_block`."""
    row = tl.program_id(0)
    rows = tl.arange(0, BATCH_2)
    there = rows < BATCH
    bad = any_row(tl.load(nonfinite + rows, there, 0), there)
    asked = (tl.load(control + _STOP) != 0) & (bad == 0)
    cut = asked & (all_rows(tl.load(finished + rows, there, 1), there) == 0)
    slot = tl.load(control + _BLOCKS)
    steps = tl.load(control + _STEPS)

    column = tl.arange(0, PADDED)
    inside = column < LENGTH
    token = tl.load(tokens + row * LENGTH + column, inside, 0)
    known = tl.load(prompt_length + row)
    limit = tl.load(max_new + row)
    first = tl.load(start + row)
    place = first + column - known
    generated = inside & (place >= 0) & (place < limit)
    end = tl.minimum(first + LENGTH - known, limit)
    stop = generated & stops_of(token, stop_ids + row * _STOP_IDS, _STOP_IDS)
    far = place * 0 + _FAR
    stop_here = tl.min(tl.where(stop, place, far), axis=0)
    first_mask = tl.min(tl.where(generated & (token == mask_id), place, far), axis=0)

    why = tl.load(reason + row)
    going_on = why == 0
    number = tl.load(blocks + row)
    stopped_at = tl.minimum(tl.load(first_stop + row), stop_here)
    last = number + 1 >= tl.load(max_blocks + row)
    hit = stopped_at < _FAR
    if not STOP_AFTER:
        hit = hit & last
    size = tl.where(hit, stopped_at + 1, end)
    ending = tl.where(last, _LENGTH, 0)
    ending = tl.where(hit, _STOP_TOKEN, ending)
    capped = (first_mask < size) & (cut == 0) & (bad == 0)
    size = tl.where(capped, first_mask, size)
    ending = tl.where(capped, _DID_NOT_CONVERGE, ending)
    size = tl.where(cut, tl.minimum(tl.minimum(first_mask, stop_here), end), size)
    ending = tl.where(cut | (asked & (ending == 0)), _STOPPED, ending)
    ending = tl.where(bad, _NONFINITE, ending)

    advanced = going_on & (cut == 0) & (bad == 0)
    size = tl.where(going_on & (bad == 0), size, tl.load(length + row))
    why = tl.where(going_on, ending.to(tl.int64), why)
    stopped_at = tl.where(advanced, stopped_at, tl.load(first_stop + row))
    calm = tl.load(state_converged + row) != 0
    fine = (tl.load(converged + row) != 0) & ((advanced & (capped | (calm == 0))) == 0)
    number += advanced.to(tl.int64)
    spent = tl.load(forwards + row) + tl.where(going_on, tl.load(step + row), 0)
    tl.store(length + row, size)
    tl.store(reason + row, why)
    tl.store(first_stop + row, stopped_at)
    tl.store(converged + row, fine.to(tl.uint8))
    tl.store(blocks + row, number)
    tl.store(forwards + row, spent)

    entry = log + slot * words
    if row == 0:
        tl.store(entry, slot.to(tl.int32) * 0)
        tl.store(entry + 1, slot.to(tl.int32) * 0)
        tl.store(entry + 2, steps.to(tl.int32))
        tl.store(entry + 3, slot.to(tl.int32) * 0)
    mine = entry + _LOG_HEADER + row * (_LOG_FIELDS + LENGTH)
    tl.store(mine, going_on.to(tl.int32))
    tl.store(mine + 1, advanced.to(tl.int32))
    tl.store(mine + 2, size.to(tl.int32))
    tl.store(mine + 3, why.to(tl.int32))
    tl.store(mine + 4, fine.to(tl.int32))
    tl.store(mine + 5, spent.to(tl.int32))
    tl.store(mine + 6, tl.load(commits + row).to(tl.int32))
    tl.store(mine + 7, first.to(tl.int32))
    tl.store(mine + _LOG_FIELDS + column, token.to(tl.int32), inside)

    tl.debug_barrier()
    if tl.atomic_add(ticket, 1) == BATCH - 1:
        tl.store(ticket, 0)
        over = tl.load(reason + rows, there, 1, volatile=True) != 0
        final = tl.load(settled + rows, there, 1) != 0
        owed = any_row(((over == 0) & (final == 0)).to(tl.int32), there)
        tl.store(control + _COMMIT, owed.to(tl.int64))
        tl.store(control + _KEEP_BLOCK, (all_rows(over.to(tl.int32), there) == 0).to(tl.int64))
        tl.store(control + _BLOCKS, slot + 1)
