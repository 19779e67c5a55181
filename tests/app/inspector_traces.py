"""Traces for tests of the inspector: small ones that a test can reason about, and a large one.

It knows how to make arrays. Nothing in them was measured on a model.
"""

from __future__ import annotations

import numpy as np

from engine.trace import Trace, TraceHeader
from engine.types import TokenState

M, D, C, E, P = (int(s) for s in TokenState)
NAN = float("nan")


PIECES = {
    0: "<mask>", 1: "The", 2: " cat", 3: " dog", 4: " sat", 5: " on", 6: " the", 7: " mat", 9: "> ",
}  # fmt: skip
LARGE_PIECES = {i: (" word", " a", "ing", " token", ".", " of", "\n")[i % 7] for i in range(400)}


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
            model_name="small", vocab_size=10, stop_ids=(7,), block_length=4, pieces=PIECES
        ),
    )


def large_trace(positions: int = 2048, steps: int = 1500, length: int = 32) -> Trace:
    """`positions` over `steps` in blocks of `length`, each position accepted once, a few edited."""
    blocks = positions // length
    bounds = np.linspace(0, steps, blocks + 1).astype(int)
    block = np.repeat(np.arange(blocks), np.diff(bounds))
    step = np.arange(steps) - bounds[:-1][block]
    counts = np.diff(bounds)[block]
    rng = np.random.default_rng(7)
    due = (rng.random((blocks, length)) * 0.9 * np.diff(bounds)[:, None]).astype(int)
    committed = step[:, None] >= due[block]
    edit_at = np.where(rng.random((blocks, length)) < 0.06, due + 1, 10_000)
    edited = step[:, None] >= edit_at[block]
    final = rng.integers(10, 400, (blocks, length))[block]
    guess = rng.integers(10, 400, (steps, length))
    share = np.clip((step[:, None] + 1) / (due[block] + 1), 0, 1)
    confidence = np.clip(0.2 + 0.75 * share + rng.normal(0, 0.05, share.shape), 0, 1)
    happens = (step[:, None] == edit_at[block]) & (edit_at[block] < counts[:, None])
    state = np.where(edited, E, np.where(committed, C, D))
    return Trace(
        block=block.astype(np.int32),
        step=step.astype(np.int32),
        block_start=(block * length).astype(np.int32),
        forwards=np.arange(1, steps + 1, dtype=np.int32),
        seconds=np.cumsum(0.002 + 0.001 * rng.random(steps)),
        ids=np.where(committed, final, guess).astype(np.int32),
        edited_from=np.where(happens, final % 390 + 5, -1).astype(np.int32),
        state=state.astype(np.uint8),
        confidence=confidence.astype(np.float32),
        entropy=(5 * (1 - confidence) ** 2).astype(np.float32),
        header=TraceHeader(
            model_name="large", vocab_size=400, block_length=length, pieces=LARGE_PIECES
        ),
    )
