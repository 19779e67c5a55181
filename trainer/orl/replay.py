"""Replay of packed states with exactly the residual they consumed: one forward, three losses, one
backward.

Knows how a packed table becomes tensors and which position weighs what. No back-propagation
through time: what was consumed is a constant.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.runtime.tap import StateTap
from trainer.orl.losses import (
    anchor_loss,
    contraction_loss,
    judge_positions,
    prediction_loss,
    uncertain,
)
from trainer.orl.packing import Packed
from trainer.orl.recipe import Recipe
from trainer.orl.student import States, Student
from trainer.staircase import DenseStaircase, block_codes


class Replay:
    """Gradients of packed states on a student."""

    def __init__(self, student: Student, recipe: Recipe) -> None:
        self.student, self.recipe = student, recipe
        self._masks: dict[tuple[int, int], DenseStaircase] = {}

    def gradient(self, packed: Packed, tap: StateTap) -> dict[str, float]:
        """Adds a forward's gradient to the trained tensors; returns its share of every loss, and
        sums over open positions: how many, how many of them gated, their normalised entropy."""
        student, recipe = self.student, self.recipe
        device = student.device
        states = self.states(packed, tap)
        chosen = torch.from_numpy(np.flatnonzero(packed.open.reshape(-1))).to(device)

        def at(table: np.ndarray) -> Tensor:
            return torch.from_numpy(table.reshape(-1)).to(device)[chosen]

        targets, wanted, anchored = at(packed.target).long(), at(packed.wanted), at(packed.anchored)
        attend = self._attention(*packed.position.shape)
        frozen = None
        if recipe.asks_the_start:
            with torch.no_grad(), student.as_it_began() as start:
                frozen = student.hidden(start, states, attend).flatten(0, 1)[chosen]

        def start_head(h: Tensor) -> Tensor:
            with student.as_it_began() as start:
                return start.logits(h)

        hidden = student.hidden(student.model, states, attend).flatten(0, 1)[chosen]
        said = judge_positions(
            hidden,
            frozen,
            targets,
            student.model.logits,
            start_head,
            student.spec.mask_token_id,
        )
        gated = uncertain(said, targets, recipe.gate, recipe.gate_nats) & (wanted > 0)
        prediction = prediction_loss(said, gated, wanted)
        anchor = anchor_loss(said, gated, anchored, recipe.anchor_cap)
        contraction, entropies = self._contraction(packed, said.entropy, chosen)
        loss = (
            recipe.prediction * prediction
            + recipe.contraction * contraction
            + recipe.anchor * anchor
        )
        loss.backward()
        numbers = torch.stack(
            (
                loss.detach(),
                prediction.detach(),
                contraction.detach(),
                anchor.detach(),
                gated.sum().float(),
                entropies.detach(),
            )
        ).tolist()
        names = ("loss", "prediction", "aec", "kl", "gate_share", "entropy")
        return {**dict(zip(names, numbers, strict=True)), "positions": float(len(chosen))}

    def _contraction(
        self, packed: Packed, entropy: Tensor, chosen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The weighted loss of all pairs, and the sum of normalised entropies."""
        device, length = entropy.device, packed.ids.shape[-1]
        vocabulary = self.student.model.embedding.shape[0]
        pairs = torch.from_numpy(np.stack((packed.source, packed.next))).to(device)
        each, _ = contraction_loss(
            entropy, vocabulary, chosen // length, packed.position.size, pairs, self.recipe.rho
        )
        weight = torch.from_numpy(packed.pair_weight).to(device)
        total = entropy.detach().sum() / float(np.log(vocabulary))
        return (each * weight).sum(), total

    def states(self, packed: Packed, tap: StateTap) -> States:
        """A packed table on the device, with what each state consumed."""
        device = self.student.device
        windows, blocks, length = packed.ids.shape
        position = torch.from_numpy(packed.position).to(device).long().clamp_min(0)
        column = torch.arange(length, device=device)
        positions = (position.unsqueeze(-1) * length + column).flatten(1)
        ids = torch.from_numpy(packed.ids).to(device).long().flatten(1)
        expected, doubt = self._consumed(packed, tap)
        segment = torch.from_numpy(packed.segment).to(device)
        noisy = torch.from_numpy(packed.noisy).to(device)
        query, key = block_codes(segment, position, noisy)
        shape = (windows, blocks * length)
        if expected is not None and doubt is not None:
            expected, doubt = expected.view(*shape, -1), doubt.view(*shape, 1)
        return States(ids, positions, expected, doubt, query, key)

    def _consumed(self, packed: Packed, tap: StateTap) -> tuple[Tensor | None, Tensor | None]:
        """What every block's forward consumed: zero for clean blocks and references."""
        if tap.expected is None or tap.doubt is None:
            return None, None
        device = self.student.device
        slot = torch.from_numpy(packed.slot.reshape(-1)).to(device).long()
        row = torch.from_numpy(packed.row.reshape(-1)).to(device).long()
        kept = (slot >= 0).view(-1, 1, 1)
        safe = slot.clamp_min(0)
        expected = torch.where(kept, tap.expected[safe, row], 0.0)
        return expected, torch.where(kept, tap.doubt[safe, row], 0.0)

    def _attention(self, windows: int, blocks: int) -> DenseStaircase:
        """Mask buffers of a shape, kept: most updates have the same few."""
        found = self._masks.get((windows, blocks))
        if found is None:
            if len(self._masks) >= 4:
                self._masks.clear()
            found = self._masks[windows, blocks] = self.student.attention(windows, blocks)
        return found
