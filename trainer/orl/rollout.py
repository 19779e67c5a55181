"""Fresh rollouts by the engine's own runtime, with every state they passed through.

Knows how a batch of prompts becomes rows, runs on the whole-reply graph (a GPU) or eagerly, and
what is left on the device and on the host afterwards. Judges nothing and learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.errors import RequestError
from engine.models.backbone import AnyBackbone
from engine.runtime.choice import choose_loop, make_runtime
from engine.runtime.rows import Row
from engine.runtime.tap import StateTap
from engine.types import DecodeSettings, StopReason
from trainer.orl.states import Recorded


@dataclass(frozen=True)
class Reply:
    """One finished reply. prompt, ids: token ids, the stop token included; threshold: it was
    decoded with."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    forwards: int
    commits: int
    blocks: int
    reason: StopReason
    threshold: float

    @property
    def ceiling_forwards(self) -> int:
        """What the reply would take at one forward a block."""
        return max(1, self.blocks) + self.commits


class Roller:
    """Rolls out `batch` prompts at a time in a window of `capacity` positions. One runtime for
    all rollouts: a graph is captured once, and weights change under it in place."""

    def __init__(
        self,
        model: AnyBackbone,
        batch: int,
        capacity: int,
        slots: int,
        dtype: torch.dtype,
    ) -> None:
        device = model.norm.weight.device
        options = RuleOptions()
        program = make_program(
            model, batch, capacity, options, dtype, kernels=device.type == "cuda"
        )
        self.batch, self.capacity, self.slots = batch, capacity, slots
        self.spec = model.spec
        self.tap: StateTap = program.record_states(slots)
        self.runtime = make_runtime(program, options.stop_after_block, choose_loop(device))

    def room(self, prompt: int) -> int:
        """Tokens an answer to a prompt of this length can have here."""
        length = self.spec.block_length
        return self.capacity // length * length - prompt

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        settings: Sequence[DecodeSettings],
        max_new_tokens: int,
    ) -> tuple[list[Reply], Recorded]:
        """Up to `batch` replies, in order, and their states. Raises RequestError `train.too_long`
        for a prompt that leaves no room, `train.too_many_steps` when the tap was too short."""
        rows = []
        for prompt, chosen in zip(prompts, settings, strict=True):
            room = min(max_new_tokens, self.room(len(prompt)))
            if room < 1:
                raise RequestError(
                    "train.too_long",
                    f"A prompt of {len(prompt)} tokens leaves no room for an answer in "
                    f"{self.capacity}.",
                    "Leave long examples out, or train with a longer window.",
                )
            rows.append(self._row(prompt, room, chosen))
        spare = [self._row(prompts[0], 1, settings[0]) for _ in range(self.batch - len(rows))]
        for row in spare:
            row.reason = "stopped"
        everyone = [*rows, *spare]
        self.runtime.prefill(everyone)
        for _ in self.runtime.run(everyone, record=False):
            pass
        if self.tap.full:
            raise RequestError(
                "train.too_many_steps",
                f"A rollout took more than {self.slots} steps, and only so many are kept.",
                "Ask for shorter answers, or fewer steps a block.",
            )
        replies = [
            Reply(
                tuple(row.prompt),
                tuple(row.ids),
                row.forwards,
                row.commits,
                row.blocks,
                row.reason or "length",
                row.settings.threshold,
            )
            for row in rows
        ]
        return replies, self._recorded()

    def _row(self, prompt: Sequence[int], room: int, settings: DecodeSettings) -> Row:
        spec = self.spec
        stops = frozenset(spec.stop_ids)
        return Row(prompt, room, settings, spec.block_length, stops, spec.on_grid)

    def _recorded(self) -> Recorded:
        count = int(self.tap.count)

        def host(tensor: torch.Tensor) -> np.ndarray:
            return tensor[:count].cpu().numpy()

        tap = self.tap
        return Recorded(host(tap.canvas), host(tap.start), host(tap.step), host(tap.active))

    def close(self) -> None:
        """Gives captured memory back."""
        self.runtime.close()


def drawn_settings(
    defaults: DecodeSettings,
    count: int,
    group: int,
    thresholds: tuple[float, float],
    temperature: float,
    rng: np.random.Generator,
) -> list[DecodeSettings]:
    """Settings of `count` rollouts, `group` to a prompt: thresholds spread evenly over the range
    within a group, from a random start. Editing is off, so that a state is only what was masked."""
    low, high = thresholds
    chosen = []
    for first in range(0, count, group):
        begin = rng.random()
        for member in range(min(group, count - first)):
            place = (begin + member / group) % 1.0
            chosen.append(
                replace(
                    defaults,
                    threshold=low + (high - low) * place,
                    editing_threshold=None,
                    temperature=temperature,
                    top_k=0,
                    top_p=1.0,
                    seed=int(rng.integers(2**31)),
                )
            )
    return chosen
