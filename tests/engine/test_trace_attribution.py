"""What a token adds to a confidence: the step run again without it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from traced_engines import ask, engine_over, long_reply

from engine.decoding.state import RowSettings
from engine.engine import TorchEngine
from engine.errors import RequestError
from engine.trace import Change, Fork, Trace, TraceError, record, record_fork
from engine.types import DecodeSettings, TokenState

SETTLED = (TokenState.COMMITTED, TokenState.EDITED)
# Those whose steps read nothing but the canvas.
PLAIN = ("llada2.0", "llada2.1", "llada2.2", "sdar", "bd3lm", "mdlm", "fast_dllm", "llada", "dream")
BLOCKS = ("llada2.0", "llada2.1", "llada2.2", "sdar", "bd3lm")


@pytest.fixture(scope="module")
def engines() -> dict[str, TorchEngine]:
    return {name: engine_over(name) for name in (*PLAIN, "qwen_dlm", "diffusion_gemma")}


def late_step(trace: Trace) -> tuple[int, int]:
    """The last step but the first of its block, and an absolute position that was open in it."""
    for row in range(len(trace) - 1, 0, -1):
        opened = np.flatnonzero(trace.state[row - 1] == TokenState.DRAFT)
        if trace.step[row] and opened.size and np.isin(trace.state[row - 1], SETTLED).any():
            return row, int(trace.block_start[row]) + int(opened[0])
    raise AssertionError("no such step")


def shown_before(trace: Trace, row: int) -> list[int]:
    """All tokens before step `row` from position 0 to the end of its block, -1 where none stood."""
    tokens = list(trace.header.prompt_ids)[: int(trace.block_start[0])]
    for block in range(int(trace.block[row])):
        tokens += trace.ids[trace.steps_of(block)[-1]].tolist()
    there = np.isin(trace.state[row - 1], (*SETTLED, TokenState.PROMPT))
    return [*tokens, *np.where(there, trace.ids[row - 1], -1).tolist()]


def share_of(
    engine: TorchEngine, tokens: Sequence[int], start: int, step: int, position: int, token: int
) -> float:
    """Probability of a token, by a program of one row that reads everything anew."""
    program = engine._program(1, len(tokens))
    mask = engine.info.mask_id
    ids = torch.tensor([[mask if t < 0 else t for t in tokens]])
    length = len(tokens) - start
    with torch.inference_mode():
        for first in range(0, start, length):
            where = torch.arange(first, first + length).unsqueeze(0)
            program.prefill(ids[:, first : first + length], where, first + length)
        state = program.state
        none = torch.zeros(1, length, dtype=torch.bool)
        state.begin(ids[:, start:], none, torch.tensor([[start]]), mask)
        state.step.fill_(step)
        state.finished.zero_()
        settings = RowSettings.of([DecodeSettings(steps=8)], torch.device("cpu"))
        judged = program.step(settings, len(tokens), with_previous=False)
        return float(judged.probability(torch.full((1, length), token))[0, position - start])


@pytest.mark.parametrize("name", BLOCKS)
def test_each_effect_is_that_of_the_step_without_the_token(
    engines: dict[str, TorchEngine], name: str
) -> None:
    engine = engines[name]
    trace = long_reply(engine, limit=30, threshold=0.99, editing_threshold=None)
    row, position = late_step(trace)
    found = engine.attribute(trace, row, position, "reply")
    tokens, start = shown_before(trace, row), int(trace.block_start[row])
    prompt = len(trace.header.prompt_ids)
    wanted = [p for p in range(prompt, len(tokens)) if tokens[p] >= 0 and p != position]
    assert found.positions.tolist() == wanted
    assert found.tokens.tolist() == [tokens[p] for p in wanted]
    where = (start, int(trace.step[row]), position, found.token)
    assert found.confidence == pytest.approx(share_of(engine, tokens, *where), rel=1e-4)
    for place, without in zip(wanted, found.without.tolist(), strict=True):
        changed = [*tokens]
        changed[place] = -1
        assert without == pytest.approx(share_of(engine, changed, *where), rel=1e-3, abs=1e-6)
    assert np.abs(found.effect).max() > 1e-4
    np.testing.assert_allclose(found.effect, found.confidence - found.without, atol=1e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_the_step_run_again_is_the_recorded_one(engines: dict[str, TorchEngine], name: str) -> None:
    trace = long_reply(engines[name], limit=30, threshold=0.99)
    row, position = late_step(trace)
    column = position - int(trace.block_start[row])
    found = engines[name].attribute(trace, row, position)
    assert found.token == trace.ids[row, column]
    assert found.confidence == pytest.approx(float(trace.confidence[row, column]), rel=1e-4)
    first = engines[name].attribute(trace, 0, int(trace.block_start[0]) + trace.ids.shape[1] - 1)
    assert first.confidence == pytest.approx(float(trace.confidence[0, -1]), rel=1e-4)
    assert found.positions.size
    assert first.positions.size == 0


def test_a_canvas_of_noise_is_asked_with_its_own_noise(engines: dict[str, TorchEngine]) -> None:
    engine = engines["qwen_dlm"]
    trace = long_reply(engine, limit=30, steps=8)
    row, position = late_step(trace)
    column = position - int(trace.block_start[row])
    found = engine.attribute(trace, row, position)
    assert found.confidence == pytest.approx(float(trace.confidence[row, column]), rel=1e-4)


def test_how_far_back_is_asked(engines: dict[str, TorchEngine]) -> None:
    engine = engines["llada2.0"]
    trace = long_reply(engine, blocks=3, limit=40, threshold=0.99)
    row, position = late_step(trace)
    start, length = int(trace.block_start[row]), trace.ids.shape[1]
    every = engine.attribute(trace, row, position, "reply")
    for reach, first in (("block", start), ("near", start - length)):
        found = engine.attribute(trace, row, position, reach)
        chosen = every.positions >= first
        np.testing.assert_array_equal(found.positions, every.positions[chosen])
        np.testing.assert_allclose(found.without, every.without[chosen], rtol=1e-4, atol=1e-6)


def test_a_forks_own_changes_are_on_the_canvas(engines: dict[str, TorchEngine]) -> None:
    engine = engines["llada2.0"]
    parent = record(engine, ask(threshold=0.99))
    open_, other = np.flatnonzero(parent.state[0] == TokenState.DRAFT)[-2:].tolist()
    change = Change(
        force=((8 + open_, 21),),
        ban=((8 + other, int(parent.ids[1, other])),),
        settings=DecodeSettings(threshold=0.9, temperature=0.0, steps=8),
    )
    fork = record_fork(engine, Fork(parent, 1, change))
    found = engine.attribute(fork, 1, 8 + other)
    assert found.confidence == pytest.approx(float(fork.confidence[1, other]), rel=1e-4)
    assert 8 + open_ in found.positions
    masked = int(np.flatnonzero(np.isin(parent.state[0], SETTLED))[0])
    fork = record_fork(engine, Fork(parent, 1, Change(mask=(8 + masked,))))
    found = engine.attribute(fork, 1, 8 + other)
    assert found.confidence == pytest.approx(float(fork.confidence[1, other]), rel=1e-4)
    assert 8 + masked not in found.positions


def refusal(engine: TorchEngine, trace: Trace, row: int, position: int) -> TraceError:
    with pytest.raises(TraceError) as caught:
        engine.attribute(trace, row, position)
    assert caught.value.action
    return caught.value


def test_what_cannot_be_asked_is_refused_in_words(engines: dict[str, TorchEngine]) -> None:
    engine = engines["llada2.0"]
    trace = long_reply(engine, limit=30, threshold=0.99)
    row = int(np.flatnonzero(trace.block == 1)[1])
    start = int(trace.block_start[row])
    assert "prompt" in refusal(engine, trace, 0, 8).message
    assert "not in the block" in refusal(engine, trace, row, start - 1).message
    assert "not in the block" in refusal(engine, trace, row, start + 8).message
    assert "not in this trace" in refusal(engine, trace, len(trace), start).message
    kept = [n for n in range(len(trace)) if n != row - 1]
    gap = replace(
        trace,
        **{
            name: getattr(trace, name)[kept]
            for name in ("block", "step", "block_start", "ids", "state", "confidence")
        },
    )
    assert "not recorded" in refusal(engine, gap, row - 1, start).message
    assert refusal(engines["llada2.1"], trace, row, start).code == "trace.other_model"


def test_a_model_that_remembers_its_last_step_says_so(engines: dict[str, TorchEngine]) -> None:
    engine = engines["diffusion_gemma"]
    trace = long_reply(engine, limit=40, steps=8)
    row = int(np.flatnonzero(trace.step > 0)[0])
    error = refusal(engine, trace, row, int(trace.block_start[row]) + 1)
    assert "what the step before expected" in error.message
    assert "Fork" in error.action


def test_a_question_can_be_stopped(engines: dict[str, TorchEngine]) -> None:
    stop = threading.Event()
    stop.set()
    trace = long_reply(engines["llada2.0"], limit=30, threshold=0.99)
    row, position = late_step(trace)
    with pytest.raises(RequestError) as caught:
        engines["llada2.0"].attribute(trace, row, position, "reply", stop)
    assert caught.value.code == "request.stopped"
