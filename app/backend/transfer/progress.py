"""How far a download is, how fast, and how long it will take; in memory that does not grow.

It knows counts and a clock. It refuses to guess: no speed is known in the first second, and no time
left while nothing arrives.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

SLICE = 0.25  # seconds a count covers
SLICES = 40  # 10 s in all
FIRST = 1.0  # seconds before a speed is given
CHECKING = "Checking what was received before."


class Speedometer:
    """Bytes per second over the last 10 s. Not for several threads at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._slices: deque[tuple[int, int]] = deque(maxlen=SLICES)  # (number of slice, bytes)

    def add(self, count: int) -> None:
        now = self._clock()
        if self._begun is None:
            self._begun = now
        number = int(now / SLICE)
        if self._slices and self._slices[-1][0] == number:
            self._slices[-1] = (number, self._slices[-1][1] + count)
        else:
            self._slices.append((number, count))

    def rate(self) -> float | None:
        """None until a second of arrivals is known."""
        now = self._clock()
        if self._begun is None or now - self._begun < FIRST:
            return None
        oldest = int(now / SLICE) - SLICES
        total = sum(count for number, count in self._slices if number > oldest)
        return total / min(now - self._begun, SLICE * SLICES)


class Progress:
    """The listener of one download's files (`fetch.Listener`). Safe for several threads."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self._lock = threading.Lock()
        self._done = 0
        self._speed = Speedometer(clock)
        self._waiting = ""

    def kept(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._waiting = CHECKING

    def received(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._speed.add(count)
            self._waiting = ""

    def dropped(self, count: int) -> None:
        with self._lock:
            self._done -= count

    def waiting(self, reason: str, seconds: float) -> None:
        with self._lock:
            self._waiting = f"{reason} Trying again in {seconds:.0f} s."

    @property
    def done(self) -> int:
        with self._lock:
            return self._done

    def figures(self) -> tuple[int, float | None, float | None, str]:
        """Bytes done, bytes per second, seconds left, and why it waits ("" when it does not)."""
        with self._lock:
            rate = self._speed.rate()
            left = (self.total - self._done) / rate if rate else None
            return self._done, rate, left, self._waiting
