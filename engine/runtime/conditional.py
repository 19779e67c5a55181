"""Builds the one graph a whole reply runs as: captured pieces inside nested loops that the device
itself decides to repeat.

    start
    WHILE outer:  begin
                  IF first:     first          (the commit of the block before, and a first step)
                  WHILE inner:  step
                  end

and where a block's last look may be taken together with the next block's first step (`verify`,
`accept`):

    WHILE outer:  IF fresh:     begin
                  IF first:     first
                  WHILE inner:  step
                  WHILE verify: verify
                  IF accept:    accept         (the next block is under way as the loop begins anew)
                  IF end:       end

Knows the structure and which control kernel (`engine/kernels/cuda/reply_loop.cu`) stands where. The
CUDA calls themselves are behind `GraphCalls`, so that the structure can be recorded and run without
a GPU. Needs CUDA 12.4.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, Protocol

from engine.errors import RuntimeFailure

Kind = Literal["while", "if"]
KERNELS = (
    "reply_start",
    "reply_arm",
    "reply_open",
    "reply_first",
    "reply_step",
    "reply_settle",
    "reply_verify",
    "reply_decide",
    "reply_block",
)


class Mailbox(IntEnum):
    """Words of the pinned int64 memory through which host and running graph speak."""

    STEPS = 0  # steps whose records can be read
    BLOCKS = 1  # log entries that can be read
    START = 2  # the device's clock when the reply began, ns
    STOP = 3  # written by the host


@dataclass(frozen=True)
class Argument:
    """A kernel argument: a condition, an address or a number, all 8 bytes."""

    kind: Literal["condition", "address", "number"]
    value: Any


@dataclass(frozen=True)
class Registers:
    """Addresses the control kernels work on, and the sizes of a record and a log entry in int32
    words."""

    control: int
    mailbox: int
    records: int
    slots: int
    record_words: int
    log: int
    log_words: int


class GraphCalls(Protocol):
    """The calls a graph is built from. Graphs, nodes, conditions and captured pieces are opaque.

    after: the node a new one waits for, None for the first of its graph. conditional: returns the
    node and the graph that is its body. launch: enqueues on the given stream and returns at once.
    """

    def create(self) -> Any: ...

    def condition(self, root: Any, default: int) -> Any: ...

    def conditional(
        self, graph: Any, after: Any, condition: Any, kind: Kind
    ) -> tuple[Any, Any]: ...

    def child(self, graph: Any, after: Any, captured: Any) -> Any: ...

    def kernel(self, graph: Any, after: Any, name: str, arguments: Sequence[Argument]) -> Any: ...

    def instantiate(self, root: Any) -> Any: ...

    def launch(self, executable: Any, stream: int) -> None: ...

    def destroy(self, root: Any, executable: Any) -> None: ...


@dataclass
class ReplyGraph:
    """An instantiated reply. captured: kept alive as long as the graph, which works in their
    memory."""

    calls: GraphCalls
    root: Any
    executable: Any
    captured: Mapping[str, Any]

    def launch(self, stream: int) -> None:
        self.calls.launch(self.executable, stream)

    def close(self) -> None:
        """Gives the graph back. It must not be running."""
        if self.executable is not None:
            self.calls.destroy(self.root, self.executable)
            self.root = self.executable = None


class _Chain:
    """Nodes added one after the other to one graph."""

    def __init__(self, calls: GraphCalls, graph: Any) -> None:
        self.calls, self.graph = calls, graph
        self.last: Any = None

    def child(self, captured: Any) -> None:
        self.last = self.calls.child(self.graph, self.last, captured)

    def kernel(self, name: str, *arguments: Argument) -> None:
        self.last = self.calls.kernel(self.graph, self.last, name, arguments)

    def conditional(self, condition: Argument, kind: Kind) -> _Chain:
        self.last, body = self.calls.conditional(self.graph, self.last, condition.value, kind)
        return _Chain(self.calls, body)


def build_reply_graph(
    calls: GraphCalls, captured: Mapping[str, Any], registers: Registers
) -> ReplyGraph:
    """Nests the captured pieces (`begin`, `first`, `step`, `end`, and perhaps `verify` and
    `accept`) into one executable graph.

    Every condition belongs to the root graph. `outer` starts true at each launch; all others are
    set anew in every iteration of the outer loop before they are looked at.
    """
    root = calls.create()
    ahead = "verify" in captured
    names = ("fresh", "first", "inner", "verify", "accept", "end") if ahead else ("first", "inner")
    outer = Argument("condition", calls.condition(root, 1))
    at = {name: Argument("condition", calls.condition(root, 0)) for name in names}
    to = _Addresses(registers)
    top = _Chain(calls, root)
    top.kernel("reply_start", to.mailbox)
    block = top.conditional(outer, "while")
    if ahead:
        block.kernel("reply_open", at["fresh"], at["first"], to.control)
        block.conditional(at["fresh"], "if").child(captured["begin"])
    else:
        block.child(captured["begin"])
        block.kernel("reply_arm", at["first"], to.control)
    block.conditional(at["first"], "if").child(captured["first"])
    block.kernel("reply_first", at["inner"], *to.step)
    steps = block.conditional(at["inner"], "while")
    steps.child(captured["step"])
    steps.kernel("reply_step", at["inner"], *to.step)
    if ahead:
        _look_ahead(block, captured, at, to)
    else:
        block.child(captured["end"])
    block.kernel("reply_block", outer, *to.block)
    return ReplyGraph(calls, root, calls.instantiate(root), dict(captured))


def _look_ahead(
    block: _Chain, captured: Mapping[str, Any], at: Mapping[str, Argument], to: _Addresses
) -> None:
    """The rest of a block where its last look may be shared."""
    block.kernel("reply_settle", at["verify"], to.control, to.mailbox)
    looks = block.conditional(at["verify"], "while")
    looks.child(captured["verify"])
    looks.kernel("reply_verify", at["verify"], *to.step)
    block.kernel("reply_decide", at["accept"], at["end"], to.control, to.mailbox)
    block.conditional(at["accept"], "if").child(captured["accept"])
    block.conditional(at["end"], "if").child(captured["end"])


class _Addresses:
    """The registers as kernel arguments."""

    def __init__(self, registers: Registers) -> None:
        self.control = Argument("address", registers.control)
        self.mailbox = Argument("address", registers.mailbox)
        ring = (
            Argument("address", registers.records),
            Argument("number", registers.slots),
            Argument("number", registers.record_words),
        )
        log = (Argument("address", registers.log), Argument("number", registers.log_words))
        self.step = (self.control, self.mailbox, *ring)
        self.block = (self.control, self.mailbox, *log, *ring)


class DriverCalls:
    """`GraphCalls` through cuda-bindings, in the context that is current when it is made. A
    captured piece is a `torch.cuda.CUDAGraph` that keeps its graph."""

    def __init__(self) -> None:
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue] (compiled)

        from engine.kernels.nvrtc import CudaModule, check

        self._driver, self._check = driver, check
        module = CudaModule("reply_loop.cu", {})
        self._functions = {name: module.kernel(name).function for name in KERNELS}
        self._module = module  # its code must outlive the graphs
        self._context = check(driver.cuCtxGetCurrent())

    def create(self) -> Any:
        return self._check(self._driver.cuGraphCreate(0))

    def condition(self, root: Any, default: int) -> Any:
        assign = self._driver.CU_GRAPH_COND_ASSIGN_DEFAULT
        return self._check(
            self._driver.cuGraphConditionalHandleCreate(root, self._context, default, assign)
        )

    def conditional(self, graph: Any, after: Any, condition: Any, kind: Kind) -> tuple[Any, Any]:
        driver = self._driver
        kinds = driver.CUgraphConditionalNodeType
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = condition
        params.conditional.type = (
            kinds.CU_GRAPH_COND_TYPE_WHILE if kind == "while" else kinds.CU_GRAPH_COND_TYPE_IF
        )
        params.conditional.size = 1
        params.conditional.ctx = self._context
        nodes, count = _dependencies(after)
        # CUDA 13 put data of the edges in front of their number; 12 has no such argument.
        edges = (None,) if bindings_version()[0] >= 13 else ()
        node = self._check(driver.cuGraphAddNode(graph, nodes, *edges, count, params))
        return node, params.conditional.phGraph_out[0]

    def child(self, graph: Any, after: Any, captured: Any) -> Any:
        piece = self._driver.CUgraph(captured.raw_cuda_graph())
        nodes, count = _dependencies(after)
        return self._check(self._driver.cuGraphAddChildGraphNode(graph, nodes, count, piece))

    def kernel(self, graph: Any, after: Any, name: str, arguments: Sequence[Argument]) -> Any:
        params = self._driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = self._functions[name]
        params.gridDimX = params.gridDimY = params.gridDimZ = 1
        params.blockDimX = params.blockDimY = params.blockDimZ = 1
        params.sharedMemBytes = 0
        values = tuple(int(argument.value) for argument in arguments)
        params.kernelParams = (values, (ctypes.c_uint64,) * len(values))
        nodes, count = _dependencies(after)
        return self._check(self._driver.cuGraphAddKernelNode(graph, nodes, count, params))

    def instantiate(self, root: Any) -> Any:
        return self._check(self._driver.cuGraphInstantiate(root, 0))

    def launch(self, executable: Any, stream: int) -> None:
        self._check(self._driver.cuGraphLaunch(executable, self._driver.CUstream(stream)))

    def destroy(self, root: Any, executable: Any) -> None:
        self._check(self._driver.cuGraphExecDestroy(executable))
        self._check(self._driver.cuGraphDestroy(root))

    def node_count(self, captured: Any) -> int:
        """Nodes of a captured piece: its launches."""
        piece = self._driver.CUgraph(captured.raw_cuda_graph())
        return int(self._check(self._driver.cuGraphGetNodes(piece, 0))[1])


@lru_cache(maxsize=8)
def driver_calls(device: int) -> DriverCalls:
    """One for each device and process: its kernels are built and loaded once. The device's context
    must be current."""
    return DriverCalls()


def bindings_version() -> tuple[int, ...]:
    """Version of cuda-bindings. Raises ImportError where it is not installed."""
    from cuda.bindings import __version__

    return tuple(int(part) for part in __version__.split(".")[:2])


def _dependencies(after: Any) -> tuple[list[Any] | None, int]:
    return (None, 0) if after is None else ([after], 1)


def step_limit_reached() -> RuntimeFailure:
    """The loop's last guard ended a reply."""
    return RuntimeFailure(
        "runtime.step_limit",
        "The reply took more steps than any reply can need, and was ended.",
        "What was written so far is kept. Please report this with the exported diagnostics.",
    )
