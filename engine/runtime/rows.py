"""What the host knows of each sequence of a batch: its prompt, its limits, the tokens it has, and
when it is over.

Knows counting and stop tokens. No tensors: the runtimes copy a finished block's ids here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.types import DecodeSettings, StopReason


@dataclass
class Row:
    """One sequence. ids: generated tokens of finished blocks, cut at the first stop token or the
    length limit."""

    prompt: Sequence[int]
    max_new_tokens: int
    settings: DecodeSettings
    block_length: int
    stop_ids: frozenset[int]
    ids: list[int] = field(default_factory=list)
    blocks: int = 0
    forwards: int = 0
    reason: StopReason | None = None
    converged: bool = True

    @property
    def first_block_start(self) -> int:
        return len(self.prompt) // self.block_length * self.block_length

    @property
    def block_start(self) -> int:
        """Absolute position of the block that is next to be denoised, or being denoised."""
        return self.first_block_start + self.blocks * self.block_length

    @property
    def max_blocks(self) -> int:
        end = len(self.prompt) + self.max_new_tokens
        return -(-(end - self.first_block_start) // self.block_length)

    def prompt_in_block(self) -> Sequence[int]:
        """Prompt tokens that share the current block (only the first block has any)."""
        return self.prompt[self.first_block_start :] if self.blocks == 0 else ()

    def take_block(self, tokens: Sequence[int], mask_id: int, stop_after_block: bool) -> None:
        """Adds a finished block and decides whether the reply is over."""
        self.ids += tokens[len(self.prompt_in_block()) :]
        self.blocks += 1
        last = self.blocks == self.max_blocks
        self.ids = self.ids[: self.max_new_tokens]
        stop = next((n for n, token in enumerate(self.ids) if token in self.stop_ids), None)
        if stop is not None and (stop_after_block or last):
            self.ids = self.ids[: stop + 1]
            self.reason = "stop_token"
        elif last:
            self.reason = "length"
        if mask_id in self.ids:
            # Only a step cap leaves masks: what stands behind the first one is not an answer.
            self.ids = self.ids[: self.ids.index(mask_id)]
            self.reason, self.converged = "did_not_converge", False

    def stop(self, tokens: Sequence[int], mask_id: int) -> None:
        """Ends the reply in the middle of a block: what stands before the block's first mask is
        kept."""
        generated = list(tokens[len(self.prompt_in_block()) :])
        kept = generated[: generated.index(mask_id)] if mask_id in generated else generated
        stop = next((n for n, token in enumerate(kept) if token in self.stop_ids), len(kept))
        self.ids = (self.ids + kept[:stop])[: self.max_new_tokens]
        self.reason = "stopped"
