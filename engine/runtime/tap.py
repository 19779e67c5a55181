"""What every step of a reply read, kept on the device: the canvas and the residual it consumed.

Training replays exactly these states (orl.md section 2). Knows how they are laid out and written
without a host read, so that a captured step can write them too; when a reply is over, the host
asks how many there are. Knows no model and no loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoding.state import BlockState
from engine.runtime.carry import Carry


class StateTap:
    """One entry a step of the batch, in order. canvas int32 [slots, B, L]: tokens before the step.
    start, step int32 [slots, B]: the block's first position, and forwards it had taken. active bool
    [slots, B]: the row was being denoised. expected [slots, B, L, H] in the model's dtype and doubt
    float32 [slots, B, L, 1]: what `Carry` held (zero in a block's first step), or None without a
    residual. count int64 [1]: steps taken; entries past the last slot are lost (`full`)."""

    def __init__(self, slots: int, batch: int, length: int, device: torch.device) -> None:
        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.slots = slots
        self.canvas = ints(slots, batch, length)
        self.start, self.step = ints(slots, batch), ints(slots, batch)
        self.active = torch.zeros(slots, batch, dtype=torch.bool, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.expected: Tensor | None = None
        self.doubt: Tensor | None = None

    def keep_residual(self, carry: Carry) -> None:
        """Makes room for what a carry holds."""
        self.expected = carry.expected.new_zeros(self.slots, *carry.expected.shape)
        self.doubt = carry.doubt.new_zeros(self.slots, *carry.doubt.shape)

    def reset(self) -> None:
        """A new reply begins."""
        self.count.zero_()

    def note(self, state: BlockState, carry: Carry | None) -> None:
        """Writes the state a forward has just read, before the rule changes it."""
        slot = self.count.clamp(max=self.slots - 1)
        for kept, value in (
            (self.canvas, state.tokens),
            (self.start, state.start.squeeze(-1)),
            (self.step, state.step.squeeze(-1)),
            (self.active, ~state.finished.squeeze(-1)),
        ):
            kept.index_copy_(0, slot, value.to(kept.dtype).unsqueeze(0))
        if carry is not None and self.expected is not None and self.doubt is not None:
            begun = (state.step > 0).unsqueeze(-1)
            self.expected.index_copy_(0, slot, torch.where(begun, carry.expected, 0.0).unsqueeze(0))
            self.doubt.index_copy_(0, slot, torch.where(begun, carry.doubt, 0.0).unsqueeze(0))
        self.count.add_(1)

    @property
    def full(self) -> bool:
        """Whether steps were lost (a host read)."""
        return int(self.count) > self.slots
