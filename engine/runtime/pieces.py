"""The pieces a reply is made of: functions over static buffers, in the order a runtime calls them.

    prefill chunks, then until the reply is over:
        begin, (first if the block before needs its commit,) step, step, ..., end

Where a rule ends a block with a step that changes nothing (editing), that step can be taken
together with the first one of the next block: `verify` runs both in one forward, and if nothing
changed `accept` replaces end, begin and the first step.

Every runtime runs these same functions: called (eager), replayed one by one, or replayed inside one
graph. They never read the host; `shape` is what a caller may choose. Knows the order inside a step,
not the order of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from engine.decoding.judge import Judgement
from engine.decoding.state import RowSettings
from engine.decoding.steering import SteeringState
from engine.runtime.reply import Control, ReplyState
from engine.runtime.ring import RecordKernel, StepRecord, TraceRing
from engine.runtime.rows import Row
from engine.runtime.step import StepProgram
from engine.runtime.watch import FindBest, Watch
from engine.types import CaptureLevel, StepTaken

if TYPE_CHECKING:  # they need Triton
    from engine.decoding.said import Said
    from engine.runtime.fused import FusedBooks

CHUNKS = (8, 1)  # a captured prefill's sizes, in blocks; eager on a GPU takes the same
# Of all rows, above which a chunk is one block: workspaces grow with them, and the router's kernel
# lists the pairs of so many tokens in shared memory.
CHUNK_TOKENS = 8192
_WATCHED: dict[CaptureLevel, int] = {"off": 0, "light": 0, "top-k": 1, "full": 2}


class Variant(NamedTuple):
    """What must be known before a step is captured, because it changes which kernels run. All other
    settings are read from device memory.

    sampled: a row has a temperature. filtered: a sampled row uses top-k or top-p, which costs a
    sort of the vocabulary. steered: a row bans or takes back tokens. recorded: the trace ring is
    written (a graph on a GPU always is: there the level is read on the device). watched: what is
    kept of the logits: 0 nothing, 1 candidates, 2 also all logits of chosen positions.
    """

    sampled: bool = False
    filtered: bool = False
    steered: bool = False
    recorded: bool = True
    watched: int = 0


class ReplyPieces:
    """One batch's program with its reply state, settings and ring.

    bound: cached keys scanned by attention; the cache's capacity unless the caller knows better
    before each call (eager on a CPU does). fused: a commit shares the next block's first forward;
    off only to measure what that is worth. ahead: `verify` and `accept` are used. one_launch:
    bookkeeping runs in one launch a piece, where a kernel covers the rule (`books`; needs Triton).
    words: which of the two it is, for a person.
    """

    def __init__(
        self,
        program: StepProgram,
        reply: ReplyState,
        ring: TraceRing,
        *,
        fused: bool = True,
        ahead: bool = False,
        one_launch: bool = False,
    ) -> None:
        self.program, self.reply, self.ring = program, reply, ring
        self.fused = fused and program.shares_commit
        room = reply.capacity >= 2 * reply.block_length
        self.ahead = ahead and program.rule.settles and program.looks_ahead and room
        self._said_ahead: Judgement | Said | None = None
        self.books: FusedBooks | None = None
        name = program.rule.name
        why = f"no kernel covers {name} here" if one_launch else "no kernels run here"
        self.words = f"Judging, rule and counters are PyTorch operations: {why}."
        if one_launch:
            from engine.runtime.fused import fused_books

            self.books = fused_books(program, reply, ring, self.ahead)
            self.words = self.words if self.books is None else self.books.words
        self._find_best: FindBest | None = None
        if one_launch:
            from engine.kernels.best import BestOfRows

            self._find_best = BestOfRows()
        self._watches: dict[int, Watch] = {}
        device = program.state.tokens.device
        self.settings = RowSettings.allocate(reply.batch, device)
        self.bound = program.cache.capacity
        self.variant = Variant()

    def load(self, rows: Sequence[Row], record: bool) -> Variant:
        """Overwrites the buffers with a request; returns the variant of the steps it needs."""
        self.settings.load([row.settings for row in rows])
        self.program.load(rows)
        self.reply.load(rows, self.program.rule, level=int(record))
        later = [settings for row in rows for _, settings in row.steering.switches]
        self.settings.expect(later)
        watched = _WATCHED[rows[0].capture.level] if record else 0
        if watched:
            self._watch(watched).load(rows[0].capture)
        return Variant(
            sampled=self.settings.sampled,
            filtered=self.settings.filtered,
            steered=any(row.steering.within_steps for row in rows),
            recorded=record or self.ring.kernel is not None,
            watched=watched,
        )

    @property
    def usual(self) -> Variant:
        """Of a reply with the checkpoint's own settings."""
        defaults = self.program.model.spec.defaults
        warm = defaults.temperature > 0
        filtered = warm and (defaults.top_k > 0 or defaults.top_p < 1.0)
        return Variant(sampled=warm, filtered=filtered)

    def select(self, variant: Variant) -> None:
        """Sets which kernels the next `first` and `step` run."""
        self.variant = variant
        self.settings.sampled, self.settings.filtered = variant.sampled, variant.filtered
        self.program.watch = self.watch_of(variant)

    def watch_of(self, variant: Variant) -> Watch | None:
        """What a variant keeps of the logits."""
        return self._watch(variant.watched) if variant.watched else None

    def _watch(self, watched: int) -> Watch:
        """Its ring is made with the first request that asks for one, and kept."""
        if watched not in self._watches:
            program = self.program
            self._watches[watched] = Watch(
                program.state,
                program.model.spec.vocab_size,
                program.suppressed,
                self.reply.word(Control.STEPS),
                self.ring.slots,
                full=watched > 1,
                find_best=self._find_best,
            )
        return self._watches[watched]

    def step_taken(self, record: StepRecord, watch: Watch | None, seconds: float) -> StepTaken:
        """Row 0 of a step as the event the window knows. watch: of the variant that ran."""
        step = self.ring.step_taken(record, 0, seconds)
        if watch is None or record.kept is None:
            return step
        return watch.add_to(step, record.kept)

    def prefill(self, blocks: int) -> None:
        """KV of the next `blocks` whole blocks of the prompts."""
        ids, positions = self.reply.prefill_input(blocks)
        self.program.prefill(ids, positions, self.bound)

    def begin(self) -> None:
        if self.books is not None:
            self.books.begin()
        else:
            self.reply.begin_block(self.program.state)

    def first(self) -> None:
        """The first step of a block, and the commit of the block before it."""
        if not self.fused:
            self.program.commit(self.bound)
            self.reply.count_commit()
        self._step(with_previous=self.fused)

    def step(self) -> None:
        self._step(with_previous=False)

    def end(self) -> None:
        if self.books is not None:
            self.books.end()
        else:
            self.reply.end_block(self.program.state)

    def verify(self) -> None:
        """A step of this block and, ahead of time, the first one of the next."""
        state, steering = self.program.state, self._steering()
        canvas = self.reply.next_canvas(state)
        if steering is not None:
            canvas = steering.placed_on(canvas, state.positions + self.program.block_length)
        if self.books is not None:
            self._verify(self.books, canvas)
            return
        now, then = self._settings(), self._settings(ahead=True)
        self._said_ahead = self.program.step_and_ahead(now, then, self.bound, canvas, steering)
        self._end_step()
        self.reply.accept_step_ahead(state)

    def accept(self) -> None:
        """After a `verify` that left ACCEPTED: ends the block, begins the next and takes its first
        step from what was said ahead."""
        program, said, steering = self.program, self._said_ahead, self._steering()
        state = program.state
        if self.books is not None:
            self.books.end()
            self.books.begin(free=True)
        else:
            self.reply.end_block(state)
            self.reply.count_step_ahead()
            self.reply.begin_block(state)
        if steering is not None:
            steering.take_back(state, program.rule.mask_id, hold=not program.rule.moves)
        if program.watch is not None:
            program.watch.accept()
        if self.books is not None:
            assert not isinstance(said, Judgement)
            assert said is not None
            self._after_step(self.books, said, verify=False)
            return
        assert isinstance(said, Judgement)
        program.rule.apply(state, said, self._settings())
        self._end_step()

    def _verify(self, books: FusedBooks, canvas: Tensor) -> None:
        """`verify` with the bookkeeping in one launch."""
        state, steering = self.program.state, self._steering()
        here, there = self.program.look_ahead(self.bound, canvas, steering)
        now = (state.start, state.step, state.tokens)
        then = (state.start + self.program.block_length, torch.zeros_like(state.step), canvas)
        said = books.judge(here, self._settings(), *now, steering)
        ahead = books.judge(there, self._settings(ahead=True), *then, steering, ahead=True)
        self._said_ahead = ahead
        watch = self.program.watch
        if watch is not None:
            self._forbid(here, *now[:2])
            self._forbid(there, *then[:2])
            watch.note(here, said.log_norm)
            watch.note_ahead(there, ahead.log_norm)
        self._after_step(books, said, verify=True)

    def _step(self, with_previous: bool) -> None:
        steering = self._steering()
        if self.books is None:
            self.program.step(self._settings(), self.bound, with_previous, steering)
            self._end_step()
            return
        state, watch = self.program.state, self.program.watch
        logits = self.program.look(self.bound, with_previous, steering)
        now = (state.start, state.step, state.tokens)
        said = self.books.judge(logits, self._settings(), *now, steering)
        if watch is not None:
            self._forbid(logits, *now[:2])
            watch.note(logits, said.log_norm)
        self._after_step(self.books, said, verify=False)

    def _end_step(self) -> None:
        reply, state = self.reply, self.program.state
        reply.end_step(state)
        if self.ahead:
            reply.look_ahead(state)
        if self.variant.recorded:
            self.ring.record(state, reply)
        reply.count_step()

    def _after_step(self, books: FusedBooks, said: Said, verify: bool) -> None:
        books.after_step(said, self._settings(), self.variant.recorded, verify)

    def _forbid(self, logits: Tensor, start: Tensor, step: Tensor) -> None:
        """What judging by kernels only left out, taken out of the logits."""
        steering = self._steering()
        if steering is not None:
            steering.forbid(logits, start + self.reply.columns, step)

    def _settings(self, ahead: bool = False) -> RowSettings:
        """Of the step that comes next; ahead: of the next block's first."""
        steering, state = self._steering(), self.program.state
        if steering is None:
            return self.settings
        if ahead:
            start, step = state.start + self.program.block_length, torch.zeros_like(state.step)
            return steering.settings_at(self.settings, start, step)
        return steering.settings_at(self.settings, state.start, state.step)

    def _steering(self) -> SteeringState | None:
        return self.reply.steering if self.variant.steered else None


def make_pieces(
    program: StepProgram,
    stop_after_block: bool,
    *,
    slots: int = 1,
    kernel: RecordKernel | None = None,
    fused: bool = True,
    ahead: bool = False,
    one_launch: bool = False,
) -> ReplyPieces:
    """Pieces over a program, with buffers of their own on its device. slots, kernel: see
    `TraceRing`; one slot is enough where the host looks after every step. fused, ahead,
    one_launch: see `ReplyPieces`."""
    batch, length = program.state.tokens.shape
    device = program.state.tokens.device
    reply = ReplyState(
        batch, length, program.cache.capacity, program.rule.mask_id, stop_after_block, device
    )
    ring = TraceRing(batch, length, device, slots, kernel)
    options = {"fused": fused, "ahead": ahead, "one_launch": one_launch}
    return ReplyPieces(program, reply, ring, **options)


def usable_chunks(pieces: ReplyPieces) -> list[int]:
    """The chunk sizes that fit the cache, if there is one, and a forward; ending with 1."""
    if not pieces.program.prefills:
        return []
    batch, length = pieces.reply.batch, pieces.reply.block_length
    most = min(pieces.reply.capacity // length, max(1, CHUNK_TOKENS // (batch * length)))
    return [size for size in CHUNKS if size <= most]


def plan_prefill(blocks: int, capacity: int, sizes: Sequence[int]) -> list[int]:
    """Chunk sizes, in blocks, that cover `blocks` prompt blocks: the largest size as often as it
    fits, then what wastes least. A chunk may reach past the prompt, not past `capacity` blocks.
    sizes: descending, ending with 1."""
    plan: list[int] = []
    done = 0
    for size in sizes:
        # A padded chunk costs about as much as a few single blocks: worth it from a third on.
        while done + size <= capacity and 3 * (blocks - done) >= size and done < blocks:
            plan.append(size)
            done += size
    return plan
