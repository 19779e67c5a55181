"""The graph runtimes against the eager one, on a stand-in for CUDA graphs that runs on the CPU."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from host_graph import HostBackend
from small import (
    BLOCK,
    MASK,
    STOP,
    Runtime,
    eager_for,
    eager_like_graph,
    graph_for,
    outcome,
    per_step_for,
    reply,
    request,
    small_model,
)

from engine.decoding.steering import EVERYWHERE, Steering
from engine.errors import RuntimeFailure
from engine.models.llada2 import LLaDA2
from engine.runtime import pieces
from engine.runtime.conditional import Mailbox
from engine.runtime.graph import GraphRuntime, PerStepGraphRuntime
from engine.runtime.pieces import Variant, plan_prefill
from engine.runtime.reply import Control
from engine.runtime.rows import Row, StepMark
from engine.types import DecodeSettings, TokenState

RULES = ("llada2.0", "llada2.1", "llada2.2")
STEPS = DecodeSettings(threshold=1.0, steps=8)


@pytest.fixture(scope="module")
def models() -> dict[str, LLaDA2]:
    return {rule: small_model(rule) for rule in RULES}


@pytest.fixture(scope="module")
def model(models: dict[str, LLaDA2]) -> LLaDA2:
    return models["llada2.0"]


def random_request(rng: random.Random, rule: str) -> tuple[list[int], int, DecodeSettings]:
    temperature = 0.0 if rule == "llada2.2" else rng.choice([0.0, 0.0, 0.7, 1.3])
    settings = DecodeSettings(
        threshold=rng.choice([0.2, 0.5, 0.9, 1.0]),
        editing_threshold=rng.choice([None, 0.0, 0.4, 0.9]),
        max_post_steps=rng.choice([0, 1, 6]),
        min_transfer=rng.choice([1, 3]),
        steps=rng.choice([2, 5, 8]),
        temperature=temperature,
        top_k=rng.choice([0, 0, 4]),
        top_p=rng.choice([1.0, 1.0, 0.7]),
        seed=rng.randrange(2**62),
    )
    prompt = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 60))]
    return prompt, rng.randrange(1, 30), settings


def facts(mark: StepMark) -> tuple:
    """A mark without its time."""
    step = mark.step_taken
    assert step is not None
    arrays = (step.ids, step.state, step.edited_from)
    return (
        mark.block_done,
        (step.block, step.step, step.block_start, step.forwards),
        *(array.tolist() for array in arrays),
        # NaN marks what was not judged.
        torch.from_numpy(step.confidence).nan_to_num(-1).tolist(),
        torch.from_numpy(step.entropy).nan_to_num(-1).tolist(),
    )


@pytest.mark.parametrize(("rule", "count"), [("llada2.0", 50), ("llada2.1", 25), ("llada2.2", 25)])
def test_requests_of_all_kinds_go_through_one_capture(
    models: dict[str, LLaDA2], rule: str, count: int
) -> None:
    """Same ids, same steps and same figures as eager; nothing captured again once every kind of
    request has been seen."""
    makers = (eager_like_graph, graph_for, per_step_for)
    eager, graph, steps = (make(models[rule]) for make in makers)
    rng = random.Random(7)
    captures: list[int] = []
    for _ in range(count):
        prompt, limit, settings = random_request(rng, rule)
        wanted, one, other = (request(prompt, limit, settings) for _ in range(3))
        marks = reply(eager, wanted)
        assert [facts(mark) for mark in reply(graph, one)] == [facts(mark) for mark in marks]
        assert outcome(one) == outcome(wanted)
        reply(steps, other, record=False)
        assert outcome(other) == outcome(wanted)
        captures.append(graph.captures)
    variants = 1 if rule == "llada2.2" else 3  # greedy; sampled; sampled and filtered
    prefills = 2
    assert captures[-1] == 2 + 2 * variants + prefills
    assert captures[-1] == captures[count // 2]
    backend = graph.backend
    assert isinstance(backend, HostBackend)
    assert backend.launches == count
    assert len(backend.calls.instantiated) == variants


def test_no_setting_is_frozen_by_the_capture(model: LLaDA2) -> None:
    """Every setting changed alone, through a runtime that captured with other values, against a
    fresh one."""
    base = DecodeSettings(threshold=0.6, steps=4, temperature=1.0, top_k=6, top_p=0.9, seed=1)
    runtime = graph_for(model)
    reply(runtime, request([5, 6], 24, base))
    for name, value in (
        ("threshold", 0.2),
        ("steps", 8),
        ("temperature", 0.3),
        ("top_k", 2),
        ("top_p", 0.3),
        ("seed", 2),
    ):
        settings = DecodeSettings(**{**base.__dict__, name: value})
        first, changed = request([5, 6], 24, base), request([5, 6], 24, settings)
        fresh = request([5, 6], 24, settings)
        first_marks, marks = reply(runtime, first), reply(runtime, changed)
        assert [facts(mark) for mark in marks] == [facts(m) for m in reply(graph_for(model), fresh)]
        assert [facts(mark) for mark in marks] != [facts(mark) for mark in first_marks], name
    assert runtime.captures == graph_captures_of_one_variant()


def graph_captures_of_one_variant() -> int:
    return len(("begin", "first", "step", "end"))


def test_prompt_length_limit_and_stop_tokens_are_not_frozen(model: LLaDA2) -> None:
    runtime = graph_for(model)
    reply(runtime, request([5, 6], 24, STEPS))
    for prompt, limit in (([9] * 30, 3), ([4], 40), ([7] * 17, 17)):
        row, wanted = request(prompt, limit, STEPS), request(prompt, limit, STEPS)
        reply(runtime, row)
        reply(eager_for(model), wanted)
        assert outcome(row) == outcome(wanted)
    long = request([5, 6], 40, STEPS)
    reply(runtime, long)
    first = next(token for token in long.ids[9:] if token != STOP)
    cut = Row([5, 6], 40, STEPS, BLOCK, frozenset([first]))
    reply(runtime, cut)
    assert cut.reason == "stop_token"
    assert cut.ids == long.ids[: long.ids.index(first) + 1]


def test_capturing_another_kind_of_step_leaves_a_prefilled_prompt_as_it_was(
    model: LLaDA2,
) -> None:
    """The first sampled request comes when a greedy one has been prefilled: its warm-up must not
    touch the cache."""
    greedy = DecodeSettings(threshold=0.6, steps=4)
    sampled = DecodeSettings(threshold=0.6, steps=4, temperature=1.0, seed=3)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 4 + [7]
    for make in (graph_for, per_step_for):
        runtime = make(model)
        runtime.prefill([request(prompt, 20, greedy)])
        row, wanted = request(prompt, 20, sampled), request(prompt, 20, sampled)
        list(runtime.run([row]))
        reply(eager_for(model), wanted)
        assert outcome(row) == outcome(wanted)


@pytest.mark.parametrize("make", [graph_for, per_step_for])
def test_stop_ends_a_reply_within_one_step(
    model: LLaDA2, make: Callable[[LLaDA2], Runtime]
) -> None:
    runtime: Runtime = make(model)
    row, stop = request([5], 80, STEPS), threading.Event()
    runtime.prefill([row])
    seen = 0
    for mark in runtime.run([row], stop):
        seen += stop.is_set() and mark.step_taken is not None
        if mark.step_taken is not None and mark.step_taken.forwards == 3:
            stop.set()
            time.sleep(0.05)  # a slow window: the reader passes the stop on all the same
    assert row.reason == "stopped"
    assert MASK not in row.ids
    assert row.forwards < 80
    whole = request([5], 80, STEPS)
    reply(runtime, whole)
    assert whole.reason in ("length", "stop_token")
    assert whole.ids[: len(row.ids)] == row.ids


def test_stop_is_heard_while_nobody_takes_the_steps(model: LLaDA2) -> None:
    runtime, stop = graph_for(model), threading.Event()
    row = request([5], 80, STEPS)
    runtime.prefill([row], stop)
    marks = runtime.run([row], stop)
    next(marks)
    stop.set()
    time.sleep(0.3)
    assert int(runtime.pieces.reply.word(Control.STOP)) == 1
    assert row.reason is None
    list(marks)
    assert row.reason == "stopped"


def test_a_stop_that_comes_between_two_blocks_is_a_stop(
    model: LLaDA2, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, stop = graph_for(model), threading.Event()
    backend = runtime.backend
    assert isinstance(backend, HostBackend)
    publish = backend._publish_block

    def and_stop() -> None:
        publish()
        stop.set()
        backend.mailbox[Mailbox.STOP] = 1

    monkeypatch.setattr(backend, "_publish_block", and_stop)
    row = request([5], 80, STEPS)
    reply_marks = list(run_with(runtime, row, stop))
    assert (row.reason, row.blocks) == ("stopped", 1)
    assert row.ids
    assert reply_marks[-1].block_done


def run_with(runtime: GraphRuntime, row: Row, stop: threading.Event) -> list[StepMark]:
    runtime.prefill([row], stop)
    return list(runtime.run([row], stop))


def test_leaving_a_reply_early_ends_it_on_the_device(model: LLaDA2) -> None:
    runtime = graph_for(model)
    row = request([5], 80, STEPS)
    runtime.prefill([row])
    marks = runtime.run([row])
    next(marks)
    marks.close()
    threads = [thread.name for thread in threading.enumerate()]
    assert "reply-reader" not in threads
    again, wanted = request([5, 9], 30, STEPS), request([5, 9], 30, STEPS)
    reply(runtime, again)
    reply(eager_for(model), wanted)
    assert outcome(again) == outcome(wanted)


@pytest.mark.parametrize("make", [eager_for, graph_for, per_step_for])
def test_logits_that_are_not_finite_end_the_reply_and_the_next_one_is_clean(
    make: Callable[[LLaDA2], Runtime],
) -> None:
    model = small_model()
    runtime: Runtime = make(model)
    first = request([5], 30, STEPS)
    reply(runtime, first)
    kept = model.norm.weight.clone()
    bad = request([5], 30, STEPS)
    runtime.prefill([bad])

    def run_and_damage() -> None:
        for mark in runtime.run([bad]):
            if mark.block_done:
                model.norm.weight.fill_(float("nan"))

    with pytest.raises(RuntimeFailure) as caught:
        run_and_damage()
    assert caught.value.code == "runtime.nonfinite"
    assert len(bad.ids) == BLOCK - 1 or bad.ids == first.ids[: len(bad.ids)]
    model.norm.weight.copy_(kept)
    cache = runtime.pieces.program.cache
    assert not cache.keys.any()
    assert not cache.values.any()
    again = request([5], 30, STEPS)
    reply(runtime, again)
    assert outcome(again) == outcome(first)


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_a_batch_give_the_ids_they_give_alone(models: dict[str, LLaDA2], rule: str) -> None:
    rng = random.Random(11)
    together, alone = graph_for(models[rule], batch=4), eager_for(models[rule])
    for _ in range(4):
        cases = [random_request(rng, rule) for _ in range(4)]
        rows = [request(*case) for case in cases]
        reply(together, *rows, record=False)
        for row, case in zip(rows, cases, strict=True):
            single = request(*case)
            reply(alone, single)
            assert (row.ids, row.reason, row.blocks) == (
                single.ids,
                single.reason,
                single.blocks,
            )
            assert row.forwards == single.forwards


def test_rows_that_only_fill_up_a_batch_stay_empty(model: LLaDA2) -> None:
    runtime = graph_for(model, batch=3)
    row = request([5, 6], 20, STEPS)
    spare = [request([1], 1, STEPS, reason="stopped") for _ in range(2)]
    reply(runtime, row, *spare, record=False)
    wanted = request([5, 6], 20, STEPS)
    reply(eager_for(model), wanted)
    assert outcome(row) == outcome(wanted)
    assert all(extra.ids == [] and extra.forwards == 0 for extra in spare)


@pytest.mark.parametrize("rule", RULES)
def test_commits_that_share_a_forward_change_no_token(models: dict[str, LLaDA2], rule: str) -> None:
    """float32: the commit's own forward and the shared one write the same keys up to rounding."""
    rng = random.Random(3)
    shared, apart = graph_for(models[rule]), graph_for(models[rule], fused=False)
    saved = 0
    for _ in range(12):
        case = random_request(rng, rule)
        one, other = request(*case), request(*case)
        reply(shared, one)
        reply(apart, other)
        assert (one.ids, one.reason) == (other.ids, other.reason)
        assert one.commits == 0
        assert other.forwards == one.forwards + other.commits
        saved += other.commits
    assert saved > 0


def test_the_last_block_is_never_committed_and_a_settled_one_needs_no_commit(
    models: dict[str, LLaDA2],
) -> None:
    quota = request([5], 3 * BLOCK - 1, DecodeSettings(threshold=1.0, steps=2))
    reply(graph_for(models["llada2.0"], fused=False), quota)
    assert quota.commits == quota.blocks - 1
    editing = DecodeSettings(threshold=0.9, editing_threshold=0.99, max_post_steps=16)
    settled = request([5], 3 * BLOCK - 1, editing)
    reply(graph_for(models["llada2.1"], fused=False), settled)
    assert settled.converged
    assert settled.commits == 0


@pytest.mark.parametrize("make", [eager_for, graph_for, per_step_for])
def test_a_person_can_force_forbid_and_take_back_tokens(
    model: LLaDA2, make: Callable[[LLaDA2], Runtime]
) -> None:
    runtime: Runtime = make(model)
    prompt = [5, 6, 7]
    free = request(prompt, 20, STEPS)
    reply(runtime, free)

    forced = request(prompt, 20, STEPS, steering=Steering(forced={4: 33, 12: 34}))
    reply(runtime, forced)
    assert (forced.ids[1], forced.ids[9]) == (33, 34)

    banned = Steering(banned=[(EVERYWHERE, free.ids[0]), (5, free.ids[2])])
    without = request(prompt, 20, STEPS, steering=banned)
    reply(runtime, without)
    assert free.ids[0] not in without.ids
    assert without.ids[2] != free.ids[2]

    plain = request(prompt, 5, STEPS)
    first = reply(runtime, plain)[0].step_taken
    assert first is not None
    filled = int((first.state == TokenState.COMMITTED).argmax())
    back = request(prompt, 5, STEPS, steering=Steering(remasked={filled: 2}))
    reply(runtime, back)
    assert (plain.forwards, back.forwards) == (5, 6)
    assert MASK not in back.ids

    again = request(prompt, 20, STEPS)
    reply(runtime, again)
    assert outcome(again) == outcome(free)


def test_steered_replies_are_the_same_on_every_runtime(models: dict[str, LLaDA2]) -> None:
    steering = Steering(
        forced={9: 11}, banned=[(EVERYWHERE, 3), (10, 4), (12, 0)], remasked={6: 2, 11: 1, 12: 3}
    )
    settings = DecodeSettings(threshold=0.7, editing_threshold=0.5, steps=6)
    for rule in ("llada2.0", "llada2.1"):
        rows = []
        for make in (eager_like_graph, graph_for, per_step_for):
            row = request([5, 6, 7], 20, settings, steering=steering)
            marks = reply(make(models[rule]), row)
            rows.append((outcome(row), [facts(mark) for mark in marks]))
        assert rows[0] == rows[1] == rows[2]


def test_closing_gives_every_graph_back(model: LLaDA2) -> None:
    runtime = graph_for(model)
    reply(runtime, request([5], 9, STEPS))
    reply(runtime, request([5], 9, DecodeSettings(temperature=1.0)))
    backend = runtime.backend
    assert isinstance(backend, HostBackend)
    runtime.close()
    assert backend.calls.destroyed == len(backend.calls.instantiated) == 2
    assert backend.captured == []


@pytest.mark.parametrize("limit", [5, BLOCK - 1])
def test_a_loop_that_would_not_end_is_ended_by_its_limit(
    model: LLaDA2, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = graph_for(model)
    row = request([5], 80, STEPS)
    runtime.prefill([row])
    load = runtime.pieces.load

    def load_with_limit(rows: Sequence[Row], record: bool) -> Variant:
        variant = load(rows, record)
        runtime.pieces.reply.word(Control.LIMIT).fill_(limit)
        return variant

    monkeypatch.setattr(runtime.pieces, "load", load_with_limit)
    if limit == 5:  # in the middle of a block, which is then left with masks
        list(runtime.run([row]))
        assert row.reason == "did_not_converge"
    else:
        with pytest.raises(RuntimeFailure) as caught:
            list(runtime.run([row]))
        assert caught.value.code == "runtime.step_limit"
        assert len(row.ids) == BLOCK - 1


def test_a_large_batch_is_prefilled_block_by_block(
    model: LLaDA2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "CHUNK_TOKENS", 2 * 8 * BLOCK)
    prompt = [5, 6, 7] * 12
    taken: list[int] = []
    ids: list[tuple[int, ...]] = []
    for batch in (2, 3):
        runtime = graph_for(model, batch=batch)
        rows = [request(prompt, 9, STEPS) for _ in range(batch)]
        taken.append(runtime.prefill(rows))
        for _ in runtime.run(rows):
            pass
        ids += [tuple(row.ids) for row in rows]
    assert taken == [1, len(prompt) // BLOCK]
    assert len(set(ids)) == 1


@pytest.mark.parametrize(
    ("blocks", "capacity", "plan"),
    [
        (0, 100, []),
        (1, 100, [1]),
        (2, 100, [1, 1]),
        (3, 100, [8]),
        (8, 100, [8]),
        (9, 100, [8, 1]),
        (21, 100, [8, 8, 8]),
        (21, 23, [8, 8, *[1] * 5]),
        (4, 4, [1, 1, 1, 1]),
    ],
)
def test_prefill_is_planned_in_captured_chunks(blocks: int, capacity: int, plan: list[int]) -> None:
    assert plan_prefill(blocks, capacity, (8, 1)) == plan
    assert blocks <= sum(plan) <= capacity


def test_prefill_counts_its_forwards_and_hears_a_stop(model: LLaDA2) -> None:
    runtimes: list[GraphRuntime | PerStepGraphRuntime] = [graph_for(model), per_step_for(model)]
    stop = threading.Event()
    stop.set()
    for runtime in runtimes:
        assert runtime.prefill([request([3] * 80, 9, STEPS)]) == 3  # 8 blocks, 1, 1
        assert runtime.prefill([request([3] * 80, 9, STEPS)], stop) == 0
        assert runtime.prefill([request([3] * 7, 9, STEPS)]) == 0
