"""The graph of a reply as recorded: which nodes, in which order, inside which loop; and its control
kernels."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from host_graph import HostBackend, HostCondition, HostGraph, HostNode, HostPiece
from small import pieces_for, small_model

from engine.runtime.conditional import KERNELS, Mailbox, Registers, build_reply_graph
from engine.runtime.reply import Control

REGISTERS = Registers(control=1, mailbox=2, records=3, slots=4, record_words=5, log=6, log_words=7)
SOURCE = Path("engine") / "kernels" / "cuda" / "reply_loop.cu"


@pytest.fixture(scope="module")
def backend() -> HostBackend:
    return HostBackend(pieces_for(small_model()))


PLAIN = ("begin", "first", "step", "end")
AHEAD = (*PLAIN, "verify", "accept")


def recorded(backend: HostBackend, pieces: tuple[str, ...] = PLAIN) -> HostGraph:
    captured = {name: HostPiece(lambda: None) for name in pieces}
    graph = build_reply_graph(backend.calls, captured, REGISTERS)
    names = {id(piece): name for name, piece in captured.items()}

    def name_children(graph: HostGraph) -> None:
        for node in graph.nodes:
            if node.kind == "child":
                node.what = names[id(node.what)]
            if node.body is not None:
                name_children(node.body)

    name_children(graph.root)
    return graph.root


def shape(graph: HostGraph) -> list:
    """Nodes as text, loops as (kind, their nodes)."""
    return [
        node.what if node.body is None else (node.kind, shape(node.body)) for node in graph.nodes
    ]


def nodes_of(graph: HostGraph) -> list[HostNode]:
    nodes = []
    for node in graph.nodes:
        nodes.append(node)
        nodes += nodes_of(node.body) if node.body is not None else []
    return nodes


def test_a_reply_is_two_nested_loops_and_a_conditional_first_step(backend: HostBackend) -> None:
    block = [
        "begin",
        "reply_arm",
        ("if", ["first"]),
        "reply_first",
        ("while", ["step", "reply_step"]),
        "end",
        "reply_block",
    ]
    assert shape(recorded(backend)) == ["reply_start", ("while", block)]


def test_with_a_step_ahead_a_block_may_be_under_way_as_the_loop_begins_anew(
    backend: HostBackend,
) -> None:
    block = [
        "reply_open",
        ("if", ["begin"]),
        ("if", ["first"]),
        "reply_first",
        ("while", ["step", "reply_step"]),
        "reply_settle",
        ("while", ["verify", "reply_verify"]),
        "reply_decide",
        ("if", ["accept"]),
        ("if", ["end"]),
        "reply_block",
    ]
    assert shape(recorded(backend, AHEAD)) == ["reply_start", ("while", block)]


SETTERS = {
    "reply_arm": 1,
    "reply_open": 2,
    "reply_first": 1,
    "reply_step": 1,
    "reply_settle": 1,
    "reply_verify": 1,
    "reply_decide": 2,
    "reply_block": 1,
}


@pytest.mark.parametrize("pieces", [PLAIN, AHEAD], ids=["plain", "ahead"])
def test_conditions_belong_to_the_root_and_are_set_before_their_node(
    backend: HostBackend, pieces: tuple[str, ...]
) -> None:
    root = recorded(backend, pieces)
    loops = [node for node in nodes_of(root) if node.body is not None]
    conditions: list[HostCondition] = [node.what for node in loops]
    assert len(set(conditions)) == len(conditions)
    assert all(condition.root is root for condition in conditions)
    # Only the outer loop may start by itself: what the others do is decided in every iteration.
    assert [condition.default for condition in conditions] == [1] + [0] * (len(conditions) - 1)
    outer = loops[0].body
    assert outer is not None
    known: set[HostCondition] = set()
    for node in outer.nodes:
        if node.body is not None:
            assert node.what in known
            if node.kind == "while":
                assert set_by(node.body.nodes[-1]) == [node.what]
        known |= set(set_by(node))
    assert conditions[0] in set_by(outer.nodes[-1])


def set_by(node: HostNode) -> list[HostCondition]:
    """The conditions a control kernel sets."""
    if node.kind != "kernel":
        return []
    return list(node.arguments[: SETTERS.get(node.what, 0)])


@pytest.mark.parametrize("pieces", [PLAIN, AHEAD], ids=["plain", "ahead"])
def test_control_kernels_get_the_registers(backend: HostBackend, pieces: tuple[str, ...]) -> None:
    nodes = [node for node in nodes_of(recorded(backend, pieces)) if node.kind == "kernel"]
    assert {node.what for node in nodes} <= set(KERNELS)
    for node in nodes:
        registers = node.arguments[SETTERS.get(node.what, 0) :]
        assert registers == REGISTERS_OF[node.what], node.what


REGISTERS_OF = {
    "reply_start": (2,),
    "reply_arm": (1,),
    "reply_open": (1,),
    "reply_first": (1, 2, 3, 4, 5),
    "reply_step": (1, 2, 3, 4, 5),
    "reply_settle": (1, 2),
    "reply_verify": (1, 2, 3, 4, 5),
    "reply_decide": (1, 2),
    "reply_block": (1, 2, 6, 7, 3, 4, 5),
}


ON_CPU = """
#include <map>
#define REPLY_LOOP_ON_CPU
#define __device__
#define __global__
#define __forceinline__ inline
typedef unsigned long long cudaGraphConditionalHandle;
static std::map<unsigned long long, unsigned> conditions;
static long long clock_now;
static void cudaGraphSetConditional(unsigned long long handle, unsigned value) {
    conditions[handle] = value;
}
static long long nanoseconds() { return clock_now; }
static void __threadfence_system() {}
#include "SOURCE"
extern "C" void set_clock(long long now) { clock_now = now; }
extern "C" unsigned condition(unsigned long long handle) { return conditions.at(handle); }
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> ctypes.CDLL:
    """The control kernels' source, compiled for the CPU."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("running the control kernels on the CPU needs a C++ compiler")
    folder = tmp_path_factory.mktemp("loop")
    wrapper, library = folder / "loop.cpp", folder / "loop.so"
    wrapper.write_text(ON_CPU.replace("SOURCE", str(repo_root / SOURCE)), encoding="utf-8")
    subprocess.run(
        [compiler, "-std=c++17", "-fPIC", "-shared", "-w", str(wrapper), "-o", str(library)],
        check=True,
    )
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("name", KERNELS)
def test_control_kernels_do_what_their_stand_in_does(
    kernels: ctypes.CDLL, backend: HostBackend, name: str
) -> None:
    """The stand-in of the graph tests, and the CUDA source, on the same registers: every
    combination of the words that decide."""
    words = (
        Control.KEEP_STEP,
        Control.KEEP_BLOCK,
        Control.COMMIT,
        Control.READY,
        Control.ACCEPTED,
        Control.OPEN,
        Control.TAKEN,
    )
    for *values, stop, limit in itertools.product((0, 1), repeat=len(words) + 2):
        control = torch.zeros(len(Control), dtype=torch.int64)
        for word, value in zip(words, values, strict=True):
            control[word] = value
        control[Control.STEPS], control[Control.BLOCKS] = 13, 2
        control[Control.LIMIT] = 13 + limit
        compare(kernels, backend, name, control, stop)


def compare(
    kernels: ctypes.CDLL, backend: HostBackend, name: str, control: torch.Tensor, stop: int
) -> None:
    reply, ring = backend.pieces.reply, backend.pieces.ring
    mailbox = np.array([12, 1, 0, stop], dtype=np.int64)
    ring.records.zero_()
    reply.log.zero_()
    reply.control.copy_(control)
    backend.mailbox[:] = mailbox
    conditions = [HostCondition(HostGraph(), 0, value=7) for _ in range(SETTERS.get(name, 0))]
    backend.control_kernel(name, *conditions)

    records, log = torch.zeros_like(ring.records), torch.zeros_like(reply.log)
    real = Registers(
        control=control.data_ptr(),
        mailbox=mailbox.ctypes.data,
        records=records.data_ptr(),
        slots=ring.slots,
        record_words=ring.words,
        log=log.data_ptr(),
        log_words=log.shape[1],
    )
    in_order = [getattr(real, field.name) for field in fields(Registers)]
    handles = [5 + n for n in range(len(conditions))]
    given = [*handles, *(in_order[number - 1] for number in REGISTERS_OF[name])]
    kernels.set_clock(ctypes.c_longlong(77_000_000_000))
    getattr(kernels, name)(*(ctypes.c_longlong(value) for value in given))

    assert control.tolist() == reply.control.tolist()
    seen = [Mailbox.STEPS, Mailbox.BLOCKS, Mailbox.STOP]
    assert mailbox[seen].tolist() == backend.mailbox[seen].tolist()
    assert bool(mailbox[Mailbox.START]) == (name == "reply_start")
    for handle, condition in zip(handles, conditions, strict=True):
        assert int(kernels.condition(ctypes.c_ulonglong(handle))) == condition.value
    # The clocks differ; where the times are written does not.
    for mine, theirs in ((records, ring.records), (log, reply.log)):
        written = mine.nonzero()[:, 0].unique()
        assert written.tolist() == theirs.nonzero()[:, 0].unique().tolist()
        for slot in written.tolist():
            assert mine[slot, :2].view(torch.int64).tolist() == [77_000_000_000]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_control_kernels_build_for_every_architecture(architecture: str) -> None:
    nvrtc = pytest.importorskip(
        "engine.kernels.nvrtc", reason="cuda-bindings is not installed on this system"
    )
    code = nvrtc.compile_cubin("reply_loop.cu", {}, architecture)
    assert code[:4] == b"\x7fELF"
    # The driver resolves this at load; nothing else may be left open.
    assert b"cudaGraphSetConditional" in code


def test_the_words_of_the_kernels_are_those_of_the_host() -> None:
    source = (Path(__file__).resolve().parents[2] / SOURCE).read_text(encoding="utf-8")
    assert f"enum {{ {', '.join(word.name for word in Control)} }};" in source
    assert f"enum {{ {', '.join('MAIL_' + word.name for word in Mailbox)} }};" in source
