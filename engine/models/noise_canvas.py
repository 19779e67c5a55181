"""The numbers of a canvas that is made of noise, and of the sampler that renoises it.

Knows no family, no torch and no file. Source: models.md 2.5.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoiseCanvas:
    """A canvas of random tokens instead of masks, and the sampler that renoises it.

    entropy_bound: nats that the kept positions of a step may hold together. t_min, t_max: logits
    are divided by a temperature that falls between them. stability: steps for which the best tokens
    must not change. confidence: mean entropy in nats below which a stable canvas is finished.
    """

    entropy_bound: float = 0.1
    t_min: float = 0.4
    t_max: float = 0.8
    stability: int = 1
    confidence: float = 0.005
