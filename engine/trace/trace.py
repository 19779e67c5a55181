"""One recorded reply as arrays: a row a denoising step, a column a position of its block.

Knows shapes and what a value means. Refuses to know a model, torch and any view.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.trace.header import TraceHeader


@dataclass(frozen=True, eq=False)
class KeptLogits:
    """The model's logits at chosen positions, N of them in the order of the steps. step int32 [N]:
    row of the trace. position int32 [N]: absolute. values float32 [N, V]: before temperature; -inf
    where a token cannot be proposed (the mask, bans)."""

    step: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Trace:
    """S steps of L positions. block, step, block_start, forwards int32 [S]; seconds float64 [S];
    ids, edited_from int32 [S, L]; state uint8 [S, L] (`TokenState`); confidence, entropy float32
    [S, L], NaN where nothing was judged.

    top_ids int32, top_p float32 [S, L, K]: the K most likely tokens of a position, best first, and
    their probabilities under the plain softmax (temperature 1, no filter); -1 and NaN where nothing
    was judged. None = not captured. logits: None = not captured.
    """

    block: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    block_start: npt.NDArray[np.int32]
    forwards: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.float64]
    ids: npt.NDArray[np.int32]
    edited_from: npt.NDArray[np.int32]
    state: npt.NDArray[np.uint8]
    confidence: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32] | None = None
    top_p: npt.NDArray[np.float32] | None = None
    logits: KeptLogits | None = None
    header: TraceHeader = field(default_factory=TraceHeader)

    def __len__(self) -> int:
        return len(self.step)

    def steps_of(self, block: int) -> npt.NDArray[np.intp]:
        """Indices of the steps of one block (0 = the reply's first)."""
        return np.flatnonzero(self.block == block)
