"""The last look at a block and the next block's first step in one forward: no token changes, fewer
forwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch
from small import (
    BLOCK,
    MASK,
    STOP,
    Runtime,
    eager_for,
    eager_like_graph,
    graph_for,
    per_step_for,
    reply,
    request,
    small_model,
)

from engine.decoding.steering import EVERYWHERE, Steering
from engine.errors import RuntimeFailure
from engine.models.llada2 import LLaDA2
from engine.runtime.rows import Row, StepMark
from engine.types import DecodeSettings

RULES = ("llada2.1", "llada2.2")
MAKERS = [eager_for, graph_for, per_step_for]
EDITING = DecodeSettings(threshold=0.7, editing_threshold=0.97, max_post_steps=16, steps=4)


@pytest.fixture(scope="module")
def models() -> dict[str, LLaDA2]:
    return {rule: small_model(rule) for rule in (*RULES, "llada2.0")}


def random_request(rng: random.Random, rule: str) -> tuple[list[int], int, DecodeSettings]:
    settings = DecodeSettings(
        threshold=rng.choice([0.2, 0.5, 0.9]),
        editing_threshold=rng.choice([None, 0.0, 0.9, 0.98]),
        max_post_steps=rng.choice([0, 1, 6]),
        min_transfer=rng.choice([1, 3]),
        steps=rng.choice([2, 5, 8]),
        temperature=0.0 if rule == "llada2.2" else rng.choice([0.0, 0.0, 0.8]),
        seed=rng.randrange(2**62),
    )
    prompt = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 30))]
    return prompt, rng.randrange(1, 50), settings


def text_of(row: Row) -> tuple:
    return row.ids, row.reason, row.blocks, row.converged


def steps_of(marks: list[StepMark]) -> list[tuple]:
    """What each step did, whichever forward it came from."""
    steps = []
    for mark in marks:
        step = mark.step_taken
        assert step is not None
        where = (mark.block_done, step.block, step.step, step.block_start)
        arrays = (step.ids, step.state, step.edited_from)
        steps.append((*where, *(array.tolist() for array in arrays)))
    return steps


@pytest.mark.parametrize("rule", RULES)
def test_no_token_and_no_step_changes_and_forwards_are_saved(
    models: dict[str, LLaDA2], rule: str
) -> None:
    plain = eager_for(models[rule])
    runtimes = [make(models[rule], ahead=True) for make in MAKERS]
    rng = random.Random(5)
    saved, blocks = 0, 0
    for _ in range(15):
        case = random_request(rng, rule)
        wanted = request(*case)
        wanted_steps = steps_of(reply(plain, wanted))
        forwards = set()
        for runtime in runtimes:
            row = request(*case)
            marks = reply(runtime, row)
            assert steps_of(marks) == wanted_steps
            assert text_of(row) == text_of(wanted)
            last = marks[-1].step_taken
            assert last is not None
            assert last.forwards == row.forwards
            forwards.add(row.forwards)
        assert len(forwards) == 1
        saved += wanted.forwards - forwards.pop()
        blocks += wanted.blocks
    assert 0.1 * blocks < saved <= blocks


def test_every_block_but_the_last_saves_a_forward_when_nothing_is_edited_at_its_end(
    models: dict[str, LLaDA2],
) -> None:
    settings = DecodeSettings(threshold=0.9, editing_threshold=0.999, max_post_steps=16)
    plain, ahead = request([5], 47, settings), request([5], 47, settings)
    reply(eager_for(models["llada2.1"]), plain)
    reply(graph_for(models["llada2.1"], ahead=True), ahead)
    assert plain.converged
    assert ahead.ids == plain.ids
    assert ahead.forwards == plain.forwards - (plain.blocks - 1)


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_a_batch_give_the_ids_they_give_alone(models: dict[str, LLaDA2], rule: str) -> None:
    rng = random.Random(11)
    together, alone = graph_for(models[rule], batch=3, ahead=True), eager_for(models[rule])
    for _ in range(5):
        cases = [random_request(rng, rule) for _ in range(3)]
        rows = [request(*case) for case in cases]
        reply(together, *rows, record=False)
        for row, case in zip(rows, cases, strict=True):
            single = request(*case)
            reply(alone, single)
            assert text_of(row) == text_of(single)
            assert row.forwards <= single.forwards


def test_a_rule_that_ends_a_block_without_a_last_look_takes_no_step_ahead(
    models: dict[str, LLaDA2],
) -> None:
    assert not graph_for(models["llada2.0"], ahead=True).pieces.ahead
    runtime = graph_for(models["llada2.1"], ahead=True)
    assert runtime.pieces.ahead
    off = DecodeSettings(threshold=0.7, editing_threshold=None)
    row, wanted = request([5], 40, off), request([5], 40, off)
    reply(runtime, row)
    reply(eager_for(models["llada2.1"]), wanted)
    assert (row.ids, row.forwards) == (wanted.ids, wanted.forwards)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("at", [0, 4, 9, 15, 21])
def test_stop_keeps_what_stands_wherever_it_comes(
    models: dict[str, LLaDA2], make: Callable[..., Runtime], at: int
) -> None:
    whole = request([5], 60, EDITING)
    count = len(reply(eager_like_graph(models["llada2.1"]), whole))
    runtime = make(models["llada2.1"], ahead=True)
    row, stop = request([5], 60, EDITING), threading.Event()
    runtime.prefill([row])
    for n, _ in enumerate(runtime.run([row], stop)):
        if n == at:
            stop.set()
    assert row.reason in ("stopped", whole.reason)
    assert MASK not in row.ids
    finished = max(0, row.blocks * BLOCK - 1)
    assert row.ids[:finished] == whole.ids[:finished]
    if at < count // 2 and make is not graph_for:  # the graph runs ahead of who takes its steps
        assert row.reason == "stopped"
    again = request([5], 60, EDITING)
    reply(runtime, again)
    assert text_of(again) == text_of(whole)


@pytest.mark.parametrize("make", MAKERS)
def test_bad_numbers_in_the_step_ahead_end_the_reply(make: Callable[..., Runtime]) -> None:
    """The next block alone goes wrong: this one is finished all the same."""
    model = small_model("llada2.1")
    whole = request([5], 40, EDITING)
    reply(eager_for(model), whole)
    runtime = make(model, ahead=True)
    program = runtime.pieces.program
    look = program.step_and_ahead

    def with_bad_numbers(*arguments, **options):
        said = look(*arguments, **options)
        said.finite.zero_()
        return said

    program.step_and_ahead = with_bad_numbers
    row = request([5], 40, EDITING)
    with pytest.raises(RuntimeFailure) as caught:
        reply(runtime, row)
    assert caught.value.code == "runtime.nonfinite"
    assert 1 <= row.blocks < whole.blocks
    assert row.ids == whole.ids[: len(row.ids)]


def test_forced_and_banned_tokens_hold_in_the_step_ahead(models: dict[str, LLaDA2]) -> None:
    steering = Steering(
        forced={9: 11, 17: 12},
        banned=[(EVERYWHERE, 3), *((position, STOP) for position in range(8, 24))],
        remasked={12: 2, 20: 1},
    )
    rows = []
    for make, ahead in ((eager_like_graph, False), *((make, True) for make in MAKERS)):
        row = request([5, 6, 7], 30, EDITING, steering=steering)
        runtime = make(models["llada2.1"], **({"ahead": True} if ahead else {}))
        rows.append((steps_of(reply(runtime, row)), text_of(row)))
        assert (row.ids[6], row.ids[14]) == (11, 12)
    assert all(other == rows[0] for other in rows)


def test_a_capture_leaves_every_buffer_as_it_was(models: dict[str, LLaDA2]) -> None:
    runtime = graph_for(models["llada2.1"], ahead=True)
    pieces = runtime.pieces
    rows = [request([5] * 20, 20, EDITING)]
    variant = pieces.load(rows, True)
    generator = torch.Generator().manual_seed(0)
    cache = pieces.program.cache
    for tensor in (cache.keys, cache.values, pieces.program.state.confidence):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    buffers = {**vars(pieces.program.state), **vars(pieces.reply), **vars(cache)}
    before = {n: t.clone() for n, t in buffers.items() if isinstance(t, torch.Tensor)}
    runtime.captured.of_reply(variant)
    for size in (1, 8):
        runtime.captured.prefill(size)
    for name, tensor in before.items():
        assert torch.equal(tensor, buffers[name]), name
