"""What a person forces, forbids or takes back at single positions, and settings that change on the
way, as static device buffers that a step reads.

Knows absolute positions, token ids and step numbers. Tokens forced before their block begins are
not here: they are known, like a prompt's (see `engine.runtime.reply`). Knows no rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from engine.decoding.state import BlockState, RowSettings
from engine.errors import RequestError
from engine.types import DecodeSettings

BANS = 32  # (position, token) pairs one reply can forbid
PLACEMENTS = 64  # tokens one reply can have put or taken back on the way
SWITCHES = 8  # times one reply can change its settings
EVERYWHERE = -1
TAKEN_BACK = -1  # in place of a placement's token
_UNUSED = -2
_NEVER = 2**40


class Moment(NamedTuple):
    """The start of a step: absolute position of its block, and forwards the block had taken."""

    block_start: int
    step: int


ALWAYS = Moment(-1, 0)


@dataclass(frozen=True)
class Placement:
    """At the start of a step (counted in its block) a token is put at a position and held there, or
    `TAKEN_BACK` takes away what stands there, held or not."""

    position: int
    step: int
    token: int


@dataclass(frozen=True)
class Steering:
    """A person's hand on one reply. Positions are absolute.

    forced: position -> token that stands there from the start and is never edited. banned:
    (position, token) pairs the model may not propose; `EVERYWHERE` bans a token at every position.
    remasked: position -> step of its block at whose start the token there is taken back.
    later_bans: such pairs from a moment on. placements: what is put or taken back on the way; of
    two at one place and step the later one counts. switches: settings from a moment on, in the
    order of the moments.
    """

    forced: Mapping[int, int] = field(default_factory=dict)
    banned: Sequence[tuple[int, int]] = ()
    remasked: Mapping[int, int] = field(default_factory=dict)
    later_bans: Sequence[tuple[Moment, int, int]] = ()
    placements: Sequence[Placement] = ()
    switches: Sequence[tuple[Moment, DecodeSettings]] = ()

    @property
    def within_steps(self) -> bool:
        """Whether a step must look at it (forced tokens are the block's business)."""
        on_the_way = self.later_bans or self.placements or self.switches
        return bool(self.banned or self.remasked or on_the_way)


class SteeringState:
    """Steering of B rows. banned int64 [4, B, BANS]: positions, tokens, and the moments from which
    they count. remasked int64 [B, capacity]: step, -1 = never. placed int64 [3, B, PLACEMENTS]:
    positions, steps and tokens. moments int64 [2, B, SWITCHES], and the settings from then on:
    reals float32 [SWITCHES, 4, B, 1], counts int64 and noise float32 [SWITCHES, 5, B, 1]."""

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        def ints(*shape: int) -> Tensor:
            return torch.full(shape, _UNUSED, dtype=torch.int64, device=device)

        self.banned = ints(4, batch, BANS)
        self.remasked = ints(batch, capacity)
        self.placed = ints(3, batch, PLACEMENTS)
        self.moments = ints(2, batch, SWITCHES).fill_(_NEVER)
        later = RowSettings.allocate(batch, device)
        self.reals, self.counts, self.noise = (
            part.repeat(SWITCHES, 1, 1, 1) for part in (later.reals, later.counts, later.noise)
        )

    def load(self, rows: Sequence[Steering]) -> None:
        """Overwrites the buffers in place. Raises RequestError `request.steering` for more than
        fits or a position outside the buffers."""
        banned = torch.full(self.banned.shape, _UNUSED, dtype=torch.int64)
        remasked = torch.full(self.remasked.shape, -1, dtype=torch.int64)
        for index, row in enumerate(rows):
            bans = [(ALWAYS, *pair) for pair in row.banned] + list(row.later_bans)
            _require_room(len(bans), BANS, "tokens are banned", "Ban fewer tokens.")
            for slot, (moment, position, token) in enumerate(bans):
                banned[:, index, slot] = torch.tensor((position, token, *moment))
            for position, step in row.remasked.items():
                if not 0 <= position < remasked.shape[1]:
                    raise RequestError(
                        "request.steering",
                        f"Position {position} lies outside the context.",
                        "Choose a position of the reply.",
                    )
                remasked[index, position] = step
        self.banned.copy_(banned)
        self.remasked.copy_(remasked)
        self._load_placements(rows)
        self._load_switches(rows)

    def _load_placements(self, rows: Sequence[Steering]) -> None:
        placed = torch.full(self.placed.shape, _UNUSED, dtype=torch.int64)
        for index, row in enumerate(rows):
            found = {(p.position, p.step): p.token for p in row.placements}
            _require_room(
                len(found), PLACEMENTS, "tokens are put or taken back", "Change fewer positions."
            )
            for slot, ((position, step), token) in enumerate(found.items()):
                placed[:, index, slot] = torch.tensor((position, step, token))
        self.placed.copy_(placed)

    def _load_switches(self, rows: Sequence[Steering]) -> None:
        moments = torch.full(self.moments.shape, _NEVER, dtype=torch.int64)
        found = [[settings for _, settings in row.switches] for row in rows]
        for index, row in enumerate(rows):
            _require_room(
                len(row.switches), SWITCHES, "changes of settings", "Change them fewer times."
            )
            for slot, (moment, _) in enumerate(row.switches):
                moments[:, index, slot] = torch.tensor(moment)
        self.moments.copy_(moments)
        nothing = DecodeSettings()
        for slot in range(max((len(settings) for settings in found), default=0)):
            column = [row[slot] if slot < len(row) else nothing for row in found]
            later = RowSettings.of(column, self.reals.device)
            self.reals[slot].copy_(later.reals)
            self.counts[slot].copy_(later.counts)
            self.noise[slot].copy_(later.noise)

    def settings_at(self, settings: RowSettings, start: Tensor, step: Tensor) -> RowSettings:
        """The settings of a step: those of the latest switch whose moment has come, else
        `settings`. start, step int64 [B, 1]."""
        which = _has_come(self.moments, start, step).sum(-1, keepdim=True).unsqueeze(0).unsqueeze(0)

        def chosen(first: Tensor, later: Tensor) -> Tensor:
            every = torch.cat((first.unsqueeze(0), later))
            return every.gather(0, which.expand(1, *first.shape)).squeeze(0)

        return RowSettings(
            chosen(settings.reals, self.reals),
            chosen(settings.counts, self.counts),
            chosen(settings.noise, self.noise),
            settings.filtered,
            settings.sampled,
        )

    def take_back(self, state: BlockState, mask_id: int, hold: bool = True) -> None:
        """Puts positions whose step has come back to the mask, and placed tokens where they belong,
        in rows that are not finished. hold: what is put is held, like a prompt's token."""
        due = self.remasked.gather(1, state.positions) == state.step
        due = due & ~state.finished & ~state.prompt
        state.tokens.masked_fill_(due, mask_id)
        self._place(state, mask_id, hold)

    def _place(self, state: BlockState, mask_id: int, hold: bool) -> None:
        put, taken = self._placed_at(state.positions, state.step)
        put, taken = put.masked_fill(state.finished, _UNUSED), taken & ~state.finished
        state.tokens.copy_(torch.where(put >= 0, put, state.tokens).masked_fill(taken, mask_id))
        state.prompt.logical_and_(~taken)
        if hold:
            state.prompt.logical_or_(put >= 0)

    def placed_on(self, canvas: Tensor, positions: Tensor) -> Tensor:
        """int64 [B, L]: a block's first canvas with what its first step puts there."""
        put, _ = self._placed_at(positions, torch.zeros_like(positions[:, :1]))
        return torch.where(put >= 0, put, canvas)

    def _placed_at(self, positions: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """[B, L]: the token that a step puts at each position (below 0 = none), and whether it
        takes one back."""
        where, steps, tokens = self.placed
        here = where.unsqueeze(-1) == positions.unsqueeze(1)
        here = here & (steps == step).unsqueeze(-1)
        taken = (here & (tokens == TAKEN_BACK).unsqueeze(-1)).any(1)
        return torch.where(here, tokens.unsqueeze(-1), _UNUSED).amax(1), taken

    def banned_at(self, positions: Tensor, step: Tensor) -> Tensor:
        """int64 [B, L, BANS]: tokens that may not be proposed at each position, -1 where unused.
        positions int64 [B, L], step int64 [B, 1]."""
        where, token = self.banned[0].unsqueeze(1), self.banned[1].unsqueeze(1)
        come = _has_come(self.banned[2:], positions[:, :1], step)
        hit = ((where == EVERYWHERE) | (where == positions.unsqueeze(-1))) & (token >= 0)
        return torch.where(hit & come.unsqueeze(1), token, -1)

    def forbid(self, logits: Tensor, positions: Tensor, step: Tensor) -> None:
        """Sets the logits of banned tokens to -inf in place: logits float32 [B, L, V], positions
        int64 [B, L], step int64 [B, 1]."""
        banned = self.banned_at(positions, step)
        index = banned.clamp_min(0)
        found = logits.gather(-1, index).masked_fill(banned >= 0, float("-inf"))
        # The least of all writes wins, so that an unused pair cannot undo a ban of its own token 0.
        logits.scatter_reduce_(-1, index, found, "amin", include_self=True)


def _has_come(moments: Tensor, start: Tensor, step: Tensor) -> Tensor:
    """bool [B, N]: whether moments int64 [2, B, N] lie at or before a step."""
    block, within = moments
    return (start > block) | ((start == block) & (step >= within))


def _require_room(count: int, most: int, what: str, action: str) -> None:
    if count > most:
        raise RequestError("request.steering", f"{count} {what}; at most {most} can be.", action)
