"""What a person forces, forbids or takes back at single positions, as static device buffers that a
step reads.

Knows absolute positions, token ids and step numbers. Forced tokens are not here: they are known
before the block begins, like a prompt's (see `engine.runtime.reply`). Knows no rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.decoding.state import BlockState
from engine.errors import RequestError

BANS = 32  # (position, token) pairs one reply can forbid
EVERYWHERE = -1
_UNUSED = -2


@dataclass(frozen=True)
class Steering:
    """A person's hand on one reply. Positions are absolute.

    forced: position -> token that stands there from the start and is never edited. banned:
    (position, token) pairs the model may not propose; `EVERYWHERE` bans a token at every position.
    remasked: position -> step of its block at whose start the token there is taken back.
    """

    forced: Mapping[int, int] = field(default_factory=dict)
    banned: Sequence[tuple[int, int]] = ()
    remasked: Mapping[int, int] = field(default_factory=dict)

    @property
    def within_steps(self) -> bool:
        """Whether a step must look at it (forced tokens are the block's business)."""
        return bool(self.banned or self.remasked)


class SteeringState:
    """Bans and remasks of B rows. banned int64 [2, B, BANS]: positions and tokens. remasked int64
    [B, capacity]: step, -1 = never."""

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        self.banned = torch.full((2, batch, BANS), _UNUSED, dtype=torch.int64, device=device)
        self.remasked = torch.full((batch, capacity), -1, dtype=torch.int64, device=device)

    def load(self, rows: Sequence[Steering]) -> None:
        """Overwrites the buffers in place. Raises RequestError `request.steering` for more bans
        than fit or a position outside the buffers."""
        banned = torch.full(self.banned.shape, _UNUSED, dtype=torch.int64)
        remasked = torch.full(self.remasked.shape, -1, dtype=torch.int64)
        for index, row in enumerate(rows):
            if len(row.banned) > BANS:
                raise RequestError(
                    "request.steering",
                    f"{len(row.banned)} tokens are banned; at most {BANS} can be.",
                    "Ban fewer tokens.",
                )
            for slot, (position, token) in enumerate(row.banned):
                banned[0, index, slot], banned[1, index, slot] = position, token
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

    def take_back(self, state: BlockState, mask_id: int) -> None:
        """Puts positions whose step has come back to the mask, in rows that are not finished."""
        due = self.remasked.gather(1, state.positions) == state.step
        due = due & ~state.finished & ~state.prompt
        state.tokens.masked_fill_(due, mask_id)

    def forbid(self, logits: Tensor, positions: Tensor) -> None:
        """Sets the logits of banned tokens to -inf in place: logits float32 [B, L, V], positions
        int64 [B, L]."""
        where, token = self.banned[0].unsqueeze(1), self.banned[1].unsqueeze(1)
        hit = ((where == EVERYWHERE) | (where == positions.unsqueeze(-1))) & (token >= 0)
        index = token.clamp_min(0).expand(hit.shape)
        found = logits.gather(-1, index).masked_fill(hit, float("-inf"))
        # The least of all writes wins, so that an unused pair cannot undo a ban of its own token 0.
        logits.scatter_reduce_(-1, index, found, "amin", include_self=True)
