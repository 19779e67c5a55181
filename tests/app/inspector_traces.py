"""Traces for tests of the inspector: small ones that a test can reason about, and a large one.

It knows how to make arrays. Nothing in them was measured on a model.
"""

from __future__ import annotations

import numpy as np

from bench.inspector_paint import large_trace
from engine.trace import Trace, TraceHeader
from engine.types import TokenState

M, D, C, E, P = (int(s) for s in TokenState)
NAN = float("nan")


PIECES = {
    0: "<mask>", 1: "The", 2: " cat", 3: " dog", 4: " sat", 5: " on", 6: " the", 7: " mat", 9: "> ",
}  # fmt: skip


def small_trace() -> Trace:
    """Two blocks of four positions, three steps and two; position 0 is the prompt's.

    Block 0: position 1 is accepted in step 0, 2 in step 1 and edited in step 2, 3 in step 2.
    Block 1: all but its last position are accepted in step 3; its second is taken back in step 4.
    """
    return Trace(
        block=np.array([0, 0, 0, 1, 1], np.int32),
        step=np.array([0, 1, 2, 0, 1], np.int32),
        block_start=np.array([8, 8, 8, 12, 12], np.int32),
        forwards=np.array([1, 2, 3, 5, 6], np.int32),
        seconds=np.array([0.010, 0.020, 0.040, 0.080, 0.100]),
        ids=np.array(
            [[9, 1, 5, 6], [9, 1, 2, 6], [9, 1, 3, 4], [5, 6, 7, 0], [5, 0, 7, 0]], np.int32
        ),
        edited_from=np.array([[-1] * 4, [-1] * 4, [-1, -1, 2, -1], [-1] * 4, [-1] * 4], np.int32),
        state=np.array(
            [[P, C, D, D], [P, C, C, D], [P, C, E, C], [C, C, C, M], [C, M, C, M]], np.uint8
        ),
        confidence=np.array(
            [
                [NAN, 0.9, 0.4, 0.1],
                [NAN, 0.95, 0.8, 0.3],
                [NAN, 0.97, 0.99, 0.7],
                [0.9, 0.8, 0.7, NAN],
                [0.9, 0.2, 0.7, NAN],
            ],
            np.float32,
        ),
        entropy=np.array(
            [
                [NAN, 0.2, 1.5, 2.5],
                [NAN, 0.1, 0.5, 2.0],
                [NAN, 0.1, 0.05, 1.0],
                [0.2, 0.4, 0.6, NAN],
                [0.2, 3.0, 0.6, NAN],
            ],
            np.float32,
        ),
        header=TraceHeader(
            model_name="small",
            vocab_size=10,
            mask_id=0,
            stop_ids=(7,),
            block_length=4,
            reason="length",
            pieces=PIECES,
        ),
    )


__all__ = ["PIECES", "large_trace", "small_trace"]
