"""Memory of the machine and of its GPU: how much is free, and giving freed pages back.

Knows the allocators that keep what was freed (glibc's, and torch's on a GPU). Knows nothing of
models.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import psutil
import torch


def free_memory(device: torch.device) -> int:
    """Free bytes on the device, less what torch keeps of it for itself (`release_memory`)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def release_memory() -> None:
    """Collects garbage and returns freed pages: the allocator of glibc and the CUDA cache both keep
    them otherwise."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except (OSError, AttributeError):  # another C library, which has no such call
            return
