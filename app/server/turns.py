"""Whose turn it is: one reply at a time, first come first served, and a queue that has an end.

It knows tickets and waiting. It refuses to know what a turn is used for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.server.errors import SERVER, ApiError

LOOK_SECONDS = 0.1  # how often somebody who waits is looked at
QUEUE = 8


class ClientGone(Exception):
    """Nobody listens any more: there is nothing left to answer."""


class Turns:
    """Safe for several threads. longest: how many may wait."""

    def __init__(self, longest: int = QUEUE) -> None:
        self._longest = longest
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()  # the first one has the turn

    @property
    def waiting(self) -> int:
        with self._changed:
            return max(0, len(self._tickets) - 1)

    @property
    def busy(self) -> bool:
        with self._changed:
            return bool(self._tickets)

    @contextmanager
    def turn(self, check: Callable[[], None]) -> Iterator[None]:
        """Waits for the turn, and has it inside. `check` is called while waiting and ends it by
        raising. Raises ApiError 429 at once when too many wait."""
        ticket = object()
        with self._changed:
            if len(self._tickets) > self._longest:
                raise queue_full(self._longest)
            self._tickets.append(ticket)
        try:
            while True:
                with self._changed:
                    if self._tickets[0] is ticket:
                        break
                    self._changed.wait(LOOK_SECONDS)
                check()
            yield
        finally:
            with self._changed:
                self._tickets.remove(ticket)
                self._changed.notify_all()


def queue_full(longest: int) -> ApiError:
    return ApiError(
        429,
        "queue_full",
        f"{longest} requests are waiting already.",
        "Try again when some of them are answered.",
        kind=SERVER,
        headers={"Retry-After": "5"},
    )
