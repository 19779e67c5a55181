"""Fast-dLLM v2, Dream, LLaDA-8B, BD3LM and MDLM against plain loops without a cache, and each as
one graph per reply against eager."""

from __future__ import annotations

import random

import pytest
import slow_references
import torch
from dense_models import (
    FAMILIES,
    MASK,
    STOP,
    canvases,
    dense_model,
    eager,
    eager_like_graph,
    graph,
    outcome,
    reply,
    request,
)

from engine.decoding.rules import RuleOptions
from engine.runtime.pieces import usable_chunks
from engine.types import DecodeSettings

WHOLE_BLOCKS = RuleOptions(stop_inside_block=False)
NEVER = -2  # no token has this id


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(0, 60) for _ in range(length)]


@pytest.mark.parametrize(("length", "threshold"), [(5, 0.9), (16, 0.5), (21, 0.3), (32, 1.0)])
def test_fast_dllm_takes_the_references_steps(length: int, threshold: float) -> None:
    model, prompt = dense_model("fast_dllm"), prompt_of(length)
    limit = 48 - length % 16
    wanted, steps = slow_references.fast_dllm(model, prompt, limit, threshold)
    runtime = eager(model, options=WHOLE_BLOCKS)
    row = request(runtime, prompt, limit, DecodeSettings(threshold=threshold), NEVER)
    marks = reply(runtime, row)
    assert canvases(marks) == steps
    assert row.ids == wanted
    # A block's clean forward is its own: it says the next block's first token.
    assert (row.forwards, row.commits) == (len(steps) + row.blocks - 1, row.blocks - 1)


@pytest.mark.parametrize("family", ["llada", "mdlm"])
@pytest.mark.parametrize(("length", "limit", "steps"), [(5, 24, 8), (12, 20, 3), (1, 9, 8)])
def test_windows_are_filled_as_the_reference_fills_them(
    family: str, length: int, limit: int, steps: int
) -> None:
    model, prompt = dense_model(family), prompt_of(length)
    wanted, taken = slow_references.windows(model, prompt, limit, 8, steps)
    runtime = eager(model, capacity=64, options=WHOLE_BLOCKS)
    row = request(runtime, prompt, limit, DecodeSettings(threshold=1.0, steps=steps), NEVER)
    marks = reply(runtime, row)
    assert [canvas[: length + limit] for canvas in canvases(marks)] == taken
    assert (row.ids, row.reason, row.commits) == (wanted, "length", 0)


def test_a_threshold_fills_a_window_in_fewer_steps() -> None:
    model, forwards = dense_model("llada"), []
    for threshold in (1.0, 0.2):
        runtime = eager(model, capacity=64, options=WHOLE_BLOCKS)
        row = request(runtime, prompt_of(6), 32, DecodeSettings(threshold, steps=8), NEVER)
        reply(runtime, row)
        assert MASK not in row.ids
        forwards.append(row.forwards)
    assert forwards[0] == 32
    assert forwards[1] < 24


@pytest.mark.parametrize("steps", [8, 3])
def test_bd3lm_gives_the_references_ids(steps: int) -> None:
    model, prompt = dense_model("bd3lm"), prompt_of(16)
    runtime = eager(model, options=WHOLE_BLOCKS)
    row = request(runtime, prompt, 24, DecodeSettings(threshold=1.0, steps=steps), NEVER)
    reply(runtime, row)
    assert row.ids == slow_references.blocks(model, prompt, 24, steps)


@pytest.mark.parametrize("measure", ["maskgit_plus", "topk_margin", "entropy"])
@pytest.mark.parametrize(("length", "limit", "steps"), [(7, 30, 10), (3, 17, 17)])
def test_dream_takes_the_references_steps(
    measure: str, length: int, limit: int, steps: int
) -> None:
    model, prompt = dense_model("dream", generation={"alg": measure}), prompt_of(length)
    wanted, taken = slow_references.dream(model, prompt, limit, steps, measure)
    runtime = eager(model, capacity=64, options=WHOLE_BLOCKS)
    row = request(runtime, prompt, limit, DecodeSettings(steps=steps), NEVER)
    marks = reply(runtime, row)
    assert [canvas[: length + limit] for canvas in canvases(marks)] == taken
    assert row.ids == wanted


def test_dreams_measures_differ_and_lots_follow_the_schedule() -> None:
    model, found = dense_model("dream", generation={"alg": "origin"}), []
    for seed in (1, 2, 1):
        runtime = eager(model, capacity=64, options=WHOLE_BLOCKS)
        row = request(runtime, prompt_of(4), 60, DecodeSettings(steps=6, seed=seed), NEVER)
        open_ = [sum(t == MASK for t in canvas) for canvas in canvases(reply(runtime, row))]
        assert len(open_) == 6
        assert open_[-1] == 0
        # A share 1/6 of 60 a step, by lot: within four standard deviations.
        assert all(abs(count - (50 - 10 * step)) < 17 for step, count in enumerate(open_))
        found.append((open_, row.ids))
    assert found[0] == found[2] != found[1]


def test_more_steps_than_masks_cost_no_forwards() -> None:
    model = dense_model("dream")
    runtime = eager(model, capacity=64, options=WHOLE_BLOCKS)
    row = request(runtime, prompt_of(4), 12, DecodeSettings(steps=512), NEVER)
    reply(runtime, row)
    assert row.forwards == 12


@pytest.mark.parametrize("family", ["dream", "llada", "mdlm"])
def test_nothing_behind_the_end_of_a_canvas_changes_the_answer(family: str) -> None:
    model, found = dense_model(family), []
    for capacity in (40, 64, 128):
        runtime = eager(model, capacity=capacity, options=WHOLE_BLOCKS)
        row = request(runtime, prompt_of(9), 31, DecodeSettings(threshold=0.9, steps=8), NEVER)
        reply(runtime, row)
        found.append((row.ids, row.forwards))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_graph_per_reply_takes_the_same_steps_as_eager(family: str) -> None:
    """Several requests of all kinds through one capture."""
    model, rng = dense_model(family), random.Random(3)
    whole = model.spec.whole_sequence
    runtimes = eager_like_graph(model, capacity=64), graph(model, capacity=64)
    captures, chunks = [], len(usable_chunks(runtimes[1].pieces))
    assert chunks == (0 if whole else 1 if family == "fast_dllm" else 2)
    for _ in range(8):
        settings = DecodeSettings(
            threshold=rng.choice([0.3, 0.9, 1.0]),
            steps=rng.choice([2, 4, 8]),
            temperature=rng.choice([0.0, 0.9]),
            seed=rng.randrange(2**40),
        )
        prompt, limit = prompt_of(rng.randrange(1, 36), rng.randrange(99)), rng.randrange(1, 25)
        rows = [request(runtime, prompt, limit, settings) for runtime in runtimes]
        seen = [reply(runtime, row) for runtime, row in zip(runtimes, rows, strict=True)]
        assert outcome(rows[0]) == outcome(rows[1])
        assert canvases(seen[0]) == canvases(seen[1])
        captures.append(runtimes[1].captures)
    assert captures[-1] == captures[5] == 2 + 2 * 2 + chunks


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_give_the_ids_they_give_alone(family: str) -> None:
    model = dense_model(family)
    asked = [(prompt_of(n, n), limit) for n, limit in ((3, 20), (16, 9), (25, 30))]
    settings = DecodeSettings(threshold=0.7, steps=4)
    together = eager(model, batch=3, capacity=64)
    rows = [request(together, prompt, limit, settings) for prompt, limit in asked]
    reply(together, *rows)
    for (prompt, limit), row in zip(asked, rows, strict=True):
        alone = eager(model, capacity=64)
        one = request(alone, prompt, limit, settings)
        reply(alone, one)
        assert (row.ids, row.reason, row.forwards) == (one.ids, one.reason, one.forwards)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stop_token_ends_the_reply(family: str) -> None:
    model, prompt = dense_model(family), prompt_of(6)
    settings = DecodeSettings(threshold=0.9, steps=8)
    runtime = eager(model, capacity=64)
    whole = request(runtime, prompt, 40, settings, NEVER)
    reply(runtime, whole)
    stop = whole.ids[20]
    runtime = eager(model, capacity=64)
    row = request(runtime, prompt, 40, settings, stop)
    reply(runtime, row)
    assert row.reason == "stop_token"
    assert row.ids[-1] == stop
    assert stop not in row.ids[:-1]
    assert STOP != MASK


def test_kept_keys_equal_those_of_a_fresh_forward_over_the_final_tokens() -> None:
    for family in ("sdar", "fast_dllm"):
        model, prompt = dense_model(family), prompt_of(10)
        runtime, block = eager(model, options=WHOLE_BLOCKS), model.spec.block_length
        row = request(runtime, prompt, 40, DecodeSettings(threshold=0.6, steps=4), NEVER)
        reply(runtime, row)
        final = [*prompt, *row.ids]
        settled = (len(final) - 1) // block * block
        fresh = eager(model, options=WHOLE_BLOCKS)
        fresh.prefill([request(fresh, final[:settled], 8, row.settings, NEVER)])
        kept, new = (r.pieces.program.cache.keys[:, :, :, :settled] for r in (runtime, fresh))
        torch.testing.assert_close(kept, new, atol=1e-4, rtol=0)
