"""The attention kernel behind the cache's seam, in a whole reply (Triton's interpreter)."""

from __future__ import annotations

import torch
from small import eager_for, graph_for, outcome, reply, request, small_model

from engine.models.llada2 import LLaDA2
from engine.runtime.attention import TritonAttention
from engine.types import DecodeSettings


def _attention(model: LLaDA2) -> TritonAttention:
    return TritonAttention(model.spec.rotary_dim, model.spec.rope_theta)


def test_a_reply_is_the_same_with_the_attention_kernel() -> None:
    model = small_model()
    settings = DecodeSettings(threshold=0.6, steps=4)
    wanted = request([5, 6, 7] * 9, 20, settings)
    wanted_marks = reply(eager_for(model), wanted)
    for make in (eager_for, graph_for):
        runtime = make(model)
        runtime.pieces.program.cache.attention = _attention(model)
        row = request([5, 6, 7] * 9, 20, settings)
        marks = reply(runtime, row)
        assert outcome(row) == outcome(wanted)
        for mark, other in zip(marks, wanted_marks, strict=True):
            assert mark.step_taken is not None
            assert other.step_taken is not None
            torch.testing.assert_close(
                torch.from_numpy(mark.step_taken.confidence),
                torch.from_numpy(other.step_taken.confidence),
                atol=1e-4,
                rtol=0,
                equal_nan=True,
            )


def test_slots_nobody_sees_may_hold_anything_finite() -> None:
    model = small_model()
    settings = DecodeSettings(threshold=0.6, steps=4)
    clean, dirty = request([5, 6, 7], 20, settings), request([5, 6, 7], 20, settings)
    runtime = eager_for(model)
    runtime.pieces.program.cache.attention = _attention(model)
    reply(runtime, clean)
    cache = runtime.pieces.program.cache
    cache.keys.fill_(1e4)
    cache.values.fill_(-1e4)
    reply(runtime, dirty)
    assert outcome(dirty) == outcome(clean)
