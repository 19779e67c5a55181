"""CUDA streams by purpose, the same ones for the life of the process.

Knows that libraries keep a workspace for every stream they were used on (cuBLAS: 32 MiB on a recent
GPU) and never give it back: streams made anew with every loaded model would leak one each.
"""

from __future__ import annotations

from functools import lru_cache

import torch


def stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """The device's stream for a purpose ("capture", "read", "beside")."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return _stream(index, purpose)


@lru_cache
def _stream(index: int, purpose: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)
