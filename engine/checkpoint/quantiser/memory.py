"""The largest resident memory this process has had, as the system counts it."""

from __future__ import annotations

import sys


def peak_memory() -> int:
    """Bytes, mapped pages included."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
