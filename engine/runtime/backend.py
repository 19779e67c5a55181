"""The few things a graph runtime needs of CUDA, behind one seam: capturing, launching, and reading
while a graph runs.

Knows streams, pinned memory and torch's capture. Knows nothing of replies. A test puts its own
backend here and runs the whole graph runtime without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.kernels.streams import stream
from engine.runtime.conditional import (
    DriverCalls,
    GraphCalls,
    Mailbox,
    ReplyGraph,
    driver_calls,
)


class Pending(Protocol):
    """A launched graph. wait lets other threads run, takes no processor time, and raises what went
    wrong on the device."""

    def wait(self) -> None: ...


class Captured(Protocol):
    """A captured piece."""

    def replay(self) -> None: ...


class Backend(Protocol):
    """mailbox int64 [len(Mailbox)]: the host's view of the pinned words; mailbox_address: the
    device's. fetch may be called from one other thread while a graph runs."""

    mailbox: npt.NDArray[np.int64]
    mailbox_address: int

    @property
    def calls(self) -> GraphCalls: ...

    def capture(self, run: Callable[[], None]) -> Captured:
        """Runs nothing: records what `run` would do."""
        ...

    def warm_up(self, run: Callable[[], None]) -> None:
        """Runs it as often as it needs before it can be captured."""
        ...

    def launch(self, graph: ReplyGraph) -> Pending: ...

    def fetch(self, tensor: Tensor) -> npt.NDArray[np.int32]:
        """A copy of a contiguous int32 device tensor on the host."""
        ...

    def settle(self) -> None:
        """Waits until everything enqueued is done."""
        ...

    def close(self) -> None:
        """Forgets captured memory. Captured pieces must be gone."""
        ...


class CudaBackend:
    """`Backend` on one CUDA device. Everything runs on torch's current stream; captures on a stream
    of their own, in one shared memory pool (pieces never run at the same time and keep nothing
    there); reads on a third stream, which does not wait for a running graph.

    staging: int32 words that one `fetch` may bring.
    """

    def __init__(self, device: torch.device, staging: int) -> None:
        self.device = device
        self._capturing = stream(device, "capture")
        self._reading = stream(device, "read")
        self._copied = torch.cuda.Event(blocking=True)
        self._pool = torch.cuda.graph_pool_handle()
        self._mailbox = torch.zeros(len(Mailbox), dtype=torch.int64, pin_memory=True)
        self._staging = torch.empty(staging, dtype=torch.int32, pin_memory=True)
        self.mailbox: npt.NDArray[np.int64] = self._mailbox.numpy()
        self.mailbox_address = self._mailbox.data_ptr()
        torch.cuda.synchronize(device)  # static buffers were filled on whatever stream was current

    @property
    def calls(self) -> DriverCalls:
        return driver_calls(self.device.index or 0)

    def capture(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        # thread_local: other threads of the app may call CUDA (memory meters do) meanwhile.
        with torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=self._capturing,
            capture_error_mode="thread_local",
        ):
            run()
        return graph

    def warm_up(self, run: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self.device)
        self._capturing.wait_stream(current)
        with torch.cuda.stream(self._capturing):
            for _ in range(2):
                run()
        current.wait_stream(self._capturing)

    def launch(self, graph: ReplyGraph) -> Pending:
        current = torch.cuda.current_stream(self.device)
        graph.launch(current.cuda_stream)
        done = torch.cuda.Event(blocking=True)  # waiting for it sleeps; by default it spins
        done.record(current)
        return _CudaPending(done)

    def fetch(self, tensor: Tensor) -> npt.NDArray[np.int32]:
        staged = self._staging[: tensor.numel()]
        with torch.cuda.stream(self._reading):
            staged.copy_(tensor.reshape(-1), non_blocking=True)
            self._copied.record()
        self._copied.synchronize()
        return staged.numpy().reshape(tensor.shape).copy()

    def settle(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def close(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()


class _CudaPending:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()
