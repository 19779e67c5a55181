"""How fast this machine's memory can be read: measured once, kept with the device's name.

It knows a copy in torch and a clock. It refuses to look a device up in a table.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path

from app.backend.files import read_json_object, write_atomically
from app.backend.hub.fit import NOT_MEASURED, Bandwidth

VERSION = 1
CPU_BYTES = 256 << 20  # several times any cache
GPU_BYTES = 1 << 30
ROUNDS = 7


def measure(device: str, size: int | None = None, rounds: int = ROUNDS) -> float:
    """Bytes per second of copying `size` bytes on "cpu" or "cuda:0", reads and writes counted:
    the median of some copies. Imports torch and takes about a second: not for the GUI's thread.
    Raises what torch raises when there is no room for two such buffers."""
    import torch

    on_gpu = device != "cpu"
    count = size or (GPU_BYTES if on_gpu else CPU_BYTES)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)  # both written once, so that their pages are there
    speeds = []
    for _ in range(rounds):
        if on_gpu:
            torch.cuda.synchronize(device)
        begun = time.perf_counter()
        target.copy_(source)
        if on_gpu:
            torch.cuda.synchronize(device)
        speeds.append(2 * count / (time.perf_counter() - begun))
    return statistics.median(speeds)


def keep(store: Path, device_name: str, bytes_per_second: float) -> None:
    """Raises OSError."""
    known = _read(store)
    known[device_name] = bytes_per_second
    document = {"version": VERSION, "bytes_per_second": known}
    write_atomically(store, json.dumps(document, indent=1) + "\n")


def known(store: Path, device_name: str) -> Bandwidth:
    """What was measured on a device of this name, or that nothing was."""
    value = _read(store).get(device_name)
    return NOT_MEASURED if value is None else Bandwidth(value)


def _read(store: Path) -> dict[str, float]:
    try:
        document = read_json_object(store)
        if document["version"] != VERSION:
            return {}
        found = document["bytes_per_second"].items()
        return {str(k): float(v) for k, v in found if 0 < float(v) < math.inf}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}  # a measurement can be made again
