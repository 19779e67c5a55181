"""The trace ring: what every step did, kept on the device until the host has read it.

Knows the layout of a record and how one is written: the torch reference (CPU) and the launch of the
one-kernel version (`engine.runtime.ring_kernel`) that a captured step uses. The ring never blocks
the loop: slot = step % slots, so a slow reader loses records, and `engine.runtime.reader` says how
many. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.decoding.state import BlockState
from engine.runtime.reply import Control, ReplyState
from engine.types import StepTaken, TokenState

HEADER = 4  # time in ns (two words), index of the step, whether the block ended with it
META = 4  # per row: block, step in the block, block start, forwards so far
ARRAYS = 5  # per row, [L] each: token shown, state, confidence, entropy, token replaced
SLOTS = 512

RecordKernel = Callable[["TraceRing", BlockState, ReplyState], None]


@dataclass(frozen=True)
class StepRecord:
    """One step as read from the ring. time: nanoseconds on the device's clock, 0 when the host
    keeps the time. kept: the same step's slot of the ring beside (`engine.runtime.watch`)."""

    index: int
    time: int
    block_ended: bool
    words: npt.NDArray[np.int32]
    kept: npt.NDArray[np.int32] | None = None


class TraceRing:
    """records int32 [slots, words]; floats are stored by their bits. Words: HEADER, META for every
    row, then ARRAYS of [B, L].

    kernel: writes a record in one launch; None = torch operations.
    """

    def __init__(
        self,
        batch: int,
        block_length: int,
        device: torch.device,
        slots: int = SLOTS,
        kernel: RecordKernel | None = None,
    ) -> None:
        self.batch, self.block_length, self.slots = batch, block_length, slots
        words = HEADER + batch * (META + ARRAYS * block_length)
        self.words = words + words % 2  # so that every record begins on 8 bytes
        self.records = torch.zeros(slots, self.words, dtype=torch.int32, device=device)
        self.kernel = kernel

    def record(self, state: BlockState, reply: ReplyState) -> None:
        """Writes the step that has just been taken into its slot. The time words are left to the
        loop."""
        if self.kernel is not None:
            self.kernel(self, state, reply)
            return
        steps = reply.word(Control.STEPS)
        ended = reply.word(Control.KEEP_STEP) == 0
        head = torch.cat((steps.new_zeros(2), steps, ended.to(torch.int64)))
        forwards = reply.forwards + state.step
        meta = torch.cat((reply.blocks, state.step - 1, state.start, forwards), dim=1)
        parts = [part.to(torch.int32).flatten() for part in (head, meta)]
        parts += [part.flatten() for part in describe(state, reply)]
        record = torch.cat(parts)
        target = self.records[:, : record.numel()]
        target.index_copy_(0, steps % self.slots, record.unsqueeze(0))

    def read(
        self, words: npt.NDArray[np.int32], kept: npt.NDArray[np.int32] | None = None
    ) -> StepRecord:
        """A record that has been copied to the host (int32 [words]), and its slot beside."""
        return replace(self.read_all(words[np.newaxis])[0], kept=kept)

    def read_all(self, copied: npt.NDArray[np.int32]) -> list[StepRecord]:
        """Records that have been copied to the host (int32 [n, words])."""
        times = copied[:, :2].view(np.int64)[:, 0].tolist()
        heads = copied[:, 2:HEADER].tolist()
        return [
            StepRecord(index, time, bool(ended), words)
            for time, (index, ended), words in zip(times, heads, copied, strict=True)
        ]

    def step_taken(self, record: StepRecord, row: int, seconds: float) -> StepTaken:
        """One row of a record as the event the window knows. Its arrays are views of the record."""
        block, step, start, forwards = self._meta(record.words, row)
        ids, state, confidence, entropy, replaced = self._arrays(record.words, row)
        return StepTaken(
            block=block,
            step=step,
            block_start=start,
            forwards=forwards,
            ids=ids,
            state=state.astype(np.uint8),
            confidence=confidence.view(np.float32),
            entropy=entropy.view(np.float32),
            edited_from=replaced,
            seconds=seconds,
        )

    def _meta(self, words: npt.NDArray[np.int32], row: int) -> list[int]:
        first = HEADER + row * META
        return words[first : first + META].tolist()

    def _arrays(self, words: npt.NDArray[np.int32], row: int) -> npt.NDArray[np.int32]:
        first = HEADER + self.batch * META
        size = ARRAYS * self.batch * self.block_length
        arrays = words[first : first + size].reshape(ARRAYS, self.batch, self.block_length)
        return arrays[:, row]


def describe(state: BlockState, reply: ReplyState) -> tuple[Tensor, ...]:
    """What a person sees of the canvas after a step, int32 [B, L] each (floats by their bits):
    token shown, `TokenState`, confidence, entropy, token replaced. Prompt tokens are not judged:
    NaN."""
    masked = state.tokens == reply.mask_id
    prompt = state.positions < reply.prompt_length
    shown = torch.where(masked, state.proposal, state.tokens)
    kind = torch.where(state.edited, int(TokenState.EDITED), int(TokenState.COMMITTED))
    kind = kind.masked_fill(masked, TokenState.DRAFT).masked_fill(prompt, TokenState.PROMPT)
    nan = float("nan")
    return (
        shown.to(torch.int32),
        kind.to(torch.int32),
        state.confidence.masked_fill(prompt, nan).view(torch.int32),
        state.entropy.masked_fill(prompt, nan).view(torch.int32),
        state.replaced.to(torch.int32),
    )
