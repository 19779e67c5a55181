"""What the host knows of each sequence of a batch: its prompt, its limits, the tokens it has, and
when it is over.

Decides nothing: the device does (`engine.runtime.reply`), and a row is told after every block. No
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.decoding.steering import Steering
from engine.errors import RuntimeFailure
from engine.types import Capture, DecodeSettings, StepTaken, StopReason


@dataclass(frozen=True)
class BlockEnd:
    """What the device says of one row at the end of a block.

    tokens: the block, prompt and masks included. advanced: the block counts (it was not cut short).
    length: generated tokens kept so far. reason: why the reply is over, None while it goes on.
    forwards, commits: decode forwards so far, and those of them that only committed a block.
    """

    tokens: Sequence[int]
    advanced: bool
    length: int
    reason: StopReason | None
    converged: bool
    nonfinite: bool
    forwards: int
    commits: int


@dataclass
class Row:
    """One sequence. ids: generated tokens of finished blocks, cut at the first stop token or the
    length limit. block_tokens: the block that ended last, prompt tokens included. on_grid: blocks
    lie on multiples of their length, so that the prompt's rest shares the first one; otherwise the
    first begins where the prompt ends. capture: what is kept of its steps, where it is row 0."""

    prompt: Sequence[int]
    max_new_tokens: int
    settings: DecodeSettings
    block_length: int
    stop_ids: frozenset[int]
    on_grid: bool = True
    steering: Steering = field(default_factory=Steering)
    capture: Capture = field(default_factory=Capture)
    ids: list[int] = field(default_factory=list)
    block_tokens: Sequence[int] = ()
    blocks: int = 0
    forwards: int = 0
    commits: int = 0
    reason: StopReason | None = None
    converged: bool = True

    @property
    def first_block_start(self) -> int:
        if not self.on_grid:
            return len(self.prompt)
        return len(self.prompt) // self.block_length * self.block_length

    @property
    def block_start(self) -> int:
        """Absolute position of the block that is next to be denoised, or being denoised."""
        return self.first_block_start + self.blocks * self.block_length

    @property
    def max_blocks(self) -> int:
        end = len(self.prompt) + self.max_new_tokens
        return -(-(end - self.first_block_start) // self.block_length)

    def take(self, end: BlockEnd) -> None:
        """Takes over the end of a block of this row (which was not over before it)."""
        prompt_tokens = max(0, len(self.prompt) - self.block_start)
        self.ids = [*self.ids, *end.tokens[prompt_tokens:]][: end.length]
        self.block_tokens = end.tokens
        self.blocks += end.advanced
        self.forwards, self.commits = end.forwards, end.commits
        self.reason, self.converged = end.reason, end.converged


def take_ends(rows: Sequence[Row], ends: Sequence[BlockEnd | None]) -> bool:
    """Tells every row how its block ended; whether the block counts. Raises RuntimeFailure
    `runtime.nonfinite`, rows keeping what they had."""
    for row, end in zip(rows, ends, strict=True):
        if end is not None:
            if end.nonfinite:
                raise RuntimeFailure(
                    "runtime.nonfinite",
                    "The model produced numbers that are not finite "
                    f"(block {row.blocks}, forward {end.forwards}).",
                    "The checkpoint may be damaged: verify it, or load it again. "
                    "What was written so far is kept.",
                )
            row.take(end)
    return any(end is not None and end.advanced for end in ends)


@dataclass(frozen=True)
class StepMark:
    """The host's view after one step. `step_taken` is filled for row 0 when the caller records;
    `block_done`: the block of every row is finished and its ids are in the rows. dropped: steps
    before this one whose record was overwritten before it could be read."""

    seconds: float
    step_taken: StepTaken | None
    block_done: bool
    dropped: int = 0
