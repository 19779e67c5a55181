"""Small made-up traces for tests of the file: nothing in them was measured on a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.trace import Change, KeptLogits, Trace, TraceHeader, TraceParent
from engine.types import DecodeSettings, GenerationStats, Message, TokenState

M, D, C, E, P = (int(state) for state in TokenState)
VOCABULARY = 12
HEADER = TraceHeader(
    trace_id="00" * 16,
    created="2026-01-01T00:00:00Z",
    model_name="made up",
    model_family="none",
    model_revision="abc",
    quantisation="float32",
    decoding="llada2.1",
    runtime="eager, float32",
    device="cpu",
    messages=(Message("system", "brief"), Message("user", 'quote " and ü and \u2028')),
    prompt_ids=(3, 4, 5, 6, 7, 8, 9, 10, 9),
    settings=DecodeSettings(editing_threshold=0.0),
    max_new_tokens=7,
    mask_id=11,
    stop_ids=(1,),
    vocab_size=VOCABULARY,
    block_length=4,
    capture="light",
    reason="length",
    text="text",
    stats=GenerationStats(7, 5, 1, 1, 2, 0.1, 0.05, 2.5),
    pieces={0: "a", 9: "é", 10: "\ufffd"},
)


def plain_trace() -> Trace:
    """Two blocks of four positions, two steps and one."""
    nan = float("nan")
    return Trace(
        block=np.array([0, 0, 1], np.int32),
        step=np.array([0, 1, 0], np.int32),
        block_start=np.array([8, 8, 12], np.int32),
        forwards=np.array([1, 2, 4], np.int32),
        seconds=np.array([0.01, 0.02, 0.04]),
        ids=np.array([[9, 1, 5, 6], [9, 1, 2, 6], [5, 6, 7, 0]], np.int32),
        edited_from=np.array([[-1] * 4, [-1, -1, 5, -1], [-1] * 4], np.int32),
        state=np.array([[P, C, C, D], [P, C, E, C], [C, C, C, C]], np.uint8),
        confidence=np.array([[nan, 0.9, 0.4, 0.1], [nan, 0.9, 0.8, 0.3], [1, 0, 0.5, 0.5]], "f4"),
        entropy=np.array([[nan, 0.2, 1.5, 2.5], [nan, 0.1, 0.5, 2.0], [0, 0, 1, 1]], "f4"),
        header=HEADER,
    )


def full_trace() -> Trace:
    """`plain_trace` with candidates, logits and ancestors."""
    plain = plain_trace()
    top_ids = np.stack([plain.ids, (plain.ids + 1) % VOCABULARY], axis=-1)
    top_p = np.stack([plain.confidence / 2, plain.confidence / 4], axis=-1)
    logits = np.linspace(-3, 3, 2 * VOCABULARY, dtype=np.float32).reshape(2, VOCABULARY)
    logits[:, 11] = -np.inf
    change = Change(((9, 3),), ((10, 4), (-1, 5)), (11,), DecodeSettings(temperature=0.5))
    ancestry = (
        TraceParent("11" * 16, 1, 8, 1, Change()),
        TraceParent("22" * 16, 2, 12, 0, change),
    )
    return replace(
        plain,
        top_ids=top_ids.astype(np.int32),
        top_p=top_p,
        logits=KeptLogits(np.array([0, 1], np.int32), np.array([9, 10], np.int32), logits),
        header=replace(HEADER, capture="full", top_k=2, ancestry=ancestry),
    )
