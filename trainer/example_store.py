"""Training examples on the device: their tokens, and the model's own latest mistakes beside them.

Knows blocks by number. Grows shard by shard while training runs. The table of mistakes is what
makes editing noise look like the errors of parallel decoding: where the model last preferred a
wrong token for a masked position, that token is kept and may be put on the canvas later.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainer.batches import Packer, Plan, RowTable, Window
from trainer.noise import NO_GUESS, DevicePlan
from trainer.shards import Examples, ShardFeed

BLOCKS_PER_EXAMPLE = 5  # first guess of the store's size; it grows when that was too little


class ExampleStore:
    """tokens, guess int16 [capacity, L] on the device; `rows` says where examples lie. Block 0
    belongs to no example: padding reads it, and writes that must go nowhere go there."""

    def __init__(self, feed: ShardFeed, window: Window, device: torch.device) -> None:
        self.feed = feed
        self.window = window
        self.device = device
        self.rows = RowTable()
        self.used = 1
        self.refused = 0  # examples longer than a window
        capacity = feed.plan.examples * BLOCKS_PER_EXAMPLE
        self.tokens = self._empty(capacity, 0)
        self.guess = self._empty(capacity, NO_GUESS)

    def _empty(self, blocks: int, value: int) -> Tensor:
        shape = (blocks, self.window.block_length)
        return torch.full(shape, value, dtype=torch.int16, device=self.device)

    def more(self) -> bool:
        """Takes the next shard, waiting for it; False when there are no more."""
        examples = self.feed.next()
        if examples is None:
            return False
        self.add(examples)
        return True

    def add(self, examples: Examples) -> None:
        """Copies a shard to the device and lists the examples that fit a window."""
        count = len(examples.tokens)
        if self.used + count > len(self.tokens):
            extra = max(count, len(self.tokens) // 4)
            self.tokens = torch.cat((self.tokens, self._empty(extra, 0)))
            self.guess = torch.cat((self.guess, self._empty(extra, NO_GUESS)))
        fits = self.window.fits(examples)
        self.tokens[self.used : self.used + count] = torch.from_numpy(examples.tokens).to(
            self.device
        )
        self.rows.append(examples, self.used, fits)
        self.refused += int(np.count_nonzero(~fits))
        self.used += count

    def clean(self, plan: DevicePlan) -> Tensor:
        """int64 [N, L]: the true tokens of a plan's blocks."""
        return self.tokens[plan.block].long()

    def guesses(self, plan: DevicePlan) -> Tensor:
        """int64 [N, L]: the model's latest mistakes there, `NO_GUESS` where there is none."""
        return self.guess[plan.block].long()

    def remember(
        self, plan: DevicePlan, slots: Tensor, guess: Tensor, targets: Tensor, masked: Tensor
    ) -> None:
        """Keeps wrong choices: slots int64 [S], flat positions of the batch (N * L: empty); guess
        int64 [S] the model's choice there; targets int64, masked bool [N, L]."""
        length = self.window.block_length
        twin = plan.mate != torch.arange(len(plan.mate), device=self.device)
        # Where both copies of a block mask a token, the first one's choice is kept.
        counted = masked & ~(masked[plan.mate] & twin.unsqueeze(1))
        safe = slots.clamp(max=targets.numel() - 1)
        wrong = (slots < targets.numel()) & counted.flatten()[safe]
        wrong &= guess != targets.flatten()[safe]
        block = torch.where(wrong, plan.block[safe // length], 0)
        self.guess[block, safe % length] = guess.to(torch.int16)


def fixed_batches(
    feed: ShardFeed, window: Window, device: torch.device, count: int, seed: int
) -> tuple[ExampleStore, list[Plan]]:
    """A store with every example of a small plan, and the first `count` batches drawn from it."""
    store = ExampleStore(feed, window, device)
    packer = Packer(store.rows, window, seed, store.more)
    return store, [packer.next() for _ in range(count)]
