"""The graph of a reply as recorded: which nodes, in which order, inside which loop; and its control
kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from host_graph import HostBackend, HostCondition, HostGraph, HostNode, HostPiece
from small import pieces_for, small_model

from engine.runtime.conditional import Mailbox, Registers, build_reply_graph
from engine.runtime.reply import Control

REGISTERS = Registers(control=1, mailbox=2, records=3, slots=4, record_words=5, log=6, log_words=7)
SOURCE = Path("engine") / "kernels" / "cuda" / "reply_loop.cu"


@pytest.fixture(scope="module")
def backend() -> HostBackend:
    return HostBackend(pieces_for(small_model()))


def recorded(backend: HostBackend) -> HostGraph:
    captured = {name: HostPiece(lambda: None) for name in ("begin", "first", "step", "end")}
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


def test_conditions_belong_to_the_root_and_each_steers_one_node(backend: HostBackend) -> None:
    root = recorded(backend)
    loops = [node for node in nodes_of(root) if node.body is not None]
    conditions: list[HostCondition] = [node.what for node in loops]
    assert len(set(conditions)) == 3
    assert all(condition.root is root for condition in conditions)
    outer, first, inner = conditions
    # Only the outer loop may start by itself: what the others do is decided in every iteration.
    assert (outer.default, first.default, inner.default) == (1, 0, 0)
    sets = {node.what: node.arguments[0] for node in nodes_of(root) if node.kind == "kernel"}
    assert sets["reply_arm"] is first
    assert sets["reply_first"] is sets["reply_step"] is inner
    assert sets["reply_block"] is outer


def test_control_kernels_get_the_registers(backend: HostBackend) -> None:
    kernels = {n.what: n.arguments for n in nodes_of(recorded(backend)) if n.kind == "kernel"}
    assert kernels["reply_start"] == (2,)
    assert kernels["reply_arm"][1:] == (1,)
    assert kernels["reply_step"][1:] == kernels["reply_first"][1:] == (1, 2, 3, 4, 5)
    assert kernels["reply_block"][1:] == (1, 2, 6, 7)


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


@pytest.mark.parametrize("stop", [0, 1])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("commit", [0, 1])
@pytest.mark.parametrize("limit", [13, 14])
def test_control_kernels_do_what_their_stand_in_does(
    kernels: ctypes.CDLL, backend: HostBackend, stop: int, keep: int, commit: int, limit: int
) -> None:
    """The stand-in of the graph tests, and the CUDA source, on the same registers."""
    reply, ring = backend.pieces.reply, backend.pieces.ring
    condition = HostCondition(HostGraph(), 0)
    names = ("reply_start", "reply_arm", "reply_first", "reply_step", "reply_block")
    for name in names:
        control = torch.tensor([keep, keep, commit, 0, 13, 2, limit, 1])
        mailbox = np.array([12, 1, 0, stop], dtype=np.int64)
        ring.records.zero_()
        reply.log.zero_()
        reply.control.copy_(control)
        backend.mailbox[:] = mailbox
        condition.value = 7
        backend.control_kernel(name, condition)

        records, log = torch.zeros_like(ring.records), torch.zeros_like(reply.log)
        pointers = [ctypes.c_void_p(control.data_ptr()), ctypes.c_void_p(mailbox.ctypes.data)]
        ring_arguments = (records.data_ptr(), ring.slots, ring.words)
        arguments: dict[str, list] = {
            "reply_start": pointers[1:],
            "reply_arm": [ctypes.c_ulonglong(5), pointers[0]],
            "reply_block": [*pointers, log.data_ptr(), log.shape[1]],
        }
        given = arguments.get(name, [*pointers, *ring_arguments])
        if name not in ("reply_start", "reply_arm"):
            given = [ctypes.c_ulonglong(5), *given]
        kernels.set_clock(ctypes.c_longlong(77_000_000_000))
        getattr(kernels, name)(
            *(ctypes.c_longlong(value) if isinstance(value, int) else value for value in given)
        )
        assert control.tolist() == reply.control.tolist(), name
        words = [Mailbox.STEPS, Mailbox.BLOCKS, Mailbox.STOP]
        assert mailbox[words].tolist() == backend.mailbox[words].tolist(), name
        assert bool(mailbox[Mailbox.START]) == (name == "reply_start")
        # Times differ; where they are written does not.
        assert (
            records.nonzero()[:, 0].unique().tolist()
            == ring.records.nonzero()[:, 0].unique().tolist()
        )
        assert log.nonzero()[:, 0].unique().tolist() == reply.log.nonzero()[:, 0].unique().tolist()
        if name in ("reply_first", "reply_step") and (name == "reply_step" or commit):
            assert records[12, :2].view(torch.int64).tolist() == [77_000_000_000]
        if name == "reply_block":
            assert log[1, :2].view(torch.int64).tolist() == [77_000_000_000]
        if name != "reply_start":
            assert int(kernels.condition(ctypes.c_ulonglong(5))) == condition.value, name


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
    assert "enum { KEEP_STEP, KEEP_BLOCK, COMMIT, STOP, STEPS, BLOCKS, LIMIT };" in source
    assert [word.name for word in Control][:7] == [
        "KEEP_STEP",
        "KEEP_BLOCK",
        "COMMIT",
        "STOP",
        "STEPS",
        "BLOCKS",
        "LIMIT",
    ]
    assert "enum { MAIL_STEPS, MAIL_BLOCKS, MAIL_START, MAIL_STOP };" in source
    assert [word.name for word in Mailbox] == ["STEPS", "BLOCKS", "START", "STOP"]
