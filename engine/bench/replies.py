"""Scripted replies and what their clocks say.

A script is a number of forwards a block: with a threshold that no confidence exceeds, the quota
rule accepts an even share of the block at each. Knows how to tell a block's first forward, which
also commits the block before it, from the others. Knows requests and marks; not how a runtime
works.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from engine.bench.machine import settle
from engine.bench.shapes import BenchSpec
from engine.errors import RequestError, RuntimeFailure
from engine.runtime.choice import Runtime
from engine.runtime.rows import Row, StepMark
from engine.types import Capture, CaptureLevel, DecodeSettings


@dataclass(frozen=True)
class Script:
    """forwards: of every block. blocks: of the reply."""

    forwards: int
    blocks: int

    def row(self, spec: BenchSpec, context: int, level: CaptureLevel = "light") -> Row:
        """A reply of whole blocks behind `context` tokens of prompt, which is whole blocks too."""
        length = spec.block_length
        prompt = [(7 * n + 3) % (spec.vocab_size - 8) for n in range(context)]
        settings = DecodeSettings(threshold=1.0, steps=self.forwards)
        stops = frozenset(spec.stop_ids)
        limit = self.blocks * length
        return Row(prompt, limit, settings, length, stops, capture=Capture(level))


@dataclass(frozen=True)
class Neighbours:
    """The whole numbers of forwards a block on both sides of what a TPF asks for, and the share of
    the higher one: time a block is interpolated between theirs."""

    tpf: float
    low: int
    high: int
    share: float

    @classmethod
    def of(cls, tpf: float, block: int) -> Neighbours:
        """Raises RequestError `bench.tpf` for one that no block can have."""
        if not 1.0 <= tpf <= block:
            raise RequestError(
                "bench.tpf",
                f"A block of {block} tokens cannot be had at {tpf:g} tokens per forward.",
                f"Choose a number between 1 and {block}.",
            )
        wanted = block / tpf
        low = math.floor(wanted + 1e-9)
        share = max(wanted - low, 0.0)
        return cls(tpf, low, low + (share > 1e-9), share)

    def block_ms(self, by_forwards: dict[int, float]) -> float:
        low, high = by_forwards[self.low], by_forwards[self.high]
        return low + (high - low) * self.share


@dataclass
class Clocks:
    """Milliseconds gathered over replies of one script. steps: forwards that are no block's first.
    firsts: forwards that also commit. blocks: whole ones, the first of a reply left out (nothing
    is committed in it). first_block, prefill: from the request on, host clock. processor: seconds
    of the process a second of decoding. ids: of the last reply."""

    steps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    replies: list[float] = field(default_factory=list)
    first_block: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    ids: tuple[int, ...] = ()

    def take(self, marks: list[StepMark], forwards: int) -> None:
        """One reply's marks. Without a mark for every step, only blocks are known."""
        every = len(marks) > sum(mark.block_done for mark in marks) or forwards == 1
        before: StepMark | None = None
        block: StepMark | None = None
        for mark in marks:
            if every and before is not None:
                gap = 1e3 * (mark.seconds - before.seconds)
                (self.firsts if before.block_done else self.steps).append(gap)
            if mark.block_done:
                if block is not None:
                    self.blocks.append(1e3 * (mark.seconds - block.seconds))
                block = mark
            before = mark
        self.replies.append(1e3 * marks[-1].seconds)


def run_script(
    runtime: Runtime,
    spec: BenchSpec,
    script: Script,
    context: int,
    level: CaptureLevel,
    into: Clocks,
) -> None:
    """One reply, recorded at a level. Raises RuntimeFailure `bench.unscripted` if it took other
    forwards than asked."""
    device = runtime.pieces.program.state.tokens.device
    row = script.row(spec, context, level)
    begun = time.perf_counter()
    runtime.prefill([row])
    settle(device)
    ready, cpu = time.perf_counter(), time.process_time()
    marks: list[StepMark] = []
    first = 0.0
    for mark in runtime.run([row], record=level != "off"):
        if mark.block_done and not first:
            first = time.perf_counter()
        marks.append(mark)
    wall, used = time.perf_counter() - ready, time.process_time() - cpu
    if row.forwards != script.forwards * script.blocks or row.blocks != script.blocks:
        raise RuntimeFailure(
            "bench.unscripted",
            f"A reply of {script.blocks} blocks of {script.forwards} forwards took"
            f" {row.forwards} in {row.blocks}.",
            "This is a fault of the benchmark: please report it with the command.",
        )
    if any(mark.dropped for mark in marks):
        raise RuntimeFailure(
            "bench.dropped",
            "The machine was too busy to read the record of every step.",
            "Close other programs and measure again.",
        )
    into.take(marks, script.forwards)
    into.first_block.append(1e3 * (first - begun))
    into.prefill.append(1e3 * (ready - begun))
    into.processor.append(used / wall)
    into.ids = tuple(row.ids)
