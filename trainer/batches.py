"""Which blocks of which examples go into a training step: packing examples into fixed windows.

Knows examples as numbers of blocks and where their answer begins and stops. Knows no text, no
noise and no device: a `Plan` is a table of block numbers, one entry for each 32-token block of the
batch, so that the shape of a step never changes. Deterministic: the same state gives the same
plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.shards import Examples

ORDERS = 4096  # more than the blocks of any example; see `trainer.staircase.block_codes`
MAX_MISSES = 24  # examples in a row that fit nowhere before a batch is called full

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Plan:
    """One batch as int32 tables [windows, G], G blocks in a window.

    block: number of the block in the example store (0 for padding). position: the block's index in
    its example. segment: which example of the window it belongs to; padding has segments of its
    own. noisy: 1 where the block is a noisy copy. mate: for a second copy, the flat index of the
    first copy of the same block, else the block's own. answer: first column that is answer (block
    length if none; padding too). stop: first column after the stop token (block length if none).
    examples: how many examples are inside.
    """

    block: Ints
    position: Ints
    segment: Ints
    noisy: Ints
    mate: Ints
    answer: Ints
    stop: Ints
    examples: int

    def tables(self) -> Ints:
        """int32 [7, windows, G] in the order of the fields."""
        return np.stack(
            (
                self.block,
                self.position,
                self.segment,
                self.noisy,
                self.mate,
                self.answer,
                self.stop,
            )
        )


@dataclass
class RowTable:
    """What the packer knows of the examples in the store, grown shard by shard."""

    first: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    blocks: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    answer: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    stop: Ints = field(default_factory=lambda: np.zeros(0, np.int32))

    def __len__(self) -> int:
        return len(self.first)

    def append(self, examples: Examples, first_block: int, keep: npt.NDArray[np.bool_]) -> None:
        """Adds the kept examples of a shard whose tokens begin at block `first_block`."""
        self.first = np.concatenate((self.first, examples.first_blocks()[keep] + first_block))
        self.blocks = np.concatenate((self.blocks, examples.blocks[keep]))
        self.answer = np.concatenate((self.answer, examples.answer[keep]))
        self.stop = np.concatenate((self.stop, examples.stop[keep]))


@dataclass(frozen=True)
class Window:
    """windows: rows of a batch; blocks: blocks of a row; copies: noisy copies of an answer."""

    windows: int
    blocks: int
    block_length: int
    copies: int

    def size(self, blocks: Ints, answer: Ints) -> Ints:
        """Blocks that examples take: clean ones but the last, which nobody sees, and the copies of
        every block that holds answer."""
        answered = blocks - answer // self.block_length
        return (blocks - 1 + self.copies * answered).astype(np.int32)

    def fits(self, examples: Examples) -> npt.NDArray[np.bool_]:
        """bool [n]: whether an example can be packed at all."""
        small = self.size(examples.blocks, examples.answer) <= self.blocks
        return small & (examples.blocks < ORDERS - 1)


class Packer:
    """Draws examples in order and packs them into windows, best fit, without splitting any.

    The first epoch takes examples as they come (so it can start before all are made); later ones
    are shuffled by (seed, epoch). Examples that did not fit wait for the next batch.

    more: appends further examples to the table, False when there are none; called when the first
    epoch reaches the table's end.
    """

    def __init__(
        self, rows: RowTable, window: Window, seed: int, more: Callable[[], bool] | None = None
    ) -> None:
        self.rows = rows
        self.window = window
        self.seed = seed
        self.more = more or (lambda: False)
        self.epoch = 0
        self.offset = 0
        self.waiting: list[int] = []
        self._order: npt.NDArray[np.int64] | None = None

    def state(self) -> dict[str, Any]:
        """The data cursor, JSON-able."""
        return {"epoch": self.epoch, "offset": self.offset, "waiting": list(self.waiting)}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a saved cursor, making the examples it needs."""
        self.epoch, self.offset = int(state["epoch"]), int(state["offset"])
        self.waiting = [int(row) for row in state["waiting"]]
        self._order = None
        while len(self.rows) <= max([self.offset, *self.waiting]) or self.epoch:
            if not self.more():
                break

    @property
    def epochs_seen(self) -> float:
        return self.epoch + self.offset / max(1, len(self.rows))

    def _next_row(self) -> int:
        if self.epoch == 0:
            if self.offset < len(self.rows) or self.more():
                self.offset += 1
                return self.offset - 1
            self.epoch, self.offset = 1, 0
        if self.offset == len(self.rows):
            self.epoch, self.offset, self._order = self.epoch + 1, 0, None
        if self._order is None:
            rng = np.random.default_rng((self.seed, self.epoch))
            self._order = rng.permutation(len(self.rows))
        self.offset += 1
        return int(self._order[self.offset - 1])

    def next(self) -> Plan:
        """The next batch."""
        if not len(self.rows) and not self.more():
            raise RuntimeError("there are no examples to train on")
        bins: list[list[int]] = [[] for _ in range(self.window.blocks + 1)]
        bins[self.window.blocks] = list(range(self.window.windows))  # keyed by blocks left
        chosen: list[int] = []
        homes: list[int] = []
        misses: list[int] = []
        pending, self.waiting = self.waiting, []
        while len(misses) < MAX_MISSES:
            row = pending.pop(0) if pending else self._next_row()
            size = int(self._size(row))
            left = next((n for n in range(size, self.window.blocks + 1) if bins[n]), None)
            if left is None:
                misses.append(row)
                continue
            home = bins[left].pop()
            bins[left - size].append(home)
            chosen.append(row)
            homes.append(home)
        self.waiting = misses + pending
        return self._tabulate(np.asarray(chosen), np.asarray(homes))

    def _size(self, row: int) -> int:
        answered = self.rows.blocks[row] - self.rows.answer[row] // self.window.block_length
        return self.rows.blocks[row] - 1 + self.window.copies * answered

    def _tabulate(self, chosen: npt.NDArray[np.int64], homes: npt.NDArray[np.int64]) -> Plan:
        """Expands examples and their windows to one entry a block, with array arithmetic alone."""
        length, copies = self.window.block_length, self.window.copies
        by_window = np.argsort(homes, kind="stable")
        chosen, homes = chosen[by_window], homes[by_window]
        blocks, answer = self.rows.blocks[chosen], self.rows.answer[chosen]
        clean, answered = blocks - 1, blocks - answer // length
        sizes = clean + copies * answered

        example = np.repeat(np.arange(len(chosen)), sizes)  # which chosen example an entry is of
        within = np.arange(len(example)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        noisy = within >= clean[example]
        copied = np.where(noisy, within - clean[example], 0)
        copy = copied // answered[example]
        first_answered = (answer // length)[example]
        position = np.where(noisy, first_answered + copied % answered[example], within)

        starts = np.searchsorted(homes, homes)  # first example of the same window
        before = np.cumsum(sizes) - sizes
        column = (before - before[starts])[example] + within
        flat = homes[example] * self.window.blocks + column
        # Odd copies take the complement of the copy before them.
        mate = flat - np.where(copy % 2 == 1, answered[example], 0)
        from_start = position * length
        values = {
            "block": self.rows.first[chosen][example] + position,
            "position": position,
            "segment": np.arange(len(chosen))[example] - starts[example],
            "noisy": noisy,
            "mate": mate,
            "answer": np.clip(answer[example] - from_start, 0, length),
            "stop": np.clip(self.rows.stop[chosen][example] - from_start, 0, length),
        }
        return self._plan(flat, values, len(chosen))

    def _plan(
        self, flat: npt.NDArray[np.int64], values: dict[str, npt.NDArray[Any]], examples: int
    ) -> Plan:
        windows, blocks = self.window.windows, self.window.blocks
        count = windows * blocks
        padding = {
            "segment": np.arange(count) % blocks + blocks,
            "mate": np.arange(count),
            "answer": np.full(count, self.window.block_length),
            "stop": np.full(count, self.window.block_length),
        }
        tables: dict[str, Ints] = {}
        for name, given in values.items():
            table = padding.get(name, np.zeros(count)).astype(np.int32)
            table[flat] = given
            tables[name] = table.reshape(windows, blocks)
        return Plan(**tables, examples=examples)
