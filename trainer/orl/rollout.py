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
from engine.runtime.rows import Row
from engine.runtime.stream import ReplyStream
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
    """Rolls out prompts, `batch` rows at a time, in a window of `capacity` positions. One runtime
    for all rollouts: a graph is captured once, and weights change under it in place. slots: steps
    whose states are kept."""

    def __init__(
        self, model: AnyBackbone, batch: int, capacity: int, slots: int, dtype: torch.dtype
    ) -> None:
        device = model.norm.weight.device
        options = RuleOptions()
        program = make_program(
            model, batch, capacity, options, dtype, kernels=device.type == "cuda"
        )
        self.capacity, self.slots = capacity, slots
        self.spec = model.spec
        self.tap: StateTap = program.record_states(slots)
        self.stream = ReplyStream(program, options.stop_after_block)

    def room(self, prompt: int) -> int:
        """Tokens an answer to a prompt of this length can have here."""
        length = self.spec.block_length
        return self.capacity // length * length - prompt

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        settings: Sequence[DecodeSettings],
        max_new_tokens: int,
        record: bool = True,
    ) -> tuple[list[Reply], Recorded | None]:
        """Replies in order and, with `record`, their states. Raises RequestError `train.too_long`
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
        owners: list[list[int]] = []
        if rows:
            self.stream.run(rows, (lambda held: owners.append(list(held))) if record else None)
        if rows and record and self.tap.full:
            raise RequestError(
                "train.too_many_steps",
                f"A rollout took more than {self.slots} steps, and only so many are kept.",
                "Ask for shorter answers, fewer steps a block, or fewer rollouts an update.",
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
        return replies, self._recorded(owners) if record else None

    def _row(self, prompt: Sequence[int], room: int, settings: DecodeSettings) -> Row:
        spec = self.spec
        stops = frozenset(spec.stop_ids)
        return Row(prompt, room, settings, spec.block_length, stops, spec.on_grid)

    def _recorded(self, owners: Sequence[Sequence[int]]) -> Recorded:
        count = len(owners)

        def host(tensor: torch.Tensor) -> np.ndarray:
            return tensor[:count].cpu().numpy()

        tap, owner = self.tap, np.array(owners, dtype=np.int32)
        return Recorded(host(tap.canvas), host(tap.start), host(tap.step), host(tap.active), owner)

    def close(self) -> None:
        """Gives captured memory back."""
        self.stream.close()


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
