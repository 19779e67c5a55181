"""The trace ring: what a record holds, and what a slow reader is told."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from host_graph import HostBackend, HostPending
from small import graph_for, pieces_for, reply, request, small_model

from engine.decoding.state import BlockState
from engine.models.llada2 import LLaDA2
from engine.runtime.conditional import Mailbox
from engine.runtime.reader import BlockEntry, Dropped, ReplyReader
from engine.runtime.reply import Control, ReplyState
from engine.runtime.ring import StepRecord, TraceRing
from engine.runtime.ring_kernel import record_in_one_launch
from engine.runtime.rows import Row
from engine.types import DecodeSettings, TokenState

CPU = torch.device("cpu")
MASK = 9


@pytest.fixture(scope="module")
def model() -> LLaDA2:
    return small_model()


def random_state(batch: int, length: int, seed: int) -> tuple[BlockState, ReplyState]:
    """Every buffer a record looks at, with every kind of position."""
    generator = torch.Generator().manual_seed(seed)
    state = BlockState.allocate(batch, length, CPU)
    reply = ReplyState(batch, length, 8 * length, MASK, True, CPU)

    def draw(high: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    state.tokens.copy_(draw(10, (batch, length)))
    state.proposal.copy_(draw(9, (batch, length)))
    state.edited.copy_(draw(2, (batch, length)))
    state.replaced.copy_(draw(9, (batch, length)) - 1)
    state.confidence.copy_(torch.rand(batch, length, generator=generator))
    state.entropy.copy_(torch.rand(batch, length, generator=generator) * 5)
    state.step.copy_(draw(9, (batch, 1)) + 1)
    state.start.copy_(draw(4, (batch, 1)) * length)
    reply.prompt_length.copy_(draw(3 * length, (batch, 1)))
    reply.blocks.copy_(draw(5, (batch, 1)))
    reply.forwards.copy_(draw(500, (batch, 1)))
    reply.word(Control.STEPS).fill_(1000 + seed)
    reply.word(Control.KEEP_STEP).fill_(seed % 2)
    reply.word(Control.LEVEL).fill_(1)
    return state, reply


@pytest.mark.parametrize(("batch", "length"), [(1, 32), (3, 8), (2, 5)])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_launch_writes_the_record_the_reference_writes(
    batch: int, length: int, seed: int
) -> None:
    state, reply = random_state(batch, length, seed)
    wanted = TraceRing(batch, length, CPU, slots=7)
    found = TraceRing(batch, length, CPU, slots=7, kernel=record_in_one_launch)
    wanted.record(state, reply)
    found.record(state, reply)
    assert torch.equal(wanted.records, found.records)
    assert int((wanted.records != 0).any(-1).sum()) == 1


def test_at_level_0_one_launch_writes_counters_alone() -> None:
    state, reply = random_state(1, 8, 0)
    reply.word(Control.LEVEL).zero_()
    ring = TraceRing(1, 8, CPU, slots=7, kernel=record_in_one_launch)
    ring.record(state, reply)
    record = ring.read(ring.records[1000 % 7].numpy())
    assert (record.index, record.block_ended) == (1000, True)
    step = ring.step_taken(record, 0, 0.0)
    assert (step.block, step.step) == (int(reply.blocks), int(state.step) - 1)
    assert not step.ids.any()


def test_a_record_says_what_a_person_sees() -> None:
    state, reply = random_state(1, 5, 0)
    state.tokens.copy_(torch.tensor([[1, 2, MASK, 3, 4]]))
    state.proposal.copy_(torch.tensor([[0, 0, 6, 0, 0]]))
    state.edited.copy_(torch.tensor([[False, False, False, True, False]]))
    state.start.fill_(10)
    reply.prompt_length.fill_(11)
    ring = TraceRing(1, 5, CPU, slots=2)
    ring.record(state, reply)
    step = ring.step_taken(ring.read(ring.records[0].numpy()), 0, 1.5)
    assert step.ids.tolist() == [1, 2, 6, 3, 4]
    kinds = (TokenState.PROMPT, TokenState.COMMITTED, TokenState.DRAFT)
    assert step.state.tolist() == [*kinds, TokenState.EDITED, TokenState.COMMITTED]
    assert np.isnan(step.confidence).tolist() == [True, False, False, False, False]
    assert step.entropy[1:].tolist() == state.entropy[0, 1:].tolist()
    assert step.edited_from.tolist() == state.replaced[0].tolist()
    assert (step.block_start, step.seconds) == (10, 1.5)
    assert step.forwards == int(reply.forwards + state.step)


class Script:
    """A reply that publishes what a test tells it to: backend and pending in one."""

    def __init__(self, ring: TraceRing) -> None:
        self.ring, self.mailbox = ring, np.zeros(len(Mailbox), dtype=np.int64)
        self.between: list[int] = []  # steps published during the coming copies
        self.copies = 0
        self.lasts = threading.Event()  # set: it is over once `between` is
        self.lasts.set()

    def publish(self, until: int) -> None:
        for index in range(int(self.mailbox[Mailbox.STEPS]), until):
            self.ring.records[index % self.ring.slots, 2] = index
        self.mailbox[Mailbox.STEPS] = until

    def fetch(self, tensor: torch.Tensor) -> np.ndarray:
        copy = tensor.numpy().copy()
        self.copies += 1
        if self.between:
            self.publish(self.between.pop(0))
        return copy

    def wait(self) -> None:
        self.lasts.wait()
        while self.between:
            time.sleep(0.001)


def read_script(script: Script) -> list[int]:
    """Indices of the records read, and minus the count of those reported as dropped."""
    _, reply = random_state(1, script.ring.block_length, 0)
    reader = ReplyReader(script, script.ring, reply, script, None, True)  # pyright: ignore
    seen = []
    for item in reader:
        assert isinstance(item, StepRecord | Dropped)
        seen.append(item.index if isinstance(item, StepRecord) else -item.count)
    reader.join()
    return seen


def test_every_record_is_read_once_and_in_order() -> None:
    script = Script(TraceRing(1, 4, CPU, slots=8))
    script.publish(3)
    script.between = [5, 8, 11]
    assert read_script(script) == list(range(11))


def test_records_overwritten_before_they_were_read_are_counted() -> None:
    script = Script(TraceRing(1, 4, CPU, slots=8))
    script.publish(30)
    # Slot of step 22 may be being written by step 30: only the seven after it are safe.
    assert read_script(script) == [-23, *range(23, 30)]


def test_records_overwritten_while_they_were_copied_are_counted() -> None:
    script = Script(TraceRing(1, 4, CPU, slots=8))
    script.publish(6)
    script.between = [10]
    # Steps 0..5 were copied, then step 9 was published: slots 0, 1 and 2 may hold anything.
    assert read_script(script) == [-3, *range(3, 10)]


def test_a_reader_that_fell_a_whole_ring_behind_during_a_copy_goes_on() -> None:
    script = Script(TraceRing(1, 4, CPU, slots=8))
    script.publish(6)
    script.between = [100]
    seen = read_script(script)
    assert seen[-7:] == list(range(93, 100))
    assert -sum(n for n in seen if n < 0) == 93


def test_the_end_of_a_reply_wakes_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runtime.reader.POLL", 60.0)
    monkeypatch.setattr("engine.runtime.reader.LONGEST_POLL", 60.0)
    script = Script(TraceRing(1, 4, CPU, slots=8))
    script.lasts.clear()
    _, reply_state = random_state(1, 4, 0)
    reader = ReplyReader(script, script.ring, reply_state, script, None, True)  # pyright: ignore
    time.sleep(0.05)  # the first look has found nothing
    script.publish(3)
    began = time.perf_counter()
    script.lasts.set()
    assert len(list(reader)) == 3
    reader.join()
    assert time.perf_counter() - began < 10


def test_a_look_that_finds_nothing_new_copies_nothing() -> None:
    script = Script(TraceRing(1, 4, CPU, slots=8))
    script.lasts.clear()
    script.publish(5)
    _, reply_state = random_state(1, 4, 0)
    reader = ReplyReader(script, script.ring, reply_state, script, None, True)  # pyright: ignore
    time.sleep(0.1)  # many looks
    script.lasts.set()
    assert len(list(reader)) == 5
    assert script.copies == 1


def test_a_slow_reader_is_told_what_it_missed_and_gets_every_block(model: LLaDA2) -> None:
    settings = DecodeSettings(threshold=1.0, steps=8)
    quick, slow = graph_for(model), graph_for(model, fetch_delay=0.03, slots=4)
    wanted, row = request([1, 2], 40, settings), request([1, 2], 40, settings)
    all_marks, marks = reply(quick, wanted), reply(slow, row)
    assert row.ids == wanted.ids
    assert sum(mark.block_done for mark in marks) == row.blocks
    seen = sum(mark.step_taken is not None for mark in marks)
    missed = sum(mark.dropped for mark in marks)
    assert missed > 0
    # The last steps of the reply can only be known as dropped when a mark follows them.
    assert seen + missed == len(all_marks) == row.forwards


def test_without_recording_only_blocks_are_reported(model: LLaDA2) -> None:
    runtime = graph_for(model)
    row = request([1, 2], 20, DecodeSettings(threshold=0.5))
    marks = reply(runtime, row, record=False)
    assert [mark.block_done for mark in marks] == [True] * row.blocks
    assert all(mark.step_taken is None and mark.dropped == 0 for mark in marks)


def test_times_are_the_devices_and_rise(model: LLaDA2) -> None:
    row = request([1, 2], 30, DecodeSettings(threshold=0.7))
    seconds = [mark.seconds for mark in reply(graph_for(model), row)]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] < seconds[-1] < 60


def test_what_fails_on_the_device_reaches_the_reader_in_words(model: LLaDA2) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    pieces = pieces_for(model)
    backend = HostBackend(pieces)
    pending = HostPending(fail)
    reader = ReplyReader(backend, pieces.ring, pieces.reply, pending, threading.Event(), True)
    with pytest.raises(Exception, match="illegal memory access") as caught:
        list(reader)
    assert getattr(caught.value, "code", "") == "runtime.device_failed"
    reader.join()


def test_blocks_and_steps_come_in_the_order_they_happened(model: LLaDA2) -> None:
    runtime = graph_for(model)
    row: Row = request([1, 2], 30, DecodeSettings(threshold=0.6))
    runtime.prefill([row])
    pieces, backend = runtime.pieces, runtime.backend
    graph = runtime._graph(pieces.load([row], True))
    backend.mailbox[:] = 0
    pending = backend.launch(graph)
    kinds = []
    for item in ReplyReader(backend, pieces.ring, pieces.reply, pending, None, True):
        if isinstance(item, BlockEntry):
            kinds.append("block")
        elif isinstance(item, StepRecord):
            kinds.append("last step" if item.block_ended else "step")
    assert kinds.count("block") == kinds.count("last step") == row.max_blocks
    assert all(kinds[n - 1] == "last step" for n, kind in enumerate(kinds) if kind == "block")
