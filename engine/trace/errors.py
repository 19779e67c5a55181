"""What can be wrong with a trace file, worded for the person who opens it."""

from __future__ import annotations

from engine.errors import UnblurError


class TraceError(UnblurError):
    """A trace cannot be read, written or continued. Codes begin with `trace.`."""
