"""Two made-up replies of one prompt for tests of figures, comparison and exports: a quick one, and
one that hesitates, edits in vain and runs out of steps.

Nothing in them was measured on a model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.trace import Trace, TraceHeader
from engine.types import DecodeSettings, GenerationStats, TokenState

M, D, C, E, P = (int(state) for state in TokenState)
NAN = float("nan")
PIECES = {
    0: "<mask>", 1: "<end>", 2: "The", 3: " cat", 4: " dog", 5: " sat", 6: "\n", 7: "</script>",
    8: "=1+1", 9: "> ",
}  # fmt: skip


def header(tokens: int, forwards: int, threshold: float) -> TraceHeader:
    return TraceHeader(
        model_name="made up",
        decoding="llada2.1",
        runtime="eager, float32",
        prompt_ids=(9,) * 9,
        settings=DecodeSettings(threshold=threshold, editing_threshold=0.0),
        mask_id=0,
        stop_ids=(1,),
        vocab_size=10,
        block_length=4,
        reason="stop_token",
        text="The cat sat\n</script>",
        stats=GenerationStats(tokens, forwards, 0, 1, 2, 0.1, 0.05, tokens / 2),
        pieces=PIECES,
    )


def quick() -> Trace:
    """Blocks of four at 8 and 12 (8 is the prompt's), two steps and one; the stop token is at
    14."""
    return Trace(
        block=np.array([0, 0, 1], np.int32),
        step=np.array([0, 1, 0], np.int32),
        block_start=np.array([8, 8, 12], np.int32),
        forwards=np.array([1, 2, 3], np.int32),
        seconds=np.array([0.01, 0.02, 0.04]),
        ids=np.array([[9, 2, 4, 5], [9, 2, 3, 5], [6, 7, 1, 0]], np.int32),
        edited_from=np.full((3, 4), -1, np.int32),
        state=np.array([[P, C, D, C], [P, C, C, C], [C, C, C, M]], np.uint8),
        confidence=np.array([[NAN, 0.9, 0.4, 0.8], [NAN, 0.9, 0.7, 0.8], [1, 0.5, 0.6, NAN]], "f4"),
        entropy=np.array([[NAN, 0.2, 1.5, 0.5], [NAN, 0.1, 0.5, 0.25], [0, 1, 1, NAN]], "f4"),
        header=header(6, 3, 0.5),
    )


def hesitant() -> Trace:
    """The same answer: in block 8, " cat" at 10 gives way to " dog" in step 2 and returns in step
    3; block 12 leaves position 13 open when its two steps are over."""
    ids = [[9, 2, 4, 0], [9, 2, 3, 5], [9, 2, 4, 5], [9, 2, 3, 5], [6, 7, 1, 0], [6, 4, 1, 0]]
    edited = np.full((6, 4), -1, np.int32)
    edited[2, 2], edited[3, 2] = 3, 4
    state = [[P, C, D, M], [P, C, C, C], [P, C, E, C], [P, C, E, C], [C, D, C, M], [C, D, C, M]]
    confidence = np.full((6, 4), 0.5, np.float32)
    confidence[:4, 0] = confidence[0, 3] = confidence[4:, 3] = NAN
    return Trace(
        block=np.array([0, 0, 0, 0, 1, 1], np.int32),
        step=np.array([0, 1, 2, 3, 0, 1], np.int32),
        block_start=np.array([8, 8, 8, 8, 12, 12], np.int32),
        forwards=np.arange(1, 7, dtype=np.int32),
        seconds=np.arange(1, 7) / 50,
        ids=np.array(ids, np.int32),
        edited_from=edited,
        state=np.array(state, np.uint8),
        confidence=confidence,
        entropy=np.where(np.isnan(confidence), np.nan, 2.0).astype(np.float32),
        header=header(6, 6, 0.9),
    )


def with_candidates(trace: Trace, count: int = 2) -> Trace:
    """The same with top-k: the token shown, then the ids after it."""
    top_ids = (trace.ids[..., None] + np.arange(count)) % 10
    top_p = trace.confidence[..., None] / 2.0 ** np.arange(count)
    top_ids = np.where(np.isnan(top_p), -1, top_ids).astype(np.int32)
    return replace(trace, top_ids=top_ids, top_p=top_p.astype(np.float32))
