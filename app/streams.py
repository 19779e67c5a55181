"""Standard streams that always exist: a windowed build has none, and libraries that print would
crash.

It knows `sys.stdout` and `sys.stderr`. It imports nothing else of the app, because it must run
first.
"""

from __future__ import annotations

import io
import sys


class NullStream(io.TextIOBase):
    """Takes everything, keeps nothing, and is not a terminal."""

    encoding = "utf-8"  # pyright: ignore[reportIncompatibleMethodOverride]

    def writable(self) -> bool:
        return True

    def write(self, s: str, /) -> int:
        return len(s)


def ensure_streams() -> None:
    """Replaces a missing `sys.stdout` or `sys.stderr` by a `NullStream`."""
    if sys.stdout is None:
        sys.stdout = NullStream()
    if sys.stderr is None:
        sys.stderr = NullStream()
