"""The graph runtimes: a whole reply as one launch, or one graph per piece with a host check per
step.

Both run the pieces of `engine.runtime.pieces`, captured once and replayed for every request. They
have the interface of `EagerRuntime`, and give its ids. Knows requests and order; how a graph is
built is `engine.runtime.conditional`'s business, CUDA is behind `engine.runtime.backend`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from engine.errors import RuntimeFailure
from engine.runtime.backend import Backend
from engine.runtime.capture import CapturedPieces
from engine.runtime.conditional import (
    Mailbox,
    Registers,
    ReplyGraph,
    build_reply_graph,
    step_limit_reached,
)
from engine.runtime.eager import EagerRuntime
from engine.runtime.pieces import ReplyPieces, Variant, plan_prefill, usable_chunks
from engine.runtime.reader import BlockEntry, Dropped, ReplyReader
from engine.runtime.rows import Row, StepMark, take_ends
from engine.runtime.watch import Watch


class GraphRuntime:
    """One launch per reply.

    The first reply of a variant (greedy, sampled, filtered, steered) captures its steps; nothing is
    captured again after that, whatever the settings. Every method from one thread.
    """

    def __init__(self, pieces: ReplyPieces, backend: Backend) -> None:
        self.pieces, self.backend = pieces, backend
        self.captured = CapturedPieces(pieces, backend)
        self._graphs: dict[Variant, ReplyGraph] = {}

    @property
    def captures(self) -> int:
        return self.captured.count

    @torch.inference_mode()
    def prepare(self) -> None:
        """Captures a reply with the checkpoint's own settings, and prefill, ahead of the first
        request."""
        self._graph(self.pieces.usual)
        for size in usable_chunks(self.pieces):
            self.captured.prefill(size)

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Row], stop: threading.Event | None = None) -> int:
        """Writes the KV of the prompts up to their first blocks; returns the number of forwards.
        What the reply needs is captured here, if it is the first of its kind."""
        self._graph(self.pieces.load(rows, record=True))
        length = self.pieces.reply.block_length
        blocks = -(-max(row.first_block_start for row in rows) // length)
        forwards = 0
        for size in plan_prefill(
            blocks, self.pieces.reply.capacity // length, usable_chunks(self.pieces)
        ):
            if stop is not None and stop.is_set():
                break
            self.captured.prefill(size).replay()
            self.backend.settle()  # so that a stop is heard between chunks
            forwards += 1
        return forwards

    @torch.inference_mode()
    def run(
        self, rows: Sequence[Row], stop: threading.Event | None = None, record: bool = True
    ) -> Iterator[StepMark]:
        """Launches once, then yields every recorded step as it is read; without `record`, one mark
        a block. Call `prefill` first. len(rows) = the batch."""
        if all(row.reason is not None for row in rows):
            return
        variant = self.pieces.load(rows, record)
        graph, watch = self._graph(variant), self.pieces.watch_of(variant)
        self.backend.mailbox[:] = 0
        pending = self.backend.launch(graph)
        reader = ReplyReader(
            self.backend,
            self.pieces.ring,
            self.pieces.reply,
            pending,
            stop,
            record,
            watch,
        )
        try:
            yield from self._marks(rows, reader, watch)
        except RuntimeFailure as failure:
            if failure.code == "runtime.nonfinite":
                pending.wait()
                self.pieces.program.cache.clear()
            raise
        finally:
            # The consumer may have left early: nothing may run when the next request is loaded.
            self.backend.mailbox[Mailbox.STOP] = 1
            reader.join()
        if any(row.reason is None for row in rows):
            if stop is None or not stop.is_set():
                raise step_limit_reached()
            for row in rows:  # the stop came between two blocks: there was no block to cut short
                row.reason = row.reason or "stopped"

    def close(self) -> None:
        """Gives back the graphs and their memory."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self.captured.clear()

    def _graph(self, variant: Variant) -> ReplyGraph:
        graph = self._graphs.get(variant)
        if graph is None:
            captured = self.captured.of_reply(variant)
            graph = build_reply_graph(self.backend.calls, captured, self._registers())
            self._graphs[variant] = graph
        return graph

    def _registers(self) -> Registers:
        reply, ring = self.pieces.reply, self.pieces.ring
        return Registers(
            control=reply.control.data_ptr(),
            mailbox=self.backend.mailbox_address,
            records=ring.records.data_ptr(),
            slots=ring.slots,
            record_words=ring.words,
            log=reply.log.data_ptr(),
            log_words=reply.log.shape[1],
        )

    def _marks(
        self, rows: Sequence[Row], reader: ReplyReader, watch: Watch | None
    ) -> Iterator[StepMark]:
        """A block's last step is held back until the block's end is known, so that the rows are up
        to date when its mark is seen."""
        reply = self.pieces.reply
        held: StepMark | None = None
        dropped = 0
        for item in reader:
            if isinstance(item, Dropped):
                dropped += item.count
            elif isinstance(item, BlockEntry):
                finished = take_ends(rows, reply.block_ends(item.words))
                mark = held or StepMark(self._seconds(item.time), None, False, dropped)
                held, dropped = None, 0
                if finished:
                    yield replace(mark, block_done=True)
            else:
                seconds = self._seconds(item.time)
                mark = StepMark(
                    seconds, self.pieces.step_taken(item, watch, seconds), False, dropped
                )
                dropped = 0
                if item.block_ended:
                    held = mark
                else:
                    yield mark

    def _seconds(self, time: int) -> float:
        return (time - int(self.backend.mailbox[Mailbox.START])) * 1e-9


class PerStepGraphRuntime(EagerRuntime):
    """One graph per piece and a host check after every step: for drivers without conditional
    nodes."""

    def __init__(self, pieces: ReplyPieces, backend: Backend) -> None:
        super().__init__(pieces, exact=False)
        self.captured = CapturedPieces(pieces, backend)

    @property
    def captures(self) -> int:
        return self.captured.count

    @torch.inference_mode()
    def prepare(self) -> None:
        """Captures a reply with the checkpoint's own settings, and prefill, ahead of the first
        request."""
        self.captured.of_reply(self.pieces.usual)
        for size in usable_chunks(self.pieces):
            self.captured.prefill(size)

    def close(self) -> None:
        """Gives back the graphs and their memory."""
        self.captured.clear()

    def _prepare(self, variant: Variant) -> None:
        self._replays = self.captured.of_reply(variant)

    def _call(self, piece: str) -> None:
        self._replays[piece].replay()

    def _prefill_chunk(self, blocks: int) -> None:
        self.captured.prefill(blocks).replay()
