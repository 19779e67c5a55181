"""The static buffers of one block being denoised, and the settings that steer it, one row per
sequence.

Everything a decoding rule reads or writes lives here as device tensors that are mutated in place,
so that the same step can run eagerly or be captured once and replayed for every request. Knows no
maths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.types import DecodeSettings

EDITING_OFF = float(
    "inf"
)  # no confidence exceeds it; the seam's None maps here, never to a number a person can type
HISTORY = 64  # block states remembered by the anti-loop guard of LLaDA2.2


@dataclass
class RowSettings:
    """`DecodeSettings` of each row as device tensors [B, 1]; integers int64, the rest float32.

    The tensors are static: `load` overwrites them in place, so that a captured step reads the
    settings of the request that is running.
    noise float32 [5, B, 1]: what `NoiseCanvas` holds.
    filtered: whether any row uses top-k or top-p (a host fact: filtering costs a sort of the
    vocabulary).
    sampled: whether any row has a temperature above 0 (a host fact, too).
    """

    reals: Tensor  # float32 [4, B, 1]
    counts: Tensor  # int64 [5, B, 1]
    noise: Tensor  # float32 [5, B, 1]
    filtered: bool = False
    sampled: bool = False

    @classmethod
    def allocate(cls, batch: int, device: torch.device) -> RowSettings:
        return cls(
            torch.zeros(4, batch, 1, dtype=torch.float32, device=device),
            torch.zeros(5, batch, 1, dtype=torch.int64, device=device),
            torch.zeros(5, batch, 1, dtype=torch.float32, device=device),
        )

    @classmethod
    def of(cls, rows: Sequence[DecodeSettings], device: torch.device) -> RowSettings:
        settings = cls.allocate(len(rows), device)
        settings.load(rows)
        return settings

    def load(self, rows: Sequence[DecodeSettings]) -> None:
        """Overwrites the tensors in place with the settings of B rows."""
        editing = [
            EDITING_OFF if r.editing_threshold is None else r.editing_threshold for r in rows
        ]
        reals = [
            [r.threshold for r in rows],
            editing,
            [r.temperature for r in rows],
            [r.top_p for r in rows],
        ]
        counts = [
            [r.max_post_steps for r in rows],
            [r.min_transfer for r in rows],
            [r.steps for r in rows],
            [r.top_k for r in rows],
            [r.seed for r in rows],
        ]
        self.reals.copy_(torch.tensor(reals, dtype=torch.float32).unsqueeze(-1))
        self.counts.copy_(torch.tensor(counts, dtype=torch.int64).unsqueeze(-1))
        canvases = [r.noise for r in rows]
        noise = [
            [c.entropy_bound for c in canvases],
            [c.t_min for c in canvases],
            [c.t_max for c in canvases],
            [c.confidence for c in canvases],
            [c.stability for c in canvases],
        ]
        self.noise.copy_(torch.tensor(noise, dtype=torch.float32).unsqueeze(-1))
        self.sampled = self.filtered = False
        self.expect(rows)

    def expect(self, settings: Sequence[DecodeSettings]) -> None:
        """Some row uses these, now or later."""
        self.sampled |= any(r.temperature > 0 for r in settings)
        self.filtered |= any(r.temperature > 0 and (r.top_k > 0 or r.top_p < 1.0) for r in settings)

    @property
    def entropy_bound(self) -> Tensor:
        return self.noise[0]

    @property
    def t_min(self) -> Tensor:
        return self.noise[1]

    @property
    def t_max(self) -> Tensor:
        return self.noise[2]

    @property
    def mean_entropy(self) -> Tensor:
        return self.noise[3]

    @property
    def stability(self) -> Tensor:
        return self.noise[4]

    @property
    def threshold(self) -> Tensor:
        return self.reals[0]

    @property
    def editing_threshold(self) -> Tensor:
        return self.reals[1]

    @property
    def temperature(self) -> Tensor:
        return self.reals[2]

    @property
    def top_p(self) -> Tensor:
        return self.reals[3]

    @property
    def max_post_steps(self) -> Tensor:
        return self.counts[0]

    @property
    def min_transfer(self) -> Tensor:
        return self.counts[1]

    @property
    def steps(self) -> Tensor:
        return self.counts[2]

    @property
    def top_k(self) -> Tensor:
        return self.counts[3]

    @property
    def seed(self) -> Tensor:
        return self.counts[4]


@dataclass
class BlockState:
    """One block per row. Shapes: [B, L] for positions, [B, 1] for counters and flags.

    previous, tokens int64: the finished block before this one, and the canvas. prompt bool: prompt
    positions. start int64: absolute position of the block. step, post int64: forwards taken;
    forwards since the last mask was filled.
    finished bool: the rule is done with this row's block (its writes are suppressed from then on).
    settled bool: the last forward's input was the final block, so its KV is final. converged bool:
    False when a cap ended it.
    nonfinite bool: a forward gave NaN or infinite logits. proposal int64, confidence, entropy
    float32: the last forward's best guess, the probability of the token shown, and the entropy in
    nats. changed bool: written in this step.
    edited bool: replaced at least once in this block. replaced int64: the token replaced in this
    step, -1 elsewhere. original bool, initial_masks int64, seen int64 [B, HISTORY, L], seen_count
    int64: LLaDA2.2 bookkeeping.
    """

    previous: Tensor
    tokens: Tensor
    prompt: Tensor
    start: Tensor
    step: Tensor
    post: Tensor
    finished: Tensor
    settled: Tensor
    converged: Tensor
    nonfinite: Tensor
    proposal: Tensor
    confidence: Tensor
    entropy: Tensor
    changed: Tensor
    edited: Tensor
    replaced: Tensor
    original: Tensor
    initial_masks: Tensor
    seen: Tensor
    seen_count: Tensor

    @classmethod
    def allocate(cls, batch: int, length: int, device: torch.device) -> BlockState:
        def ints(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        def flags(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.bool, device=device)

        def reals(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float32, device=device)

        return cls(
            previous=ints(batch, length),
            tokens=ints(batch, length),
            prompt=flags(batch, length),
            start=ints(batch, 1),
            step=ints(batch, 1),
            post=ints(batch, 1),
            finished=flags(batch, 1),
            settled=flags(batch, 1),
            converged=flags(batch, 1),
            nonfinite=flags(batch, 1),
            proposal=ints(batch, length),
            confidence=reals(batch, length),
            entropy=reals(batch, length),
            changed=flags(batch, length),
            edited=flags(batch, length),
            replaced=ints(batch, length),
            original=flags(batch, length),
            initial_masks=ints(batch, 1),
            seen=ints(batch, HISTORY, length),
            seen_count=ints(batch, 1),
        )

    def begin(self, canvas: Tensor, prompt: Tensor, start: Tensor, mask_id: int) -> None:
        """Starts a block: the old canvas becomes `previous`, counters restart. `finished` is the
        caller's to set."""
        self.previous.copy_(self.tokens)
        self.tokens.copy_(canvas)
        self.prompt.copy_(prompt)
        self.start.copy_(start)
        self.original.copy_(canvas == mask_id)
        self.initial_masks.copy_(self.original.sum(-1, keepdim=True))
        counters = (self.step, self.post, self.seen_count)
        for buffer in (*counters, self.settled, self.nonfinite, self.edited):
            buffer.zero_()
        self.converged.fill_(True)
        self.replaced.fill_(-1)

    @property
    def positions(self) -> Tensor:
        """Absolute positions int64 [B, L]."""
        return self.start + torch.arange(self.tokens.shape[1], device=self.tokens.device)
