"""Which recorded states of which replies are learnt from, as tables of numbers.

Knows replies as token lists with their recorded canvases (numpy), groups, verdicts and the floor of
reference answers. Knows no tensors of a model and no loss: what comes out (`Piece`) says what one
reply contributes, block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float32]
NO_SLOT = -1  # a state that was not recorded: its canvas was made here, and it consumed no residual


@dataclass(frozen=True, eq=False)
class NoisyState:
    """One recorded state of one block. block: index from position 0; canvas int32 [L]; slot, row:
    where the tap keeps it (`NO_SLOT`: nowhere); open bool [L]: unresolved positions of the answer;
    wanted float32 [L]: weight of each position's prediction; follows: the state before this one in
    the list is its predecessor in the same block."""

    block: int
    canvas: Ints
    slot: int
    row: int
    open: npt.NDArray[np.bool_]
    wanted: Reals
    follows: bool


@dataclass(eq=False)
class Piece:
    """What one reply contributes. tokens int32: prompt and answer. taught: predictions count (a
    reply that failed is anchored alone). weight: of its losses beside the other replies'."""

    tokens: Ints
    states: list[NoisyState] = field(default_factory=list)
    taught: bool = True
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Recorded:
    """A rollout's tap on the host: int32 canvas [N, B, L], start, step [N, B], active bool [N, B];
    owner int32 [N, B]: which reply each row held."""

    canvas: Ints
    start: Ints
    step: Ints
    active: npt.NDArray[np.bool_]
    owner: Ints

    def of(self, reply: int) -> list[tuple[int, int]]:
        """(entry, row) of every step a reply took, in order."""
        entries, rows = np.nonzero(self.active & (self.owner == reply))
        return list(zip(entries.tolist(), rows.tolist(), strict=True))


def states_of(
    recorded: Recorded,
    reply: int,
    prompt: int,
    end: int,
    mask_id: int,
    most: int,
    agreement: Reals | None = None,
) -> list[NoisyState]:
    """The states of a reply: of every block the first `most`, in order.

    prompt: length of the prompt; end: absolute position behind the last token that counts.
    agreement float32 [end - prompt]: weight of each token of the answer, 1 where None.
    """
    length = recorded.canvas.shape[-1]
    states: list[NoisyState] = []
    taken, block_before = 0, -1
    for slot, row in recorded.of(reply):
        start = int(recorded.start[slot, row])
        if start >= end:
            continue
        block = start // length
        taken = 0 if block != block_before else taken + 1
        if taken >= most:
            block_before = block
            continue
        follows = block == block_before
        block_before = block
        canvas = recorded.canvas[slot, row]
        position = start + np.arange(length)
        unresolved = (canvas == mask_id) & (position >= prompt) & (position < end)
        wanted = unresolved.astype(np.float32)
        if agreement is not None:
            inside = np.clip(position - prompt, 0, len(agreement) - 1)
            wanted *= agreement[inside]
        states.append(NoisyState(block, canvas, slot, row, unresolved, wanted, follows))
    return states


def reference_states(
    tokens: Ints, prompt: int, length: int, mask_id: int, rng: np.random.Generator
) -> list[NoisyState]:
    """States of an answer that was not generated: of every block that holds answer, all of it
    masked (as its first step is), and a part of it masked."""
    end = len(tokens)
    states: list[NoisyState] = []
    for block in range(prompt // length, -(-end // length)):
        position = block * length + np.arange(length)
        clean = np.full(length, mask_id, dtype=np.int32)
        inside = position < end
        clean[inside] = tokens[position[inside]]
        answer = position >= prompt
        share = rng.random()
        for level in (1.0, share):
            hidden = answer & ((rng.random(length) < level) | ~inside)
            unresolved = hidden & inside
            if not unresolved.any():
                continue
            canvas = np.where(hidden, mask_id, clean).astype(np.int32)
            weight = unresolved.astype(np.float32)
            states.append(NoisyState(block, canvas, NO_SLOT, 0, unresolved, weight, False))
    return states


def agreement_of(answers: Sequence[Ints], mine: int) -> Reals:
    """float32 [n]: how many of a group's answers of the same length agree with answer `mine`,
    token by token, as a share. A token that answers disagree on could not be known."""
    own = answers[mine]
    same = [other for other in answers if len(other) == len(own)]
    return np.mean([other == own for other in same], axis=0).astype(np.float32)


def fastest(forwards: Sequence[int], verified: Sequence[bool]) -> list[bool]:
    """Of a group, the verified replies with the fewest forwards."""
    least = min((f for f, ok in zip(forwards, verified, strict=True) if ok), default=0)
    return [ok and f == least for f, ok in zip(forwards, verified, strict=True)]


def balance(
    pieces: Sequence[Piece], skills: Sequence[str], everyone: Sequence[str] | None = None
) -> None:
    """Gives the taught replies of every skill the same weight together, their mean staying 1.
    everyone: the skill of every taught reply, where others have more of them."""
    taught = [n for n, piece in enumerate(pieces) if piece.taught]
    names = [skills[n] for n in taught] if everyone is None else everyone
    kinds = len(set(names))
    for n in taught:
        pieces[n].weight = len(names) / (kinds * names.count(skills[n]))
