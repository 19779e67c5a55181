"""The loop kernels, run on the CPU: when the loops go on, and what the trace ring keeps."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch
from cuda_emulator import build

from engine.kernels.graph_loop import Control, Ended, Host, Record, RecordLayout, drain
from engine.kernels.nvrtc import ARCHITECTURES, compile_cubin
from engine.types import TokenState


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("loop"), "graph_loop.cpp", {})


class Loop:
    """The shared words, and the kernels called as the graph would."""

    def __init__(self, library: ctypes.CDLL, step_cap: int = 8, block_cap: int = 4) -> None:
        self.library = library
        self.control = np.zeros(Control.WORDS, dtype=np.int32)
        self.host = np.zeros(Host.WORDS, dtype=np.int32)
        self.control[Control.STEP_CAP], self.control[Control.BLOCK_CAP] = step_cap, block_cap

    def call(self, function: str, *arguments: np.ndarray | torch.Tensor | int) -> int:
        passed = [self.control, self.host, *arguments]
        return getattr(self.library, function)(
            *(
                ctypes.c_int(a)
                if isinstance(a, int)
                else ctypes.c_void_p(a.ctypes.data if isinstance(a, np.ndarray) else a.data_ptr())
                for a in passed
            )
        )

    def after_step(self, finished: list[bool], nonfinite: list[bool] | None = None) -> bool:
        flags = np.array(finished), np.array(nonfinite or [False] * len(finished))
        return bool(self.call("run_after_step", *flags, len(finished)))

    def after_block(self, over: list[bool]) -> tuple[bool, bool]:
        """(outer goes on, inner is armed)"""
        armed = self.call("run_after_block", np.array(over), len(over))
        return bool(armed & 1), bool(armed & 2)

    @property
    def ended_by(self) -> Ended:
        return Ended(int(self.host[Host.ENDED_BY]))


def test_a_block_goes_on_until_all_its_rows_are_finished(library: ctypes.CDLL) -> None:
    loop = Loop(library)
    assert loop.after_step([False, False])
    assert loop.after_step([True, False])
    assert not loop.after_step([True, True])
    assert loop.after_block([False, True]) == (True, True)
    assert loop.control[Control.STEP] == 0
    assert not loop.after_step([True, True])
    assert loop.after_block([True, True]) == (False, False)
    assert loop.ended_by == Ended.COMPLETE
    assert (loop.host[Host.FORWARDS], loop.host[Host.BLOCKS]) == (4, 2)


def test_caps_end_a_block_and_a_reply_that_would_not(library: ctypes.CDLL) -> None:
    loop = Loop(library, step_cap=3, block_cap=2)
    assert [loop.after_step([False]) for _ in range(3)] == [True, True, False]
    assert loop.after_block([False]) == (True, True)
    assert loop.after_block([False]) == (False, False)
    assert loop.ended_by == Ended.CAPPED


def test_the_stop_flag_ends_the_loop_within_one_step(library: ctypes.CDLL) -> None:
    loop = Loop(library)
    assert loop.after_step([False])
    loop.host[Host.STOP] = 1
    assert not loop.after_step([False])
    assert loop.after_block([False]) == (False, False)
    assert loop.ended_by == Ended.STOPPED


def test_nonfinite_logits_end_the_reply(library: ctypes.CDLL) -> None:
    loop = Loop(library)
    assert not loop.after_step([False, False], [False, True])
    assert loop.after_block([False, False]) == (False, False)
    assert loop.ended_by == Ended.NONFINITE


MASK = 99
LAYOUT = RecordLayout(rows=2, length=3, top=2)


def trace(loop: Loop, ring: np.ndarray, first_token: int = 10) -> None:
    """One step's record: a prompt token, a mask and an edited token in row 0, committed tokens in
    row 1."""
    tokens = torch.tensor([[first_token, MASK, 12], [20, 21, 22]])
    proposal = torch.tensor([[70, 71, 72], [73, 74, 75]])
    replaced = torch.tensor([[-1, -1, 5], [-1, -1, -1]])
    confidence, entropy = torch.arange(6) / 8, torch.arange(6) / 4
    edited = torch.tensor([[False, False, True], [False] * 3])
    prompt = torch.tensor([[True, False, False], [False] * 3])
    top_ids = torch.arange(12, dtype=torch.int32)
    top_prob = torch.arange(12) / 16
    loop.call(
        "run_trace", ring, ring.shape[0], LAYOUT.bytes, tokens, proposal, replaced, confidence,
        entropy, edited, prompt, top_ids, top_prob, LAYOUT.rows, LAYOUT.length, LAYOUT.top, MASK,
    )  # fmt: skip


def read(loop: Loop, ring: np.ndarray) -> list[Record]:
    return list(drain(ring, loop.host, LAYOUT))


def test_a_record_says_what_every_position_shows(library: ctypes.CDLL) -> None:
    loop, ring = Loop(library), np.zeros((4, LAYOUT.bytes), dtype=np.uint8)
    trace(loop, ring)
    (record,) = read(loop, ring)
    assert record.ids.tolist() == [[10, 71, 12], [20, 21, 22]]
    shown = TokenState.COMMITTED
    kinds = [[TokenState.PROMPT, TokenState.DRAFT, TokenState.EDITED], [shown, shown, shown]]
    assert record.state.tolist() == kinds
    assert record.edited_from.tolist() == [[-1, -1, 5], [-1, -1, -1]]
    assert math.isnan(record.confidence[0, 0])
    assert math.isnan(record.entropy[0, 0])
    assert record.confidence.flatten()[1:].tolist() == [n / 8 for n in range(1, 6)]
    assert record.top_ids.flatten().tolist() == list(range(12))
    assert record.top_prob[1, 2].tolist() == [10 / 16, 11 / 16]
    assert (record.sequence, record.block, record.step, record.forwards) == (0, 0, 0, 1)


def test_time_runs_forward_and_counters_follow_the_loop(library: ctypes.CDLL) -> None:
    loop, ring = Loop(library), np.zeros((4, LAYOUT.bytes), dtype=np.uint8)
    trace(loop, ring)
    loop.after_step([False])
    loop.after_block([False])
    trace(loop, ring)
    first, second = read(loop, ring)
    assert (second.block, second.step, second.forwards) == (1, 0, 2)
    assert second.sequence == first.sequence + 1


def test_a_full_ring_drops_new_records_and_says_how_many(library: ctypes.CDLL) -> None:
    loop, ring = Loop(library), np.zeros((2, LAYOUT.bytes), dtype=np.uint8)
    for token in (1, 2, 3, 4):
        trace(loop, ring, first_token=token)
    kept = read(loop, ring)
    assert [(r.sequence, int(r.ids[0, 0])) for r in kept] == [(0, 1), (1, 2)]
    assert loop.host[Host.DROPPED] == 2
    trace(loop, ring, first_token=5)
    (later,) = read(loop, ring)
    assert (later.sequence, int(later.ids[0, 0])) == (4, 5)
    assert loop.host[Host.DROPPED] == 2


def test_the_ring_survives_its_counters_wrapping(library: ctypes.CDLL) -> None:
    loop, ring = Loop(library), np.zeros((4, LAYOUT.bytes), dtype=np.uint8)
    loop.control[[Control.KEPT, Control.KNOWN_READ]] = 2**31 - 1
    loop.host[[Host.WRITTEN, Host.READ]] = 2**31 - 1
    for token in (1, 2, 3):
        trace(loop, ring, first_token=token)
        (record,) = read(loop, ring)
        assert int(record.ids[0, 0]) == token


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_source_compiles_for_every_architecture(architecture: str) -> None:
    assert compile_cubin("graph_loop.cu", {}, architecture)
