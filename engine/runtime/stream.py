"""Many replies through a fixed number of rows, for evaluation and rollouts.

In a batch whose rows wait for each other at every block's end, most rows stand still: one slow row
holds all (9 % of 512 rows were active on the demo). Here a row that ends its block begins the next
one at once, and a row whose reply is over takes the next prompt. The step is the same
`StepProgram.step`; what differs is who takes part in it. A turn of the wide kind also covers every
row's block before (the commits of all that have just begun a block, shared with their first step);
rows whose first block has nothing before it sit it out. In a turn of the narrow kind those sit out
that still need a commit. Which kind comes next is chosen by where most rows are.

Knows order, never what is accepted. Ids are those of the other runtimes, up to the rounding of
larger matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from engine.decoding.state import BlockState, RowSettings
from engine.errors import RuntimeFailure
from engine.runtime.reply import REASONS, Control, Reason, ReplyState
from engine.runtime.rows import Row
from engine.runtime.step import StepProgram

WIDE_COST = 1.7  # of a turn that covers the block before, beside one that does not
REFILL = 0.2  # share of free rows from which new prompts are taken in

OnTurn = Callable[[Sequence[int]], None]
_KEPT = tuple(field.name for field in fields(BlockState) if field.name != "seen")


def can_stream(program: StepProgram) -> bool:
    """Whether a program's rows may advance apart: plain block-causal steps only."""
    return type(program) is StepProgram and program.rule.name in ("llada2.0", "llada2.1")


class ReplyStream:
    """Runs any number of rows, `batch` at a time, over a program it alone uses."""

    def __init__(self, program: StepProgram, stop_after_block: bool) -> None:
        if not can_stream(program):
            raise ValueError(f"rows of {type(program).__name__} cannot advance apart")
        self.program = program
        state = program.state
        batch, length = state.tokens.shape
        device = state.tokens.device
        rule = program.rule
        sizes = (length, program.cache.capacity, rule.mask_id, stop_after_block, device)
        self.reply = ReplyState(batch, *sizes)
        self._sizes = sizes
        self.settings = RowSettings.allocate(batch, device)
        self.fresh = torch.zeros(batch, 1, dtype=torch.bool, device=device)
        # Going, needing a commit, able to take a narrow step, not finite; then every row's reason.
        self.report = torch.zeros(4 + batch, dtype=torch.int64, device=device)
        self._graphs: dict[tuple[bool, bool, bool], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.turns = 0

    @property
    def batch(self) -> int:
        return self.reply.batch

    @torch.inference_mode()
    def run(self, rows: Sequence[Row], on_turn: OnTurn | None = None) -> None:
        """Every row to its end: ids, forwards, blocks and reason are written into it. on_turn:
        called after each turn with the number of the row (in `rows`) each of the batch holds, -1
        for none. Raises RuntimeFailure `runtime.nonfinite`, RequestError `request.too_long`."""
        program, reply = self.program, self.reply
        program.load([])
        waiting = list(range(len(rows)))[::-1]
        holds = [-1] * self.batch
        reply.reason.fill_(int(Reason.STOPPED))
        program.state.finished.fill_(True)
        self.settings.load([rows[0].settings] * self.batch)
        self.settings.sampled = any(row.settings.temperature > 0 for row in rows)
        self.settings.filtered = self.settings.sampled and any(
            row.settings.top_k > 0 or row.settings.top_p < 1.0 for row in rows
        )
        wide, cap = False, 0
        self.turns = 0
        while waiting or any(held >= 0 for held in holds):
            free = [slot for slot, held in enumerate(holds) if held < 0]
            if waiting and len(free) >= max(1, int(REFILL * self.batch)):
                chosen = {slot: waiting.pop() for slot in free[: len(waiting)]}
                for slot, index in chosen.items():
                    holds[slot] = index
                cap += self._take_in(chosen, rows, holds)
                wide = False
            self._turn(wide)
            self.turns += 1
            if on_turn is not None:
                on_turn(holds)
            _, needing, able, bad, *reasons = self.report.tolist()
            if bad:
                program.cache.clear()
                raise RuntimeFailure(
                    "runtime.nonfinite",
                    "The model produced numbers that are not finite.",
                    "The checkpoint may be damaged: verify it, or load it again.",
                )
            over = [n for n, held in enumerate(holds) if held >= 0 and reasons[n] > 0]
            if over:
                self._let_go({slot: rows[holds[slot]] for slot in over})
                for slot in over:
                    holds[slot] = -1
            wide = needing * 1.0 >= (WIDE_COST - 1.0) * able
            if self.turns > 2 * cap + 8:
                raise RuntimeFailure(
                    "runtime.step_limit",
                    "Replies went on past every limit they had.",
                    "Please report this, with the model and the settings.",
                )

    def _take_in(self, chosen: dict[int, int], rows: Sequence[Row], holds: Sequence[int]) -> int:
        """Loads rows into free places; returns a bound on the turns they may take."""
        program, reply, rule = self.program, self.reply, self.program.rule
        mine = [rows[index] for index in chosen.values()]
        length, capacity, mask_id, after, device = self._sizes
        incoming = ReplyState(len(mine), length, capacity, mask_id, after, device)
        incoming.load(mine, rule, level=0)
        slots = torch.tensor(list(chosen), device=device)
        for kept, new in (
            (reply.known, incoming.known),
            (reply.stop_ids, incoming.stop_ids),
            (reply.first_stop, incoming.first_stop),
            (reply.converged, incoming.converged),
        ):
            kept.index_copy_(0, slots, new)
        reply.limits.index_copy_(1, slots, incoming.limits)
        reply.counts.index_copy_(1, slots, incoming.counts)
        self.fresh.index_fill_(0, slots, True)
        sampled, filtered = self.settings.sampled, self.settings.filtered
        spare = rows[0].settings
        self.settings.load([rows[n].settings if n >= 0 else spare for n in holds])
        self.settings.sampled, self.settings.filtered = sampled, filtered
        # The last whole block of a prompt is committed with the first step, as any block is.
        blocks = max(row.first_block_start for row in mine) // length - 1
        for block in range(blocks):
            span = torch.arange(block * length, (block + 1) * length, device=device)
            positions = span.expand(self.batch, -1)
            known = reply.known.gather(1, positions)
            ids = torch.where(known < 0, mask_id, known)
            program.prefill(ids, positions, program.cache.capacity)
        return max(row.max_blocks * (rule.step_cap(row.settings, length) + 2) for row in mine)

    def _let_go(self, over: dict[int, Row]) -> None:
        """Writes what the device knows of finished replies into their rows."""
        reply, device = self.reply, self.reply.known.device
        slots = torch.tensor(list(over), device=device)
        known = reply.known[slots].tolist()
        numbers = torch.cat((reply.counts[:, slots, 0], reply.converged[slots].T), 0).T.tolist()
        for row, tokens, (reason, blocks, length, forwards, commits, converged) in zip(
            over.values(), known, numbers, strict=True
        ):
            first = len(row.prompt)
            row.ids = tokens[first : first + length]
            row.blocks, row.forwards, row.commits = blocks, forwards, commits
            row.reason, row.converged = REASONS[reason], bool(converged)

    def _turn(self, wide: bool) -> None:
        if self._pool is None:
            self._advance(wide)
            return
        key = (wide, self.settings.sampled, self.settings.filtered)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(wide)
        graph.replay()

    def _capture(self, wide: bool) -> torch.cuda.CUDAGraph:
        """Warmed up by a first run on this very turn's buffers, which are put back."""
        program, reply = self.program, self.reply
        buffers = [getattr(program.state, name) for name in _KEPT]
        buffers += [reply.counts, reply.known, reply.first_stop, reply.converged, reply.control]
        buffers += [self.fresh, self.report, *program.written]
        kept = [buffer.clone() for buffer in buffers]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._advance(wide)
        torch.cuda.current_stream().wait_stream(side)
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._advance(wide)
        return graph

    def _advance(self, wide: bool) -> None:
        """One turn over static buffers: ends, begins, one step, and the report."""
        program, reply = self.program, self.reply
        state = program.state
        going = reply.reason == Reason.GOING_ON
        self._end(state.finished & going & ~self.fresh)
        going = reply.reason == Reason.GOING_ON
        self._begin(state.finished & going | self.fresh)
        self.fresh.zero_()
        needs = (state.step == 0) & (state.start > 0)
        held = (state.start == 0) if wide else needs
        state.finished.logical_or_(held)
        program.step(self.settings, program.cache.capacity, wide)
        state.finished.copy_(torch.where(held, ~going, state.finished))
        reply.end_step(state)
        over = ~(reply.reason == Reason.GOING_ON)
        needs = ((state.step == 0) & (state.start > 0) | state.finished) & ~over
        able = ~over & ~needs
        bad = (state.nonfinite & ~over).any()
        numbers = torch.stack(((~over).sum(), needs.sum(), able.sum(), bad.long()))
        self.report.copy_(torch.cat((numbers, reply.reason.squeeze(-1))))

    def _end(self, ended: Tensor) -> None:
        """`ReplyState.end_block` for the rows bool [B, 1] alone; their tokens become known."""
        state, reply = self.program.state, self.reply
        kept = reply.reason.clone()
        reply.reason.masked_fill_(~ended, int(Reason.STOPPED))
        reply.word(Control.BLOCKS).zero_()  # the log is not read: always its first entry
        reply.end_block(state)
        reply.reason.copy_(torch.where(ended, reply.reason, kept))
        positions = state.positions
        held = reply.known.gather(1, positions)
        reply.known.scatter_(1, positions, torch.where(ended, state.tokens, held))

    def _begin(self, begins: Tensor) -> None:
        """`ReplyState.begin_block` for the rows bool [B, 1] alone."""
        state, reply = self.program.state, self.reply
        kept = {name: getattr(state, name).clone() for name in _KEPT}
        reply.begin_block(state)
        before = (state.positions - reply.block_length).clamp_min(0)
        known = reply.known.gather(1, before)
        state.previous.copy_(torch.where(known < 0, reply.mask_id, known))
        for name, old in kept.items():
            buffer = getattr(state, name)
            buffer.copy_(torch.where(begins, buffer, old))

    def close(self) -> None:
        """Gives captured memory back."""
        self._graphs.clear()
