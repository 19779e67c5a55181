"""A fork is its parent up to a step, and what was asked for from there on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from small import Runtime, graph_for, per_step_for, small_model
from tiny import load
from traced_engines import FAMILIES, LLADA2, PROMPT, ask, engine_over, long_reply

from engine.engine import TorchEngine, load_engine
from engine.errors import RequestError, UnblurError
from engine.models.llada2_spec import Decoding
from engine.paths import demo_folder
from engine.trace import (
    EVERYWHERE,
    Change,
    Fork,
    Trace,
    TraceError,
    TraceParent,
    open_trace,
    record,
    record_fork,
    save_trace,
)
from engine.types import Capture, DecodeSettings, GenerateRequest, Message, TokenState

SETTLED = (TokenState.COMMITTED, TokenState.EDITED)
SAME = ("block", "step", "block_start", "forwards", "ids", "state", "confidence", "entropy")


@pytest.fixture(scope="module")
def engines() -> dict[str, TorchEngine]:
    return {name: engine_over(name) for name in FAMILIES}


@pytest.fixture(scope="module")
def demo() -> TorchEngine:
    return load_engine(demo_folder(), device="cpu")


def assert_same(found: Trace, wanted: Trace, rows: slice = slice(None)) -> None:
    for name in (*SAME, "edited_from"):
        a, b = getattr(found, name)[rows], getattr(wanted, name)[rows]
        np.testing.assert_array_equal(a, b, name)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_unchanged_fork_is_its_parent_to_the_last_bit(
    engines: dict[str, TorchEngine], name: str, temperature: float
) -> None:
    parent = long_reply(engines[name], temperature=temperature, seed=3)
    for step in {0, len(parent) // 2, len(parent) - 1}:
        fork = record_fork(engines[name], Fork(parent, step))
        assert_same(fork, parent)
        assert fork.header.text == parent.header.text
        assert fork.header.parent is not None
        assert fork.header.parent.trace_id == parent.header.trace_id
        assert fork.header.trace_id != parent.header.trace_id


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("rule", LLADA2)
def test_an_unchanged_fork_of_the_conformance_model_is_its_parent(
    tiny_folder: Path, rule: str, temperature: float
) -> None:
    model = load(tiny_folder)
    model.spec = replace(
        model.spec,
        decoding=cast(Decoding, rule),
        delete_token_id=498 if rule == "llada2.2" else None,
        split_token_id=499 if rule == "llada2.2" else None,
    )
    engine = engine_over(rule, model)
    parent = record(engine, ask(limit=40, temperature=temperature, seed=5, prompt="3 1 4 1 5 9"))
    assert len(parent) > 2
    assert_same(record_fork(engine, Fork(parent, len(parent) // 2)), parent)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_an_unchanged_fork_of_the_demo_is_its_parent(
    demo: TorchEngine, tmp_path: Path, temperature: float
) -> None:
    settings = replace(demo.info.defaults, temperature=temperature, seed=11)
    request = GenerateRequest((Message("user", "What is 17 times 24?"),), 40, settings)
    save_trace(record(demo, request), tmp_path / "demo.dntrace")
    parent = open_trace(tmp_path / "demo.dntrace")
    assert_same(record_fork(demo, Fork(parent, len(parent) // 2)), parent)


def middle(trace: Trace) -> int:
    """A step in the middle of a block that has at least three."""
    for row in range(len(trace)):
        if trace.step[row] == 1 and (trace.block == trace.block[row]).sum() >= 3:
            return row
    raise AssertionError("no block has three steps")


def draft_at(trace: Trace, row: int) -> int:
    """A column that is still open after a step."""
    return int(np.flatnonzero(trace.state[row] == TokenState.DRAFT)[-1])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forced_token_stands_there_from_its_step_on(
    engines: dict[str, TorchEngine], name: str
) -> None:
    parent = record(engines[name], ask(threshold=0.99))
    row = middle(parent)
    column = draft_at(parent, row - 1)
    position = int(parent.block_start[row]) + column
    token = (int(parent.ids[row, column]) + 7) % 50
    fork = record_fork(engines[name], Fork(parent, row, Change(force=((position, token),))))
    assert_same(fork, parent, slice(0, row))
    assert fork.ids[row, column] == token or name == "llada2.2"
    if name != "llada2.2":  # where tokens move within their block
        held = fork.steps_of(int(parent.block[row]))
        held = held[held >= row]
        assert (fork.ids[held, column] == token).all()
        assert np.isin(fork.state[held, column], SETTLED).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_token_can_be_forced_into_a_block_that_has_not_begun(
    engines: dict[str, TorchEngine], name: str
) -> None:
    parent = long_reply(engines[name], limit=30, editing_threshold=1.0)
    length = parent.ids.shape[1]
    start = int(parent.block_start[0]) + length
    if engines[name]._loaded().spec.whole_sequence:
        start = int(parent.block_start[0]) + length // 2
    change = Change(force=((start + 2, 33),))
    fork = record_fork(engines[name], Fork(parent, 0, change))
    block, column = (1, 2) if start >= length + int(parent.block_start[0]) else (0, length // 2 + 2)
    rows = fork.steps_of(block)
    assert rows.size
    assert 33 in fork.ids[rows[0]]
    if name != "llada2.2":
        assert (fork.ids[rows, column] == 33).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_banned_token_is_not_proposed_from_its_step_on(
    engines: dict[str, TorchEngine], name: str
) -> None:
    capture = Capture("top-k", 8)
    parent = record(engines[name], ask(threshold=0.99, capture=capture))
    row = middle(parent)
    column = draft_at(parent, row - 1)
    position = int(parent.block_start[row]) + column
    token = int(parent.top_ids[row, column, 0])
    change = Change(ban=((position, token),))
    fork = record_fork(engines[name], Fork(parent, row, change, capture))
    assert_same(fork, parent, slice(0, row))
    rows = fork.steps_of(int(parent.block[row]))
    rows = rows[rows >= row]
    assert token not in fork.top_ids[rows, column]
    assert fork.top_ids[row, column, 0] == parent.top_ids[row, column, 1]
    everywhere = Change(ban=((EVERYWHERE, token),))
    fork = record_fork(engines[name], Fork(parent, row, everywhere, capture))
    assert token in parent.top_ids[row:]
    assert token not in fork.top_ids[row:]


@pytest.mark.parametrize("name", ["llada2.0", "llada2.1", "llada2.2", "dream", "mdlm"])
def test_a_masked_token_is_decided_anew(engines: dict[str, TorchEngine], name: str) -> None:
    parent = record(engines[name], ask(threshold=0.99))
    row = middle(parent)
    settled = np.isin(parent.state[row - 1], SETTLED)
    column = int(np.flatnonzero(settled)[-1])
    position = int(parent.block_start[row]) + column
    stay = engines[name].info.defaults
    high = replace(parent.header.settings or stay, threshold=1.0)
    fork = record_fork(engines[name], Fork(parent, row, Change(mask=(position,), settings=high)))
    assert_same(fork, parent, slice(0, row))
    # What stands there now was judged in this step, as of a mask.
    assert fork.confidence[row, column] != parent.confidence[row, column]


@pytest.mark.parametrize("name", ["llada2.0", "llada2.1", "qwen_dlm", "diffusion_gemma"])
def test_settings_change_from_their_step_on(engines: dict[str, TorchEngine], name: str) -> None:
    parent = record(engines[name], ask(limit=30, threshold=0.99, steps=8))
    row = middle(parent)
    assert parent.header.settings is not None
    settings = replace(parent.header.settings, threshold=0.0, temperature=1.5, seed=5)
    fork = record_fork(engines[name], Fork(parent, row, Change(settings=settings)))
    assert_same(fork, parent, slice(0, row))
    assert not np.array_equal(fork.ids[row], parent.ids[row])
    if name == "llada2.0":
        assert (fork.state[row] != TokenState.DRAFT).all()


def test_a_chain_of_forks_keeps_every_change(engines: dict[str, TorchEngine]) -> None:
    engine = engines["llada2.0"]
    parent = record(engine, ask(limit=30, threshold=0.99))
    first = Fork(parent, 1, Change(force=((15, 40),)))
    child = record_fork(engine, first)
    later = int(np.flatnonzero(child.block == 1)[1])
    column = draft_at(child, later - 1)
    banned = int(child.ids[later, column])
    position = int(child.block_start[later]) + column
    grandchild = record_fork(engine, Fork(child, later, Change(ban=((position, banned),))))
    assert_same(grandchild, child, slice(0, later))
    assert 40 in grandchild.ids[grandchild.steps_of(0)[-1]]
    assert banned not in grandchild.ids[later:, column][grandchild.block[later:] == 1]
    assert [p.trace_id for p in grandchild.header.ancestry] == [
        parent.header.trace_id,
        child.header.trace_id,
    ]
    assert_same(record_fork(engine, Fork(grandchild, later)), grandchild)
    # A token forced by an ancestor can be taken back.
    freed = record_fork(engine, Fork(child, 3, Change(mask=(15,))))
    assert_same(freed, child, slice(0, 3))
    assert freed.confidence[3, 15 - 8] != child.confidence[3, 15 - 8]


def refusal(engine: TorchEngine, fork: Fork) -> TraceError:
    with pytest.raises(TraceError) as caught:
        record_fork(engine, fork)
    assert caught.value.message
    assert caught.value.action
    return caught.value


def test_what_cannot_be_changed_is_refused_in_words(engines: dict[str, TorchEngine]) -> None:
    engine = engines["llada2.0"]
    parent = record(engine, ask(limit=30, threshold=0.99))
    second = int(np.flatnonzero(parent.block == 1)[0])
    cases = {
        (0, Change(force=((3, 1),))): "prompt",
        (second, Change(force=((15, 1),))): "finished",
        (0, Change(force=((500, 1),))): "behind the reply",
        (0, Change(mask=(17,))): "not begun",
        (0, Change(force=((12, 64),))): "vocabulary",
        (0, Change(force=((12, 63),))): "mask",
        (0, Change(ban=((12, -1),))): "vocabulary",
        (0, Change(force=((12, 1),), mask=(12,))): "twice",
    }
    for (step, change), words in cases.items():
        error = refusal(engine, Fork(parent, step, change))
        assert error.code == "trace.fork_change"
        assert words in error.message
    assert refusal(engine, Fork(parent, len(parent))).code == "trace.fork_step"
    assert refusal(engine, Fork(parent, -1)).code == "trace.fork_step"
    with pytest.raises(RequestError):
        record_fork(engine, Fork(parent, 0, Change(settings=DecodeSettings(threshold=7))))
    bans = tuple((12, token) for token in range(40))
    with pytest.raises(RequestError) as caught:
        record_fork(engine, Fork(parent, 0, Change(ban=bans)))
    assert caught.value.code == "request.steering"


def test_a_trace_of_another_model_is_refused(engines: dict[str, TorchEngine]) -> None:
    parent = record(engines["llada2.0"], ask())
    assert refusal(engines["llada2.1"], Fork(parent, 0)).code == "trace.other_model"
    bare = replace(parent, header=replace(parent.header, settings=None))
    assert refusal(engines["llada2.0"], Fork(bare, 0)).code == "trace.not_repeatable"
    long = replace(parent, header=replace(parent.header, max_new_tokens=10**6))
    assert refusal(engines["llada2.0"], Fork(long, 0)).code == "trace.no_room"


@pytest.mark.parametrize(
    "change",
    [
        Change(force=((12, 64),)),
        Change(force=((10**9, 1),)),
        Change(mask=(10**9,)),
        Change(ban=((3, 1),)),
        Change(settings=DecodeSettings(steps=0)),
        Change(settings=DecodeSettings(temperature=1e30)),
    ],
)
def test_an_ancestor_that_never_was_is_refused(
    engines: dict[str, TorchEngine], change: Change
) -> None:
    """A file from anywhere may claim what it likes."""
    engine = engines["llada2.0"]
    parent = record(engine, ask(threshold=0.99))
    claimed = TraceParent("00", 0, 8, 1, change)
    odd = replace(parent, header=replace(parent.header, ancestry=(claimed,)))
    with pytest.raises(UnblurError) as caught:
        record_fork(engine, Fork(odd, 1))
    assert caught.value.code in ("trace.fork_change", "request.settings")
    with pytest.raises(UnblurError) as caught:
        engine.attribute(odd, 1, 12)
    assert caught.value.code in ("trace.fork_change", "request.settings")


def test_a_reply_of_other_blocks_is_refused(engines: dict[str, TorchEngine]) -> None:
    engine = engines["llada2.0"]
    parent = record(engine, ask(threshold=0.99))
    names = ("ids", "state", "confidence", "entropy", "edited_from")
    narrow = replace(parent, **{name: getattr(parent, name)[:, :4] for name in names})
    wide = replace(parent, **{name: np.tile(getattr(parent, name), 2) for name in names})
    for odd in (narrow, wide):
        assert refusal(engine, Fork(odd, 0)).code == "trace.other_model"
        with pytest.raises(TraceError):
            engine.attribute(odd, 0, 12)
    never = replace(parent, header=replace(parent.header, max_new_tokens=0))
    assert refusal(engine, Fork(never, 0)).code == "trace.not_repeatable"


def test_a_fork_of_a_stopped_reply_goes_on(engines: dict[str, TorchEngine]) -> None:
    engine = engines["llada2.0"]
    whole = record(engine, ask(threshold=0.99))
    stop, seen = threading.Event(), []

    def count(event: object) -> None:
        seen.append(event)
        if len(seen) == 5:
            stop.set()

    cut = record(engine, ask(threshold=0.99), stop, count)
    assert cut.header.reason == "stopped"
    assert len(cut) < len(whole)
    assert_same(record_fork(engine, Fork(cut, 1)), whole)


def test_a_parent_that_this_machine_does_not_reproduce_is_refused(
    engines: dict[str, TorchEngine],
) -> None:
    parent = record(engines["llada2.0"], ask(threshold=0.99))
    ids = parent.ids.copy()
    ids[1, 4] = (ids[1, 4] + 1) % 50
    other = replace(parent, ids=ids)
    error = refusal(engines["llada2.0"], Fork(other, 3))
    assert error.code == "trace.fork_differs"
    assert "step 1" in error.message
    assert_same(record_fork(engines["llada2.0"], Fork(other, 1)), parent)


def test_the_first_token_of_a_foreseen_block_is_not_offered(
    engines: dict[str, TorchEngine],
) -> None:
    engine = engines["fast_dllm"]
    parent = record(engine, ask(limit=30))
    row = int(np.flatnonzero(parent.block == 1)[0])
    first = int(parent.block_start[row])
    for change in (Change(mask=(first,)), Change(ban=((first, 1),))):
        assert refusal(engine, Fork(parent, row, change)).code == "trace.fork_change"
    fork = record_fork(engine, Fork(parent, row, Change(force=((first, 33),))))
    assert (fork.ids[fork.steps_of(1), 0] == 33).all()


def test_a_reply_without_a_recorded_step_is_no_trace(engines: dict[str, TorchEngine]) -> None:
    with pytest.raises(TraceError) as caught:
        record(engines["llada2.0"], ask(capture=Capture("off")))
    assert caught.value.code == "trace.empty"


@pytest.mark.parametrize("name", LLADA2)
def test_every_id_of_a_trace_has_its_text(engines: dict[str, TorchEngine], name: str) -> None:
    trace = record(engines[name], ask(capture=Capture("top-k", 4)))
    assert trace.top_ids is not None
    ids = {int(i) for i in np.concatenate([trace.ids.ravel(), trace.top_ids.ravel()]) if i >= 0}
    assert ids <= set(trace.header.pieces)
    assert all(text == f"{token} " for token, text in trace.header.pieces.items())
    assert trace.header.prompt_ids == tuple(int(word) for word in PROMPT.split())


@pytest.mark.parametrize("captured", [graph_for, per_step_for], ids=["reply", "step"])
@pytest.mark.parametrize("name", LLADA2)
def test_a_graph_forks_as_the_eager_loop_does(
    engines: dict[str, TorchEngine], name: str, captured: Callable[..., Runtime]
) -> None:
    """Where the device takes a whole reply in one launch, changes wait for it in its memory."""
    engine, eager = engine_over(name), engines[name]
    engine._runtime = captured(small_model(name), ahead=True)
    request = ask(limit=30, threshold=0.99)
    parent, plain = record(engine, request), record(eager, request)
    np.testing.assert_array_equal(parent.ids, plain.ids)
    assert_same(record_fork(engine, Fork(parent, 2)), parent)
    row = middle(parent)
    open_, other = np.flatnonzero(parent.state[row - 1] == TokenState.DRAFT)[-2:].tolist()
    settled = int(np.flatnonzero(np.isin(parent.state[row - 1], SETTLED))[0])
    start = int(parent.block_start[row])
    change = Change(
        force=((start + open_, 21), (start + 8, 22)),
        ban=((start + other, int(parent.ids[row, other])),),
        mask=(start + settled,),
        settings=DecodeSettings(threshold=0.3, temperature=0.0 if name == "llada2.2" else 0.8),
    )
    fork = record_fork(engine, Fork(parent, row, change))
    wanted = record_fork(eager, Fork(plain, row, change))
    for field in ("block", "step", "block_start", "ids", "state", "edited_from"):
        np.testing.assert_array_equal(getattr(fork, field), getattr(wanted, field), field)
    assert not np.array_equal(fork.ids[row], parent.ids[row])


def test_the_kernels_path_forks_as_the_eager_loop_does(engines: dict[str, TorchEngine]) -> None:
    engine = engine_over("llada2.1")
    engine._runtime = graph_for(small_model("llada2.1"), ahead=True, one_launch=True)
    parent = record(engine, ask(limit=12, threshold=0.99))
    row = middle(parent)
    start, column = int(parent.block_start[row]), draft_at(parent, row - 1)
    banned = int(parent.ids[row, column - 1])
    change = Change(
        force=((start + column, 21), (start + 8, 22)),
        ban=((start + column - 1, banned), (EVERYWHERE, 5)),
        settings=DecodeSettings(threshold=0.4, temperature=0.7, editing_threshold=0.5),
    )
    fork = record_fork(engine, Fork(parent, row, change))
    wanted = record_fork(engines["llada2.1"], Fork(parent, row, change))
    for field in ("ids", "state", "edited_from"):
        np.testing.assert_array_equal(getattr(fork, field), getattr(wanted, field), field)
    assert fork.ids[row, column - 1] != banned
    # Until then not a bit is otherwise: a person's hand changes no kernel.
    assert_same(fork, parent, slice(0, row))
    assert_same(record_fork(engine, Fork(parent, row)), parent)


@pytest.mark.parametrize("one_launch", [False, True])
def test_what_is_put_first_in_a_block_is_there_in_a_step_taken_ahead(one_launch: bool) -> None:
    """The next block's first step may be taken with this one's last: it must already see it."""
    engine, eager = engine_over("llada2.1"), engine_over("llada2.1")
    engine._runtime = graph_for(small_model("llada2.1"), ahead=True, one_launch=one_launch)
    prompt = " ".join(str((3 * n) % 50 + 1) for n in range(1, 10))
    sure = {"editing_threshold": 0.9, "threshold": 0.9}
    parent = record(engine, ask(limit=14, prompt=prompt, **sure))
    taken_ahead = np.diff(parent.forwards) == 0
    assert taken_ahead.any(), "no step was taken ahead"
    row = int(np.flatnonzero(taken_ahead)[0]) + 1
    start = int(parent.block_start[row])
    settings = DecodeSettings(threshold=0.2, editing_threshold=0.3, max_post_steps=4, steps=8)
    change = Change(((start + 3, 21),), ((start + 1, int(parent.ids[row, 1])),), settings=settings)
    for step in (row - 1, row):
        fork = record_fork(engine, Fork(parent, step, change))
        wanted = record_fork(eager, Fork(parent, step, change))
        np.testing.assert_array_equal(fork.ids, wanted.ids)
        np.testing.assert_array_equal(fork.state, wanted.state)
        assert (fork.ids[fork.block == parent.block[row], 3] == 21).all()
    assert fork.forwards[row] == fork.forwards[row - 1]  # here, too
