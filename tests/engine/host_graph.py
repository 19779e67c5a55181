"""A stand-in for CUDA graphs on the CPU: it records the structure of a graph and runs it, so that
the graph runtimes are tested without a GPU.

Captured pieces are the functions themselves; control kernels are written out in Python beside their
CUDA source (`engine/kernels/cuda/reply_loop.cu`). A launched graph runs in a thread, as one on a
GPU runs beside the host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.runtime.backend import Pending
from engine.runtime.conditional import Argument, Kind, Mailbox, ReplyGraph
from engine.runtime.pieces import ReplyPieces
from engine.runtime.reply import Control


@dataclass(eq=False)
class HostGraph:
    """Nodes in order, each with the node it waits for."""

    nodes: list[HostNode] = field(default_factory=list)


@dataclass(eq=False)
class HostNode:
    kind: str
    after: HostNode | None
    what: Any
    arguments: tuple[Any, ...] = ()
    body: HostGraph | None = None


@dataclass(eq=False)
class HostCondition:
    """Belongs to a root graph; value as the running graph sees it."""

    root: HostGraph
    default: int
    value: int = 0


@dataclass(eq=False)
class HostPiece:
    """A captured piece: what it would run."""

    run: Callable[[], None]
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode():
            self.run()


class HostCalls:
    """`GraphCalls` that record. instantiated: what `launch` will run."""

    def __init__(self, backend: HostBackend) -> None:
        self.backend = backend
        self.conditions: list[HostCondition] = []
        self.instantiated: list[HostGraph] = []
        self.destroyed = 0

    def create(self) -> HostGraph:
        return HostGraph()

    def condition(self, root: HostGraph, default: int) -> HostCondition:
        condition = HostCondition(root, default)
        self.conditions.append(condition)
        return condition

    def conditional(
        self, graph: HostGraph, after: HostNode | None, condition: HostCondition, kind: Kind
    ) -> tuple[HostNode, HostGraph]:
        body = HostGraph()
        return self._add(graph, HostNode(kind, after, condition, body=body)), body

    def child(self, graph: HostGraph, after: HostNode | None, captured: HostPiece) -> HostNode:
        return self._add(graph, HostNode("child", after, captured))

    def kernel(
        self, graph: HostGraph, after: HostNode | None, name: str, arguments: Sequence[Argument]
    ) -> HostNode:
        values = tuple(argument.value for argument in arguments)
        return self._add(graph, HostNode("kernel", after, name, values))

    def instantiate(self, root: HostGraph) -> HostGraph:
        self.instantiated.append(root)
        return root

    def launch(self, executable: HostGraph, stream: int) -> None:
        for condition in self.conditions:
            if condition.root is executable:
                condition.value = condition.default
        self._run(executable)

    def destroy(self, root: HostGraph, executable: HostGraph) -> None:
        self.destroyed += 1

    @staticmethod
    def _add(graph: HostGraph, node: HostNode) -> HostNode:
        # Nodes of one graph form a chain: a second node without a predecessor could run first.
        assert node.after is (graph.nodes[-1] if graph.nodes else None)
        graph.nodes.append(node)
        return node

    def _run(self, graph: HostGraph) -> None:
        for node in graph.nodes:
            if node.kind == "child":
                node.what.replay()
            elif node.kind == "kernel":
                self.backend.control_kernel(node.what, *node.arguments)
            else:
                assert node.body is not None
                while node.what.value:
                    self._run(node.body)
                    if node.kind == "if":
                        break


class HostPending:
    def __init__(self, run: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(run,))
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 (a thread's root: wait() raises it)
            self.error = error

    def wait(self) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error


class HostBackend:
    """`Backend` on the CPU. fetch_delay: seconds a read takes, to make a slow reader."""

    mailbox_address = 0

    def __init__(self, pieces: ReplyPieces, fetch_delay: float = 0.0) -> None:
        self.pieces = pieces
        self.mailbox = np.zeros(len(Mailbox), dtype=np.int64)
        self.calls = HostCalls(self)
        self.captured: list[HostPiece] = []
        self.fetch_delay = fetch_delay
        self.launches = 0

    def capture(self, run: Callable[[], None]) -> HostPiece:
        variant = self.pieces.variant

        def replayed() -> None:
            self.pieces.select(variant)
            run()

        self.captured.append(HostPiece(replayed))
        return self.captured[-1]

    def warm_up(self, run: Callable[[], None]) -> None:
        run()

    def launch(self, graph: ReplyGraph) -> Pending:
        self.launches += 1
        return HostPending(lambda: graph.launch(0))

    def fetch(self, tensor: Tensor) -> np.ndarray:
        assert tensor.is_contiguous()
        assert tensor.dtype == torch.int32
        copy = tensor.numpy().copy()
        time.sleep(self.fetch_delay)
        return copy

    def settle(self) -> None:
        """Everything here has run when it returns."""

    def close(self) -> None:
        self.captured.clear()

    def control_kernel(self, name: str, *arguments: Any) -> None:
        """`reply_loop.cu`, line by line."""
        control, mailbox = self.pieces.reply.control, self.mailbox
        words = {word: bool(control[word]) for word in Control}
        if name == "reply_start":
            mailbox[Mailbox.START] = time.perf_counter_ns()
        elif name == "reply_arm":
            arguments[0].value = int(words[Control.COMMIT])
        elif name == "reply_open":
            arguments[0].value = int(not words[Control.OPEN])
            arguments[1].value = int(not words[Control.OPEN] and words[Control.COMMIT])
        elif name == "reply_first":
            if not words[Control.OPEN] and words[Control.COMMIT]:
                self._publish_step()
            arguments[0].value = int(self._goes_on(ready=False))
        elif name == "reply_step":
            self._publish_step()
            arguments[0].value = int(self._goes_on(ready=False))
        elif name == "reply_settle":
            arguments[0].value = int(self._goes_on(ready=True))
        elif name == "reply_verify":
            self._publish_step()
            arguments[0].value = int(self._goes_on(ready=True))
        elif name == "reply_decide":
            self._decide(*arguments[:2])
        else:
            assert name == "reply_block"
            self._publish_block()
            if words[Control.TAKEN]:
                self._publish_step()
            goes_on = self._may_go_on() and words[Control.KEEP_BLOCK]
            arguments[0].value = int(words[Control.OPEN] or goes_on)

    def _decide(self, accept: HostCondition, end: HostCondition) -> None:
        control = self.pieces.reply.control
        goes_on = self._may_go_on()
        taken = goes_on and bool(control[Control.ACCEPTED])
        ended = not taken and not (goes_on and bool(control[Control.KEEP_STEP]))
        control[Control.TAKEN], control[Control.OPEN] = int(taken), int(not ended)
        accept.value, end.value = int(taken), int(ended)

    def _goes_on(self, ready: bool) -> bool:
        """Whether another step of this kind comes next."""
        control = self.pieces.reply.control
        keep = self._may_go_on() and bool(control[Control.KEEP_STEP])
        return keep and bool(control[Control.READY]) == ready

    def _may_go_on(self) -> bool:
        control = self.pieces.reply.control
        if self.mailbox[Mailbox.STOP]:
            control[Control.STOP] = 1
        return not control[Control.STOP] and bool(control[Control.STEPS] < control[Control.LIMIT])

    def _publish_step(self) -> None:
        control, ring = self.pieces.reply.control, self.pieces.ring
        steps, now = int(control[Control.STEPS]), torch.tensor([time.perf_counter_ns()])
        ring.records[(steps - 1) % ring.slots, :2] = now.view(torch.int32)
        self.mailbox[Mailbox.STEPS] = steps

    def _publish_block(self) -> None:
        control, now = self.pieces.reply.control, torch.tensor([time.perf_counter_ns()])
        if not control[Control.OPEN] or control[Control.TAKEN]:
            blocks = int(control[Control.BLOCKS])
            self.pieces.reply.log[blocks - 1, :2] = now.view(torch.int32)
            self.mailbox[Mailbox.BLOCKS] = blocks
