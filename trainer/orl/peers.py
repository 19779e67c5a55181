"""The processes that share an update's work, as the learner sees them.

Knows how work is dealt out and put together again, and the case of one process. How processes talk
is `trainer.parallel`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Peers(Protocol):
    """rank: of this process, from 0; size: of them all."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def together(self, work: Callable[[], T]) -> list[T]:
        """Every process does its work; what each got, by rank. What one raises, all raise."""
        ...

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors, of the same shapes everywhere, by their sums over all processes."""
        ...


class Alone:
    """One process."""

    rank = 0
    size = 1

    def together(self, work: Callable[[], T]) -> list[T]:
        return [work()]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """The sums are what is there."""


ALONE: Peers = Alone()


def share(count: int, rank: int, size: int, group: int = 1) -> list[int]:
    """Which of `count` things a process takes: whole groups in turn."""
    return [n for n in range(count) if n // group % size == rank]


def put_together(parts: Sequence[Sequence[T]], group: int = 1) -> list[T]:
    """What the processes made of their shares, in the order of the whole."""
    count = sum(len(part) for part in parts)
    placed: dict[int, T] = {}
    for rank, part in enumerate(parts):
        placed.update(zip(share(count, rank, len(parts), group), part, strict=True))
    return [placed[n] for n in range(count)]
