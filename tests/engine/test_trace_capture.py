"""What a step keeps of its logits: the same on every runtime, and what the model said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from small import (
    BLOCK,
    MASK,
    Runtime,
    eager_for,
    eager_like_graph,
    graph_for,
    per_step_for,
    reply,
    request,
    small_model,
)

from engine.check_request import check_capture
from engine.decoding.steering import Steering
from engine.errors import RequestError
from engine.kernels.best import BestOfRows
from engine.models.llada2 import LLaDA2
from engine.runtime.watch import best_of
from engine.types import Capture, DecodeSettings, StepTaken, TokenState

RULES = ("llada2.0", "llada2.1", "llada2.2")
PROMPT = [5, 9, 13, 2, 7, 30, 31, 8, 11, 3]
TOP = Capture("top-k", top_k=5)
FULL = Capture("full", top_k=16, positions=(12, 17, 25))
LOOSE = DecodeSettings(threshold=0.6, editing_threshold=0.3, max_post_steps=4, steps=8)


@pytest.fixture(scope="module")
def models() -> dict[str, LLaDA2]:
    return {rule: small_model(rule) for rule in RULES}


def steps_of(
    runtime: Runtime,
    capture: Capture,
    settings: DecodeSettings = LOOSE,
    limit: int = 20,
    **changes,
) -> list[StepTaken]:
    row = request(PROMPT, limit, settings, capture=capture, **changes)
    marks = reply(runtime, row)
    return [mark.step_taken for mark in marks if mark.step_taken is not None]


def assert_equal(found: Sequence[StepTaken], wanted: Sequence[StepTaken], close: bool = False):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        for name in ("ids", "state", "top_ids", "logit_positions"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
        for name in ("top_p", "logits"):
            x, y = getattr(a, name), getattr(b, name)
            if close and x is not None:
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)
            else:
                np.testing.assert_array_equal(x, y, name)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("capture", [TOP, FULL], ids=["top-k", "full"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_runtime_keeps_the_same(
    models: dict[str, LLaDA2], rule: str, capture: Capture, temperature: float
) -> None:
    if rule == "llada2.2" and temperature:
        temperature = 0.0  # its rule is greedy
    settings = DecodeSettings(
        threshold=0.6, editing_threshold=0.3, max_post_steps=4, steps=8, temperature=temperature
    )
    model = models[rule]
    wanted = steps_of(eager_like_graph(model), capture, settings)
    assert all(step.top_p is not None for step in wanted)
    assert_equal(steps_of(graph_for(model), capture, settings), wanted)
    assert_equal(steps_of(graph_for(model, ahead=True), capture, settings), wanted, close=True)
    assert_equal(steps_of(per_step_for(model), capture, settings), wanted)
    assert_equal(steps_of(eager_for(model), capture, settings), wanted, close=True)


def test_the_kernels_path_keeps_the_same(models: dict[str, LLaDA2]) -> None:
    model = models["llada2.1"]
    wanted = steps_of(eager_like_graph(model), FULL, limit=7)
    assert_equal(steps_of(graph_for(model, one_launch=True), FULL, limit=7), wanted, close=True)
    ahead = steps_of(graph_for(model, one_launch=True, ahead=True), FULL, limit=7)
    assert_equal(ahead, wanted, close=True)


@pytest.mark.parametrize("rule", RULES)
def test_keeping_more_changes_nothing_else(models: dict[str, LLaDA2], rule: str) -> None:
    plain = steps_of(eager_for(models[rule]), Capture())
    assert all(step.top_ids is None and step.logits is None for step in plain)
    for capture in (TOP, FULL):
        for step, wanted in zip(steps_of(eager_for(models[rule]), capture), plain, strict=True):
            for name in ("ids", "state", "confidence", "entropy", "edited_from"):
                np.testing.assert_array_equal(getattr(step, name), getattr(wanted, name), name)


def test_candidates_are_what_the_logits_say(models: dict[str, LLaDA2]) -> None:
    seen = 0
    for step in steps_of(eager_for(models["llada2.0"]), FULL):
        assert step.logits is not None
        assert step.logit_positions is not None
        for position, logits in zip(step.logit_positions.tolist(), step.logits, strict=True):
            assert position in FULL.positions
            column = position - step.block_start
            assert logits[MASK] == -np.inf
            shares = torch.tensor(logits).softmax(-1)
            found = step.top_ids[column].tolist()
            assert found == shares.topk(16).indices.tolist()
            np.testing.assert_allclose(step.top_p[column], shares[found], rtol=1e-5, atol=1e-7)
            if step.state[column] == TokenState.DRAFT:
                assert step.ids[column] == found[0]
                np.testing.assert_allclose(step.confidence[column], shares[found[0]], rtol=1e-5)
            seen += 1
    assert seen > 3


def test_prompt_positions_are_not_judged(models: dict[str, LLaDA2]) -> None:
    first = steps_of(eager_for(models["llada2.0"]), TOP)[0]
    assert first.block_start == BLOCK
    assert first.top_ids.shape == (BLOCK, TOP.top_k)
    assert (first.top_ids[:2] == -1).all()
    assert np.isnan(first.top_p[:2]).all()
    assert (first.top_ids[2:] >= 0).all()
    assert (np.diff(first.top_p[2:], axis=1) <= 0).all()


def test_a_banned_token_is_no_candidate(models: dict[str, LLaDA2]) -> None:
    model = models["llada2.0"]
    free = steps_of(eager_for(model), TOP)[0]
    banned = int(free.top_ids[4, 0])
    steering = Steering(banned=[(BLOCK + 4, banned)])
    for runtime in (eager_for(model), graph_for(model, one_launch=True)):
        step = steps_of(runtime, TOP, steering=steering)[0]
        assert banned not in step.top_ids[4].tolist()
        assert step.top_ids[4, 0] == free.top_ids[4, 1]


def test_one_capture_serves_off_and_light_and_a_level_is_captured_once(
    models: dict[str, LLaDA2],
) -> None:
    runtime = graph_for(models["llada2.0"])
    # On a GPU the ring's kernel is always in the graph; here its reference stands in for it.
    runtime.pieces.ring.kernel = lambda ring, state, taken: _reference(ring, state, taken)
    reply(runtime, request(PROMPT, 12, LOOSE))
    count = runtime.captures
    for record in (True, False, True):
        reply(runtime, request(PROMPT, 12, LOOSE), record=record)
    assert runtime.captures == count
    steps_of(runtime, TOP)
    after = runtime.captures
    assert after > count
    for capture in (Capture("top-k", 3), Capture(), TOP):
        steps_of(runtime, capture)
    assert runtime.captures == after


def _reference(ring, state, taken) -> None:
    kernel, ring.kernel = ring.kernel, None
    ring.record(state, taken)
    ring.kernel = kernel


def test_a_slow_reader_of_candidates_is_told_what_it_missed(models: dict[str, LLaDA2]) -> None:
    model = models["llada2.0"]
    settings = DecodeSettings(threshold=1.0, steps=8)
    wanted = {(s.block, s.step): s for s in steps_of(graph_for(model), FULL, settings)}
    slow = graph_for(model, fetch_delay=0.03, slots=6)
    row = request(PROMPT, 20, settings, capture=FULL)
    marks = reply(slow, row)
    seen = [mark.step_taken for mark in marks if mark.step_taken is not None]
    assert sum(mark.dropped for mark in marks) > 0
    assert_equal(seen, [wanted[s.block, s.step] for s in seen])


@pytest.mark.parametrize("vocab", [64, 100, 5000])
def test_the_kernel_finds_what_the_reference_finds(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(3, vocab, generator=generator).mul(4).round()  # full of ties
    logits[1, : vocab // 3] = -0.0
    logits[2, -1] = float("-inf")
    norm = logits.logsumexp(-1)
    ids, shares = best_of(logits, norm, 16)
    kernel_ids, kernel_shares = BestOfRows()(logits, norm, 16)
    for row in range(3):
        by_hand = sorted(range(vocab), key=lambda n: (-float(logits[row, n]), n))[:16]
        assert ids[row].tolist() == by_hand
    assert torch.equal(ids, kernel_ids)
    torch.testing.assert_close(shares, kernel_shares)


def test_many_rows_are_searched_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 100, generator=torch.Generator().manual_seed(0))
    norm = logits.logsumexp(-1)
    ids, shares = best_of(logits, norm, 5)
    monkeypatch.setattr("engine.runtime.watch._TOGETHER", 250)
    parts = best_of(logits, norm, 5)
    assert torch.equal(parts[0], ids)
    assert torch.equal(parts[1], shares)


@pytest.mark.parametrize(
    "capture",
    [
        Capture("top-k", 0),
        Capture("top-k", 17),
        Capture("full", 4),
        Capture("full", 4, tuple(range(5))),
        Capture("full", 4, (-1,)),
        Capture("full", 4, (2**40,)),
    ],
)
def test_more_than_a_step_can_keep_is_refused_in_words(capture: Capture) -> None:
    with pytest.raises(RequestError) as caught:
        check_capture(capture, 64)
    assert caught.value.code == "request.capture"
    assert caught.value.action
