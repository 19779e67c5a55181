"""Reads files through pinned memory straight onto a GPU, reading ahead while earlier bytes travel.

Knows windows, read-ahead and when a window may be overwritten. Knows nothing of tensors' meaning;
what the bytes are checked for is `engine.checkpoint.values`' business. On a CPU it is a plain
buffered reader (which the tests use).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.tensor_file import TensorFile

LARGEST = 64 << 20  # bytes of a window once reading is sequential
SMALLEST = 2 << 20  # of the first window after a jump: what lies behind it may never be asked for
BUFFERS = 3  # one travels, one is copied from, one is being filled


@dataclass(eq=False)
class _Window:
    """Bytes [start, stop) of a file in a buffer. sent: marks the last copy out of it."""

    buffer: Tensor
    file: TensorFile | None = None
    start: int = 0
    stop: int = 0
    sent: torch.cuda.Event | None = None

    def holds(self, file: TensorFile, position: int) -> bool:
        return self.file is file and self.start <= position < self.stop


class StagedReader:
    """Copies ranges of open files into tensors on one device. One thread; close it when done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        pinned = device.type == "cuda"
        self._windows = [
            _Window(torch.empty(LARGEST, dtype=torch.uint8, pin_memory=pinned))
            for _ in range(BUFFERS)
        ]
        self._current = self._windows[0]
        self._ahead: Future[_Window] | None = None
        self._size = SMALLEST
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")

    def copy(self, file: TensorFile, start: int, out: Tensor) -> None:
        """Bytes from `start` on into `out`, a contiguous uint8 tensor on the device. Enqueued on
        the current stream. Raises CheckpointError for a file that shrank or cannot be read."""
        position, done = start, 0
        while done < out.numel():
            window = self._window(file, position, out.numel() - done)
            count = min(window.stop - position, out.numel() - done)
            offset = position - window.start
            part = window.buffer[offset : offset + count]
            out[done : done + count].copy_(part, non_blocking=True)
            if self.device.type == "cuda":
                window.sent = window.sent or torch.cuda.Event()
                window.sent.record()
            position, done = position + count, done + count

    def close(self) -> None:
        """Waits for everything that travels, then gives the buffers back."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for window in self._windows:
            if window.sent is not None:
                window.sent.synchronize()
        self._windows.clear()

    def _window(self, file: TensorFile, position: int, wanted: int) -> _Window:
        if self._current.holds(file, position):
            return self._current
        follows = self._current.file is file and self._current.stop == position
        ahead = None if self._ahead is None else self._ahead.result()
        self._ahead = None
        if ahead is not None and ahead.holds(file, position):
            window = ahead
        else:
            self._size = min(2 * self._size, LARGEST) if follows else SMALLEST
            size = max(self._size, min(wanted, LARGEST))
            window = self._fill(self._free(), file, position, size)
        self._current = window
        if follows and window.stop < file.size:
            self._size = LARGEST
            self._ahead = self._pool.submit(self._fill, self._free(), file, window.stop, self._size)
        return window

    def _free(self) -> _Window:
        """A window that is neither copied from nor still travelling; waits for the oldest."""
        busy = (self._current, None if self._ahead is None else self._ahead.result())
        window = next(w for w in self._windows if w not in busy)
        self._windows.remove(window)
        self._windows.append(window)
        if window.sent is not None:
            window.sent.synchronize()
        return window

    def _fill(self, window: _Window, file: TensorFile, start: int, size: int) -> _Window:
        stop = min(start + size, file.size)
        window.file = None  # until its bytes are there
        file.pread(window.buffer[: stop - start].numpy(), start)
        window.file, window.start, window.stop = file, start, stop
        return window
