"""The eager runtime: the step function in a Python loop, on CPU or any GPU, one host read per step.

Knows the order of things: prefill, blocks, steps, stop. The maths of a step is
`engine.runtime.step`, what it changes is the rule's business. Rows of a batch advance block by
block together; a finished row waits, and its ids do not depend on the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.decoding.state import RowSettings
from engine.errors import RuntimeFailure
from engine.runtime.rows import Row
from engine.runtime.step import StepProgram
from engine.types import StepTaken, TokenState

PREFILL_POSITIONS = 512  # per forward: bounds the activations of a long prompt


@dataclass(frozen=True)
class StepMark:
    """The host's view after one step. `step_taken` is filled for row 0 when the caller records;
    `block_done`: the block of every row is finished and its ids are in the rows."""

    seconds: float
    step_taken: StepTaken | None
    block_done: bool


class EagerRuntime:
    """Runs a `StepProgram` for one batch of rows at a time."""

    def __init__(self, program: StepProgram, mask_id: int, stop_after_block: bool = True) -> None:
        self.program = program
        self.mask_id = mask_id
        self.stop_after_block = stop_after_block
        self._previous_settled = False

    @property
    def device(self) -> torch.device:
        return self.program.state.tokens.device

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Row], stop: threading.Event | None = None) -> int:
        """Writes the KV of every whole prompt block; returns the number of forwards."""
        longest = max(row.first_block_start for row in rows)
        if not longest:
            return 0
        ids = np.full((len(rows), longest), self.mask_id, dtype=np.int64)
        for index, row in enumerate(rows):
            ids[index, : row.first_block_start] = row.prompt[: row.first_block_start]
        on_device = torch.from_numpy(ids).to(self.device)
        positions = torch.arange(longest, device=self.device).expand(len(rows), -1)
        chunk = PREFILL_POSITIONS // self.program.block_length * self.program.block_length
        forwards = 0
        for first in range(0, longest, chunk):
            if stop is not None and stop.is_set():
                break
            last = min(first + chunk, longest)
            self.program.prefill(on_device[:, first:last], positions[:, first:last], bound=last)
            forwards += 1
        return forwards

    @torch.inference_mode()
    def run(
        self, rows: Sequence[Row], stop: threading.Event | None = None, record: bool = True
    ) -> Iterator[StepMark]:
        """Denoises until every row is over, yielding once a step. Call `prefill` first. len(rows) =
        the state's batch."""
        settings = RowSettings.of([row.settings for row in rows], self.device)
        began = time.perf_counter()
        while any(row.reason is None for row in rows):
            self._begin_block(rows)
            yield from self._denoise(rows, settings, began, stop, record)
            if stop is not None and stop.is_set():
                return

    def _begin_block(self, rows: Sequence[Row]) -> None:
        state, length = self.program.state, self.program.block_length
        canvas = np.full((len(rows), length), self.mask_id, dtype=np.int64)
        prompt = np.zeros((len(rows), length), dtype=bool)
        for index, row in enumerate(rows):
            head = row.prompt_in_block()
            canvas[index, : len(head)] = head
            prompt[index, : len(head)] = True
        start = torch.tensor([[row.block_start] for row in rows], device=self.device)
        state.begin(
            torch.from_numpy(canvas).to(self.device),
            torch.from_numpy(prompt).to(self.device),
            start,
            self.mask_id,
        )
        over = torch.tensor([[row.reason is not None] for row in rows], device=self.device)
        state.finished.copy_(over)

    def _denoise(
        self,
        rows: Sequence[Row],
        settings: RowSettings,
        began: float,
        stop: threading.Event | None,
        record: bool,
    ) -> Iterator[StepMark]:
        state, length = self.program.state, self.program.block_length
        live = [row for row in rows if row.reason is None]
        bound = max(row.block_start for row in live) + length
        cap = max(self.program.rule.step_cap(row.settings, length) for row in live)
        first_block = rows[0].blocks == 0
        # A block whose last forward saw its final tokens needs no commit: its KV is final already.
        commit = not first_block and not self._previous_settled
        for step in range(cap):
            before = state.finished.flatten().tolist()
            self.program.step(settings, bound, with_previous=commit and step == 0)
            flags = torch.cat((state.finished, state.nonfinite), dim=1).tolist()
            for row, was_finished in zip(rows, before, strict=True):
                row.forwards += not was_finished
            seconds = time.perf_counter() - began
            if any(bad for _, bad in flags):
                raise self._nonfinite(rows[0], step)
            stopped = stop is not None and stop.is_set()
            done = all(finished for finished, _ in flags) or step + 1 == cap
            taken = self._record(rows[0], seconds) if record else None
            if done or stopped:
                self._end_block(rows, stopped and not done)
            yield StepMark(seconds, taken, done)
            if done or stopped:
                return

    def _end_block(self, rows: Sequence[Row], stopped: bool) -> None:
        state = self.program.state
        flags = torch.cat((state.settled, state.converged), dim=1).tolist()
        self._previous_settled = True
        for row, ids, (settled, converged) in zip(rows, state.tokens.tolist(), flags, strict=True):
            if row.reason is not None:
                continue
            self._previous_settled &= settled
            if stopped:
                row.stop(ids, self.mask_id)
            else:
                row.converged = row.converged and converged
                row.take_block(ids, self.mask_id, self.stop_after_block)

    def _record(self, row: Row, seconds: float) -> StepTaken:
        """Copies row 0's step to the host."""
        state = self.program.state
        tokens, proposal = state.tokens[0], state.proposal[0]
        masked = tokens == self.mask_id
        shown = torch.where(masked, proposal, tokens)
        kind = torch.full_like(tokens, int(TokenState.COMMITTED))
        kind[state.edited[0]] = int(TokenState.EDITED)
        kind[masked] = int(TokenState.DRAFT)
        kind[state.prompt[0]] = int(TokenState.PROMPT)
        blind = state.prompt[0]
        return StepTaken(
            block=row.blocks,
            step=int(state.step[0, 0]) - 1,
            block_start=int(state.start[0, 0]),
            forwards=row.forwards,
            ids=shown.to(torch.int32).cpu().numpy(),
            state=kind.to(torch.uint8).cpu().numpy(),
            confidence=state.confidence[0].masked_fill(blind, float("nan")).cpu().numpy(),
            entropy=state.entropy[0].masked_fill(blind, float("nan")).cpu().numpy(),
            edited_from=state.replaced[0].to(torch.int32).cpu().numpy(),
            seconds=seconds,
        )

    @staticmethod
    def _nonfinite(row: Row, step: int) -> RuntimeFailure:
        return RuntimeFailure(
            "runtime.nonfinite",
            f"The model produced numbers that are not finite (block {row.blocks}, step {step}).",
            "The checkpoint may be damaged: verify it, or load it again. "
            "What was written so far is kept.",
        )
