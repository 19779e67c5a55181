"""Reads files through pinned memory straight onto a GPU, reading ahead while earlier bytes travel.

Knows windows, read-ahead and when a window may be overwritten. Knows nothing of tensors' meaning;
what the bytes are checked for is `engine.checkpoint.values`' business. On a CPU it is a plain
buffered reader (which the tests use).

A model reads a file in a few strands (all scales lie in one place, all codes in another), each in
order. What was read ahead of one strand is therefore kept while another is read: a window is given
up when all of it has been asked for, and before that only if nothing else is left.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.tensor_file import TensorFile
from engine.errors import RuntimeFailure

LARGEST = 16 << 20  # bytes of a window once reading is sequential
SMALLEST = 2 << 20  # of the first window after a jump: what lies behind it may never be asked for
AHEAD = 3  # windows filled beyond the one that is copied from, each by a thread
BUFFERS = 10  # two strands with what was read ahead of them, and one of small tensors


@dataclass(eq=False)
class _Window:
    """Bytes [start, stop) of a file, in a buffer or on their way there (filling).

    asked: up to where they were copied from. follows: reading came here from the window before.
    sent: marks the last copy out of it. turn: when it was last of use.
    """

    buffer: Tensor
    file: TensorFile | None = None
    start: int = 0
    stop: int = 0
    asked: int = 0
    follows: bool = False
    filling: Future[None] | None = None
    sent: torch.cuda.Event | None = None
    turn: int = 0

    def holds(self, file: TensorFile, position: int) -> bool:
        return self.file is file and self.start <= position < self.stop

    @property
    def done(self) -> bool:
        """Nothing of it is expected to be asked for any more."""
        return self.file is None or self.asked >= self.stop

    def wait(self) -> None:
        """Until its bytes are there. Raises what reading them raised; then it holds nothing."""
        if self.filling is None:
            return
        try:
            self.filling.result()
        except Exception:
            self.file = self.filling = None
            raise
        self.filling = None


class StagedReader:
    """Copies ranges of open files into tensors on one device. One thread; close it when done.

    Raises RuntimeFailure (`load.out_of_host_memory`) where the system gives no pinned memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._windows = [_Window(buffer) for buffer in _buffers(device.type == "cuda")]
        self._turn = 0
        self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="read-ahead")

    def copy(self, file: TensorFile, start: int, out: Tensor) -> None:
        """Bytes from `start` on into `out`, a contiguous uint8 tensor on the device. Enqueued on
        the current stream. Raises CheckpointError for a file that shrank or cannot be read."""
        position, done = start, 0
        while done < out.numel():
            window = self._window(file, position, start + out.numel())
            count = min(window.stop - position, out.numel() - done)
            offset = position - window.start
            part = window.buffer[offset : offset + count]
            out[done : done + count].copy_(part, non_blocking=True)
            if self.device.type == "cuda":
                window.sent = window.sent or torch.cuda.Event()
                window.sent.record()
            position, done = position + count, done + count
            window.asked = max(window.asked, position)

    def close(self) -> None:
        """Waits for everything that travels, then gives the buffers back."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for window in self._windows:
            if window.sent is not None:
                window.sent.synchronize()
        self._windows.clear()

    def _window(self, file: TensorFile, position: int, wanted: int) -> _Window:
        """The window of a position, filled. wanted: up to where bytes are sure to be asked for."""
        self._turn += 1
        window = self._holding(file, position)
        if window is None:
            before = next((w for w in self._windows if w.file is file and w.stop == position), None)
            window = self._start(self._free(), file, position, wanted, before)
        window.turn = self._turn
        self._look_ahead(file, window, wanted)
        window.wait()
        return window

    def _holding(self, file: TensorFile, position: int) -> _Window | None:
        return next((w for w in self._windows if w.holds(file, position)), None)

    def _look_ahead(self, file: TensorFile, window: _Window, wanted: int) -> None:
        """Fills what comes next: what is wanted, and where reading is sequential what may be. That
        takes no window away from another strand."""
        for _ in range(AHEAD):
            if window.stop >= file.size or not (window.follows or window.stop < wanted):
                return
            following = self._holding(file, window.stop)
            if following is None:
                idle = self._idle()
                if idle is None:
                    return
                following = self._start(idle, file, window.stop, wanted, window)
            following.turn = self._turn
            window = following

    def _start(
        self, free: _Window, file: TensorFile, start: int, wanted: int, before: _Window | None
    ) -> _Window:
        """Begins to fill a window; twice as large as the one before it, or as is wanted."""
        size = SMALLEST if before is None else 2 * (before.stop - before.start)
        stop = min(start + min(max(size, wanted - start), LARGEST), file.size)
        if free.sent is not None:
            free.sent.synchronize()
        free.file, free.start, free.stop, free.asked = file, start, stop, start
        free.follows = before is not None
        buffer = free.buffer[: stop - start].numpy()
        free.filling = self._pool.submit(file.pread, buffer, start)
        return free

    def _idle(self) -> _Window | None:
        """The window that has been of no use for longest, if there is one."""
        idle = [w for w in self._windows if w.done and w.turn < self._turn]
        return min(idle, key=lambda w: w.turn, default=None)

    def _free(self) -> _Window:
        """An idle window, or else the one that was of use longest ago."""
        idle = self._idle()
        if idle is None:
            idle = min(self._windows, key=lambda w: w.turn)
            if idle.filling is not None:  # nobody asked for it: nobody is told what became of it
                idle.filling.exception()
                idle.filling = None
        return idle


def _buffers(pinned: bool) -> list[Tensor]:
    """Each of a power of two, which is what PyTorch would round it up to."""
    try:
        return [torch.empty(LARGEST, dtype=torch.uint8, pin_memory=pinned) for _ in range(BUFFERS)]
    except RuntimeError as error:  # the driver has no type of its own for this
        if "out of memory" not in str(error).lower():
            raise
        raise RuntimeFailure(
            "load.out_of_host_memory",
            f"The system gave no {BUFFERS * LARGEST / 1e6:.0f} MB of memory (its own, not the"
            " GPU's) to read the model's files through.",
            "Close other programs, then load the model again.",
        ) from error
