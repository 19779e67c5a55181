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
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import RuntimeFailure
from engine.runtime.pieces import ReplyPieces, Variant, plan_prefill, usable_chunks
from engine.runtime.reply import Control
from engine.runtime.rows import Row, StepMark, take_ends

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
        """Writes the KV of the prompts up to their first blocks; returns the number of forwards."""
        pieces, length = self.pieces, self.program.block_length
        self._prepare(pieces.load(rows, record=True))
        blocks = -(-max(row.first_block_start for row in rows) // length)
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
        piece = ""
        while any(row.reason is None for row in rows):
            control = self._take(piece or self._begin(), rows, stop)
            mark = self._mark(control, began, record)
            while ending := _ending(control):
                finished = self._end(ending, rows, control[Control.BLOCKS])
                yield replace(mark, block_done=finished)
                if ending == "end":
                    break
                # The next block's first step came with it, at no forward of its own.
                control = self.pieces.reply.control.tolist()
                mark = self._mark(control, began, record)
            if ending:
                piece = ""
            else:
                yield mark
                piece = "verify" if control[Control.READY] else "step"

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
            return plan_prefill(blocks, capacity, usable_chunks(self.pieces))
        whole, rest = divmod(blocks, CPU_CHUNK)
        return [CPU_CHUNK] * whole + [rest] * bool(rest)

    def _begin(self) -> str:
        """Begins the next block; returns the piece that takes its first step."""
        commit = bool(self.pieces.reply.control[Control.COMMIT])
        self._call("begin")
        return "first" if commit else "step"

    def _take(self, piece: str, rows: Sequence[Row], stop: threading.Event | None) -> list[int]:
        """One step, and the control words after it: the step's one wait for the device."""
        reply, length = self.pieces.reply, self.program.block_length
        if self._exact:
            last = max(row.block_start for row in rows if row.reason is None)
            self.pieces.bound = last + (2 if piece == "verify" else 1) * length
        self._call(piece)
        control = reply.control.tolist()
        if stop is not None and stop.is_set():
            reply.word(Control.STOP).fill_(1)
            control[Control.STOP] = 1
        return control

    def _end(self, piece: str, rows: Sequence[Row], entry: int) -> bool:
        """Ends the block and tells the rows; whether it counts."""
        self._call(piece)
        reply = self.pieces.reply
        try:
            return take_ends(rows, reply.block_ends(reply.log[entry].cpu().numpy()))
        except RuntimeFailure:
            self.program.cache.clear()
            raise

    def _mark(self, control: Sequence[int], began: float, record: bool) -> StepMark:
        seconds = time.perf_counter() - began
        if not record:
            return StepMark(seconds, None, block_done=False)
        ring, watch, step = self.pieces.ring, self.program.watch, control[Control.STEPS] - 1
        words = _copied(ring.records, step)
        kept = None if watch is None else _copied(watch.records, step)
        taken = self.pieces.step_taken(ring.read(words, kept), watch, seconds)
        return StepMark(seconds, taken, block_done=False)


def _copied(records: Tensor, step: int) -> npt.NDArray[np.int32]:
    """The slot of a step, which the next one writes again."""
    return records[step % len(records)].cpu().numpy().copy()


def _ending(control: Sequence[int]) -> str:
    """The piece that ends the block after this step, "" while it goes on."""
    if control[Control.STOP]:
        return "end"
    if control[Control.ACCEPTED]:
        return "accept"
    return "" if control[Control.KEEP_STEP] else "end"
