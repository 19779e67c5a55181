"""Where a reply is, block by block, as static device buffers: what begins, what ends, and why.

Knows counting, stop tokens and limits, as tensor functions that mutate in place and never read the
host: the eager loop calls them, a captured graph replays them. Knows no model and no decoding rule.
The host loads a request (`load`) and reads the log of ended blocks (`block_ends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.decoding.rules import Rule
from engine.decoding.state import BlockState
from engine.decoding.steering import SteeringState
from engine.errors import RequestError
from engine.runtime.rows import BlockEnd, Row
from engine.types import StopReason

STOP_IDS = 16  # stop tokens one model can have
FAR = 2**40  # a place in the reply no token reaches


class Control(IntEnum):
    """Words of `ReplyState.control` (int64), the loop's registers. The loop kernels in
    `engine/kernels/cuda/reply_loop.cu` read them by these numbers."""

    KEEP_STEP = 0  # the block goes on after this step
    KEEP_BLOCK = 1  # the reply goes on after this block
    COMMIT = 2  # the KV of the finished block is not final yet
    STOP = 3  # the host asked to stop
    STEPS = 4  # steps done
    BLOCKS = 5  # blocks ended: entries of the log
    LIMIT = 6  # steps no correct reply reaches
    LEVEL = 7  # what the trace records: 0 nothing, 1 every step
    READY = 8  # no row waits for a mask: the next step may settle the block
    ACCEPTED = 9  # the block is settled, and the step ahead into the next one counts
    OPEN = 10  # a block is under way as the outer loop begins anew (the loop kernels' own)
    TAKEN = 11  # the step ahead was taken in this iteration (the loop kernels' own)


class Reason(IntEnum):
    """Why a row is over, as the device writes it."""

    GOING_ON = 0
    STOP_TOKEN = 1
    LENGTH = 2
    STOPPED = 3
    DID_NOT_CONVERGE = 4
    NONFINITE = 5


REASONS: dict[int, StopReason | None] = {
    Reason.GOING_ON: None,
    Reason.STOP_TOKEN: "stop_token",
    Reason.LENGTH: "length",
    Reason.STOPPED: "stopped",
    Reason.DID_NOT_CONVERGE: "did_not_converge",
    Reason.NONFINITE: None,
}

# One entry of the log, int32: the time it was written, then for every row its numbers and tokens.
LOG_HEADER = 4  # time (two words), steps done, unused
LOG_FIELDS = 8  # was going on, advanced, length, reason, converged, forwards, commits, block start


class ReplyState:
    """One reply per row of the batch. Shapes: [B, 1] unless said otherwise; integers int64.

    known [B, capacity]: the token a position is known to hold before its block begins (prompt and
    forced tokens), -1 elsewhere. first_start: absolute position of the first denoised block.
    max_new, max_blocks, step_cap: limits; step_cap is in forwards per block. stop_ids [B,
    STOP_IDS]: -1 where unused. reason: `Reason`. blocks: finished blocks. length: generated tokens
    kept. first_stop: place of the first stop token among the generated ones, FAR when there is
    none. forwards, commits: decode forwards, and those of them spent on a commit alone. cursor [1]:
    next position to prefill. control [12]: see `Control`. log [capacity / L, words]: one entry per
    ended block, appended to only.
    """

    def __init__(
        self,
        batch: int,
        block_length: int,
        capacity: int,
        mask_id: int,
        stop_after_block: bool,
        device: torch.device,
    ) -> None:
        self.block_length, self.capacity = block_length, capacity
        self.mask_id, self.stop_after_block = mask_id, stop_after_block

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.known = ints(batch, capacity)
        self.limits = ints(5, batch, 1)
        self.prompt_length, self.first_start, self.max_new = self.limits[:3]
        self.max_blocks, self.step_cap = self.limits[3:]
        self.stop_ids = ints(batch, STOP_IDS)
        self.counts = ints(5, batch, 1)
        self.reason, self.blocks, self.length, self.forwards, self.commits = self.counts
        self.first_stop = ints(batch, 1)
        self.converged = torch.ones(batch, 1, dtype=torch.bool, device=device)
        self.cursor = ints(1)
        self.control = ints(len(Control))
        self.columns = torch.arange(block_length, device=device)
        self.steering = SteeringState(batch, capacity, device)
        words = LOG_HEADER + batch * (LOG_FIELDS + block_length)
        self.log = torch.zeros(
            capacity // block_length, words + words % 2, dtype=torch.int32, device=device
        )

    @property
    def batch(self) -> int:
        return self.known.shape[0]

    def word(self, which: Control) -> Tensor:
        """int64 [1], a view."""
        return self.control[which : which + 1]

    def load(self, rows: Sequence[Row], rule: Rule, level: int) -> None:
        """Overwrites every buffer in place with a new request of B rows. Raises RequestError for a
        reply that would not fit the buffers. Rows that already have a reason stay as they are."""
        known = torch.full(self.known.shape, -1, dtype=torch.int64)
        stop_ids = torch.full(self.stop_ids.shape, -1, dtype=torch.int64)
        for index, row in enumerate(rows):
            self._check(row)
            known[index, : len(row.prompt)] = torch.as_tensor(row.prompt, dtype=torch.int64)
            for position, token in row.steering.forced.items():
                if not len(row.prompt) <= position < self.capacity:
                    raise _unfit(f"A token is forced at position {position}.")
                known[index, position] = token
            stop_ids[index, : len(row.stop_ids)] = torch.tensor(sorted(row.stop_ids))
        caps = [self._cap(row, rule) for row in rows]
        limits = [
            [len(row.prompt) for row in rows],
            [row.first_block_start for row in rows],
            [row.max_new_tokens for row in rows],
            [row.max_blocks for row in rows],
            caps,
        ]
        self.known.copy_(known)
        self.limits.copy_(torch.tensor(limits).unsqueeze(-1))
        self.stop_ids.copy_(stop_ids)
        self.counts.zero_()
        over = [[Reason.GOING_ON if row.reason is None else Reason.STOPPED] for row in rows]
        self.reason.copy_(torch.tensor(over, dtype=torch.int64))
        self.first_stop.fill_(FAR)
        self.converged.fill_(True)
        self.cursor.zero_()
        control = torch.zeros(len(Control), dtype=torch.int64)
        control[Control.LIMIT] = max(row.max_blocks for row in rows) * (max(caps) + 2)
        control[Control.LEVEL] = level
        self.control.copy_(control)
        self.steering.load([row.steering for row in rows])

    def _cap(self, row: Row, rule: Rule) -> int:
        """Forwards per block that no correct run reaches; what is taken back may take one more."""
        settings = [row.settings, *(later for _, later in row.steering.switches)]
        most = max(rule.step_cap(each, self.block_length) for each in settings)
        return most + len(row.steering.placements)

    def _check(self, row: Row) -> None:
        end = row.first_block_start + row.max_blocks * self.block_length
        if end > self.capacity:
            raise _unfit(f"The reply needs {end} positions and the context has {self.capacity}.")
        if len(row.stop_ids) > STOP_IDS:
            raise _unfit(f"The model has {len(row.stop_ids)} stop tokens, more than {STOP_IDS}.")

    def prefill_input(self, blocks: int) -> tuple[Tensor, Tensor]:
        """ids and positions int64 [B, blocks * L] at the cursor, which moves on. Positions past a
        row's own prompt blocks hold any token: their blocks are written again before they are
        seen."""
        span = torch.arange(blocks * self.block_length, device=self.known.device)
        positions = (self.cursor + span).expand(self.batch, -1)
        known = self.known.gather(1, positions)
        self.cursor.add_(span.numel())
        return torch.where(known < 0, self.mask_id, known), positions

    def begin_block(self, state: BlockState) -> None:
        """Lays the next block of every row onto the canvas: what is known of it, masks elsewhere.
        Rows that are over are finished from the start."""
        start = self.first_start + self.blocks * self.block_length
        # A row that is over stands one block past its last: keep it, and the block after it, inside
        # the cache.
        over = self.reason != Reason.GOING_ON
        inside = start.clamp_max(max(self.capacity - 2 * self.block_length, 0))
        start = torch.where(over, inside, start)
        canvas, held = self._canvas(start)
        state.begin(canvas, held, start, self.mask_id)
        state.finished.copy_(over)
        self.word(Control.KEEP_STEP).fill_(1)
        self.control[Control.READY : Control.ACCEPTED + 1].zero_()

    def next_canvas(self, state: BlockState) -> Tensor:
        """int64 [B, L]: what the block after the current one will begin with."""
        return self._canvas(state.start + self.block_length)[0]

    def _canvas(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens a block begins with, and which of them are known."""
        known = self.known.gather(1, start + self.columns)
        held = known >= 0
        return torch.where(held, known, self.mask_id), held

    def end_step(self, state: BlockState) -> None:
        """After the rule: rows at their step cap are finished, and KEEP_STEP says whether the block
        goes on."""
        state.finished.logical_or_(state.step >= self.step_cap)
        going_on = ~(state.finished.all() | state.nonfinite.any())
        self.word(Control.KEEP_STEP).copy_(going_on)

    def look_ahead(self, state: BlockState) -> None:
        """READY: the block goes on, no row waits for a mask, and some row will need another block,
        for which there is room. Then the next step may be taken together with the first one of the
        next block."""
        waiting = ((state.tokens == self.mask_id) & ~state.prompt).any(-1, keepdim=True)
        waiting = (waiting & ~state.finished).any()
        room = (state.start + 2 * self.block_length <= self.capacity).all()
        ready = self.control[Control.KEEP_STEP] * (room & ~waiting & self._needs_more(state).any())
        self.word(Control.READY).copy_(ready)

    def accept_step_ahead(self, state: BlockState) -> None:
        """ACCEPTED: the block is over, and every row that needs another one is settled: its keys in
        the forward that has just run were those of its final tokens."""
        more = self._needs_more(state)
        ended = state.finished.all() & ~state.nonfinite.any()
        self.word(Control.ACCEPTED).copy_(ended & more.any() & (state.settled | ~more).all())

    def _needs_more(self, state: BlockState) -> Tensor:
        """bool [B, 1]: rows that go on after this block if it stays as it is."""
        more = (self.reason == Reason.GOING_ON) & (self.blocks + 1 < self.max_blocks)
        if self.stop_after_block:
            stops = (state.tokens.unsqueeze(-1) == self.stop_ids.unsqueeze(1)).any(-1)
            stops &= state.positions >= self.prompt_length
            more &= ~stops.any(-1, keepdim=True)
        return more

    def count_step_ahead(self) -> None:
        """The step that comes next took no forward of its own. Call between the blocks."""
        self.forwards.sub_((self.reason == Reason.GOING_ON).to(torch.int64))

    def count_step(self) -> None:
        """After the step has been recorded."""
        self.word(Control.STEPS).add_(1)

    def count_commit(self) -> None:
        """A forward that only committed the block before."""
        going_on = (self.reason == Reason.GOING_ON).to(torch.int64)
        self.forwards.add_(going_on)
        self.commits.add_(going_on)

    def end_block(self, state: BlockState) -> None:
        """Takes the block into the reply, decides for every row whether it is over, and logs it.

        A block that the host's stop cut short does not count; what stands before its first mask or
        stop token is kept. After logits that were not finite nothing of the block is kept.
        """
        going_on = self.reason == Reason.GOING_ON
        bad = state.nonfinite.any()
        asked = (self.word(Control.STOP) != 0) & ~bad
        cut = asked & ~state.finished.all()
        place = state.positions - self.prompt_length  # among the generated tokens
        generated = (place >= 0) & (place < self.max_new)
        end = torch.minimum(place[:, -1:] + 1, self.max_new)
        stops = (state.tokens.unsqueeze(-1) == self.stop_ids.unsqueeze(1)).any(-1) & generated
        stop_here = place.masked_fill(~stops, FAR).amin(-1, keepdim=True)
        masks = (state.tokens == self.mask_id) & generated
        first_mask = place.masked_fill(~masks, FAR).amin(-1, keepdim=True)

        first_stop = torch.minimum(self.first_stop, stop_here)
        last = self.blocks + 1 >= self.max_blocks
        hit = first_stop < FAR if self.stop_after_block else (first_stop < FAR) & last
        length = torch.where(hit, first_stop + 1, end)
        reason = torch.where(last, int(Reason.LENGTH), int(Reason.GOING_ON))
        reason = reason.masked_fill(hit, Reason.STOP_TOKEN)
        # Only a step cap leaves masks: what stands behind the first one is not an answer.
        capped = (first_mask < length) & ~cut & ~bad
        length = torch.where(capped, first_mask, length)
        reason = reason.masked_fill(capped, Reason.DID_NOT_CONVERGE)
        kept = torch.minimum(torch.minimum(first_mask, stop_here), end)
        length = torch.where(cut, kept, length)
        reason = reason.masked_fill(cut | (asked & (reason == 0)), Reason.STOPPED)
        reason = reason.masked_fill(bad, Reason.NONFINITE)

        advanced = going_on & ~cut & ~bad
        self.length.copy_(torch.where(going_on & ~bad, length, self.length))
        self.reason.copy_(torch.where(going_on, reason, self.reason))
        self.first_stop.copy_(torch.where(advanced, first_stop, self.first_stop))
        self.converged.logical_and_(~(advanced & (capped | ~state.converged)))
        self.blocks.add_(advanced)
        self.forwards.add_(torch.where(going_on, state.step, 0))
        over = self.reason != Reason.GOING_ON
        self.word(Control.COMMIT).copy_((~over & ~state.settled).any())
        self.word(Control.KEEP_BLOCK).copy_(~over.all())
        self._write_log(state, going_on, advanced)

    def _write_log(self, state: BlockState, going_on: Tensor, advanced: Tensor) -> None:
        numbers = (going_on, advanced, self.length, self.reason, self.converged)
        counters = (self.forwards, self.commits, state.start)
        columns = [column.to(torch.int32) for column in (*numbers, *counters, state.tokens)]
        rows = torch.cat(columns, dim=1).flatten()
        header = torch.zeros(LOG_HEADER, dtype=torch.int32, device=rows.device)
        header[2:3].copy_(self.word(Control.STEPS))
        entry = torch.cat((header, rows))
        slot = self.word(Control.BLOCKS)
        self.log[:, : entry.numel()].index_copy_(0, slot, entry.unsqueeze(0))
        slot.add_(1)

    def block_ends(self, entry: npt.NDArray[np.int32]) -> list[BlockEnd | None]:
        """One log entry (int32 [words], on the host) per row; None for rows that were over before
        it."""
        width = LOG_FIELDS + self.block_length
        rows = entry[LOG_HEADER : LOG_HEADER + self.batch * width].reshape(self.batch, width)
        ends: list[BlockEnd | None] = []
        for numbers in rows.tolist():
            going_on, advanced, length, reason, converged, forwards, commits, _ = numbers[:8]
            tokens = numbers[LOG_FIELDS:]
            end = BlockEnd(
                tokens=tokens,
                advanced=bool(advanced),
                length=length,
                reason=REASONS[reason],
                converged=bool(converged),
                nonfinite=reason == Reason.NONFINITE,
                forwards=forwards,
                commits=commits,
            )
            ends.append(end if going_on else None)
        return ends


def entry_steps(entry: npt.NDArray[np.int32]) -> int:
    """Steps the reply had taken when the log entry was written."""
    return int(entry[2])


def _unfit(problem: str) -> RequestError:
    return RequestError("request.too_long", problem, "Ask for a shorter answer, or start anew.")
