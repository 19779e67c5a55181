"""What it costs to keep the best k tokens of every position at every step, beside the trace.

The runtime's trace holds no such lists yet. This puts the search that would fill them (the kernel
of `engine.kernels.best`) behind the judgement of a captured step, and keeps the result in a ring on
the device. The host does not fetch it, so that part of the cost is missing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoding.said import KernelJudge, Said
from engine.decoding.state import RowSettings
from engine.decoding.steering import SteeringState
from engine.kernels.best import TOP_CHUNK, best_of_rows
from engine.runtime.pieces import ReplyPieces
from engine.runtime.reply import Control


class TopJudge(KernelJudge):
    """`KernelJudge` that also keeps the best k. found int32 [2, R, k]: ids, and probabilities by
    their bits. ring int32 [slots, 2, R, k]: those of the last steps."""

    def __init__(self, pieces: ReplyPieces, top: int) -> None:
        """Before the pieces are captured. top: at most 16."""
        state, program = pieces.program.state, pieces.program
        batch, length = state.tokens.shape
        device = state.tokens.device
        super().__init__(batch, length, program.suppressed, device)
        rows = batch * length
        chunks = -(-program.model.spec.vocab_size // TOP_CHUNK)
        self.found = torch.zeros(2, rows, top, dtype=torch.int32, device=device)
        self.ring = torch.zeros(pieces.ring.slots, *self.found.shape, dtype=torch.int32).to(device)
        self._values = torch.empty(rows, chunks, top, device=device)
        self._ids = torch.empty(rows, chunks, top, dtype=torch.int32, device=device)
        self._steps = pieces.reply.word(Control.STEPS)

    def __call__(
        self,
        logits: Tensor,
        settings: RowSettings,
        start: Tensor,
        step: Tensor,
        canvas: Tensor,
        steering: SteeringState | None,
        ahead: bool = False,
    ) -> Said:
        said = super().__call__(logits, settings, start, step, canvas, steering, ahead)
        rows = logits.reshape(-1, logits.shape[-1])
        ids, probabilities = self.found[0], self.found[1].view(torch.float32)
        norm = self._verdicts[ahead].log_norm
        best_of_rows(rows, norm, self._values, self._ids, ids, probabilities)
        slot = self._steps % self.ring.shape[0]
        self.ring.index_copy_(0, slot, self.found.unsqueeze(0))
        return said
