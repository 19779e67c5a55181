"""Philox4x32-10, the counter-based random generator of every draw the engine makes.

A draw depends on (seed, counter) alone: not on the device, the runtime, the batch, or on what was
drawn before. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the
test checks the published known answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> Tensor:
    """Ten rounds. counter and key words are int64 tensors holding uint32 values, broadcast
    together.

    Returns int64 [..., 4], each in [0, 2^32).
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for round_index in range(10):
        if round_index:
            k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
        # int64 products wrap, but both 32-bit halves survive: the mask undoes the sign extension.
        product0, product1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        high0, low0 = (product0 >> 32) & _MASK, product0 & _MASK
        high1, low1 = (product1 >> 32) & _MASK, product1 & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return torch.stack((c0, c1, c2, c3), dim=-1)


def uniform(seed: Tensor, position: Tensor, step: Tensor, stream: int = 0) -> Tensor:
    """float32 in (0, 1), one per position: the first word of Philox at (position, step, stream, 0),
    keyed by seed.

    seed int64 (its low and high 32 bits are the key), position int64 (absolute), step int64;
    broadcast together.
    """
    zero = torch.zeros_like(position)
    words = philox4x32(
        (position, step.expand_as(position), zero + stream, zero),
        (seed & _MASK, (seed >> 32) & _MASK),
    )
    # 24 bits, centred: never 0 and never 1, and exact in float32.
    return ((words[..., 0] >> 8).to(torch.float32) + 0.5) * 2.0**-24
