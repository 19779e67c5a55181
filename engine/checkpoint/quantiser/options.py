"""What can be asked of the quantiser. Knows defaults and limits, and does nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.checkpoint.quantiser.choice import Choice
from engine.checkpoint.quantiser.rules import Layout

SHARD_BYTES = 4_000_000_000


@dataclass(frozen=True)
class QuantiseOptions:
    """layout: of the copy. choice: which modules become NVFP4.

    shared_scales: gate and up of one MLP (and query, key and value) get one second-level scale, the
    larger; programs that fuse them at load keep only one, so without this they may lose accuracy.
    shard_bytes: a weight file holds about this much. restart: throw an unfinished copy away instead
    of continuing it.
    """

    layout: Layout = "modelopt"
    choice: Choice = field(default_factory=Choice)
    shared_scales: bool = True
    shard_bytes: int = SHARD_BYTES
    restart: bool = False
