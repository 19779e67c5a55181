"""The eager runtime: the pieces of a reply in a Python loop, on CPU or any GPU, one host read per
step.

Knows the order of things: prefill, blocks, steps, stop. What a piece does is
`engine.runtime.pieces`' business. Rows of a batch advance block by block together; a finished row
waits, and its ids do not depend on the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import torch

from engine.errors import RuntimeFailure
from engine.runtime.pieces import CHUNKS, ReplyPieces, Variant, plan_prefill
from engine.runtime.reply import Control
from engine.runtime.rows import Row, StepMark, take_ends
from engine.types import StepTaken

CPU_CHUNK = 16  # prompt blocks per forward: bounds the activations of a long prompt


class EagerRuntime:
    """Runs the pieces of one batch of rows at a time."""

    def __init__(self, pieces: ReplyPieces, exact: bool | None = None) -> None:
        """exact: attention scans what is there, and not the whole cache. None: on a CPU. On a GPU
        eager does as a captured step must, so that both round alike."""
        self.pieces = pieces
        self.program = pieces.program
        self._exact = self.device.type == "cpu" if exact is None else exact

    @property
    def device(self) -> torch.device:
        return self.program.state.tokens.device

    def prepare(self) -> None:
        """Nothing is captured here."""

    def close(self) -> None:
        """Nothing is held but the pieces."""

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Row], stop: threading.Event | None = None) -> int:
        """Writes the KV of every whole prompt block; returns the number of forwards."""
        pieces, length = self.pieces, self.program.block_length
        self._prepare(pieces.load(rows, record=True))
        blocks = max(row.first_block_start for row in rows) // length
        done = 0
        forwards = 0
        for size in self._chunks(blocks):
            if stop is not None and stop.is_set():
                break
            done += size
            if self._exact:
                pieces.bound = done * length
            self._prefill_chunk(size)
            forwards += 1
        return forwards

    @torch.inference_mode()
    def run(
        self, rows: Sequence[Row], stop: threading.Event | None = None, record: bool = True
    ) -> Iterator[StepMark]:
        """Denoises until every row is over, yielding once a step. Call `prefill` first. len(rows) =
        the state's batch."""
        if all(row.reason is not None for row in rows):
            return
        self._prepare(self.pieces.load(rows, record))
        began = time.perf_counter()
        while any(row.reason is None for row in rows):
            yield from self._denoise(rows, began, stop, record)

    # What a runtime that replays captured pieces does otherwise.

    def _prepare(self, variant: Variant) -> None:
        self.pieces.select(variant)

    def _call(self, piece: str) -> None:
        getattr(self.pieces, piece)()

    def _prefill_chunk(self, blocks: int) -> None:
        self.pieces.prefill(blocks)

    def _chunks(self, blocks: int) -> list[int]:
        if not self._exact:
            capacity = self.pieces.reply.capacity // self.program.block_length
            return plan_prefill(blocks, capacity, CHUNKS)
        whole, rest = divmod(blocks, CPU_CHUNK)
        return [CPU_CHUNK] * whole + [rest] * bool(rest)

    def _denoise(
        self, rows: Sequence[Row], began: float, stop: threading.Event | None, record: bool
    ) -> Iterator[StepMark]:
        """One block. Ends early, its rows stopped, when `stop` is set."""
        reply = self.pieces.reply
        if self._exact:
            live = [row for row in rows if row.reason is None]
            self.pieces.bound = max(row.block_start for row in live) + self.program.block_length
        commit = bool(reply.control[Control.COMMIT])
        self._call("begin")
        while True:
            self._call("first" if commit else "step")
            commit = False
            control = reply.control.tolist()  # the step's one wait for the device
            seconds = time.perf_counter() - began
            taken = self._record(0, control[Control.STEPS], seconds) if record else None
            mark = StepMark(seconds, taken, block_done=False)
            if stop is not None and stop.is_set():
                reply.word(Control.STOP).fill_(1)
                control[Control.STOP] = 1
            if not control[Control.KEEP_STEP] or control[Control.STOP]:
                break
            yield mark
        entry = control[Control.BLOCKS]
        self._call("end")
        ends = reply.block_ends(reply.log[entry].cpu().numpy())
        try:
            finished = take_ends(rows, ends)
        except RuntimeFailure:
            self.program.cache.clear()
            raise
        yield StepMark(mark.seconds, mark.step_taken, finished)

    def _record(self, row: int, steps: int, seconds: float) -> StepTaken:
        ring = self.pieces.ring
        record = ring.read(ring.records[(steps - 1) % ring.slots].cpu().numpy())
        return ring.step_taken(record, row, seconds)
