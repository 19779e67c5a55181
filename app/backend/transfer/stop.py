"""A stop that is heard at once, even by a thread that waits for the network.

It knows a flag and the sockets to shut. It refuses to know why.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from app.backend.transfer.faults import Interrupted


class Stop:
    """Set once, from any thread. A blocked read on a watched socket returns at once then."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        with self._lock:
            self._event.set()
            for watched in self._sockets:
                with contextlib.suppress(OSError):  # it may have been closed by its own thread
                    watched.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """Raises Interrupted once it was set."""
        if self._event.is_set():
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Sleeps, or raises Interrupted as soon as it is set."""
        if self._event.wait(seconds):
            raise Interrupted

    @contextlib.contextmanager
    def watching(self, watched: socket.socket) -> Iterator[None]:
        with self._lock:
            self._sockets.add(watched)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._sockets.discard(watched)
