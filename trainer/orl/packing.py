"""Packs replies and their noisy states into windows of blocks, for the staircase mask.

Knows `Piece`s as numbers of blocks and gives one table entry a block. Deterministic. Knows no
device, no model and no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.orl.states import NO_SLOT, NoisyState, Piece

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Packed:
    """One forward of training: W windows of G blocks of L tokens.

    ids, target int32 [W, G, L]; position, segment int32 [W, G]; noisy bool [W, G]; slot, row int32
    [W, G]: where the tap keeps what a block consumed, NO_SLOT for none. wanted, anchored float32
    [W, G, L]: weights of the prediction and of the anchor (normalised over the reply). open bool
    [W, G, L]: unresolved. source int64 [P], next int64 [P]: flat indices of adjacent states of one
    block, with their weight float32 [P]. order: flat indices of all noisy blocks.
    """

    ids: Ints
    target: Ints
    position: Ints
    segment: Ints
    noisy: npt.NDArray[np.bool_]
    slot: Ints
    row: Ints
    open: npt.NDArray[np.bool_]
    wanted: npt.NDArray[np.float32]
    anchored: npt.NDArray[np.float32]
    source: npt.NDArray[np.int64]
    next: npt.NDArray[np.int64]
    pair_weight: npt.NDArray[np.float32]

    @property
    def blocks(self) -> int:
        """Blocks that are not padding."""
        return int((self.position >= 0).sum())


@dataclass(frozen=True, eq=False)
class _Part:
    """Some states of one piece that fit a window with the clean blocks they see."""

    piece: Piece
    states: list[NoisyState]
    clean: int

    @property
    def size(self) -> int:
        return self.clean + len(self.states)


def pack(
    pieces: Sequence[Piece],
    window: int,
    windows: int,
    length: int,
    mask_id: int,
    totals: tuple[int, int] | None = None,
) -> tuple[list[Packed], int]:
    """Forwards of at most `windows` windows that hold all the pieces' states, longest first, each
    where it leaves least room; and how many states fit nowhere (their clean blocks fill a window).

    Weights are normalised so that all forwards' losses sum to the mean over replies. totals: taught
    replies and all replies that the mean is over, where other processes have more of them.
    """
    parts, lost = _parts(pieces, window)
    if not parts:
        return [], lost
    parts.sort(key=lambda part: -part.size)
    bins: list[list[_Part]] = []
    room: list[int] = []
    for part in parts:
        fitting = [n for n, left in enumerate(room) if left >= part.size]
        if not fitting:
            bins.append([])
            room.append(window)
            fitting = [len(bins) - 1]
        home = min(fitting, key=lambda n: room[n])
        bins[home].append(part)
        room[home] -= part.size
    taught, replies = totals or (sum(piece.taught for piece in pieces), len(pieces))
    shares = {id(piece): _Share(piece, max(1, taught), replies) for piece in pieces}
    # Equal forwards: the last one of a batch would otherwise be nearly empty.
    forwards = max(1, -(-len(bins) // windows))
    each = -(-len(bins) // forwards)
    return [
        _tabulate(bins[first : first + each], shares, window, length, mask_id)
        for first in range(0, len(bins), each)
    ], lost


class _Share:
    """What a reply's losses are divided by."""

    def __init__(self, piece: Piece, taught: int, replies: int) -> None:
        opened = max(1, sum(int(state.open.sum()) for state in piece.states))
        pairs = max(1, sum(state.follows for state in piece.states))
        self.wanted = piece.weight / (opened * taught) if piece.taught else 0.0
        self.anchored = piece.weight / (opened * replies)
        self.pair = piece.weight / (pairs * taught) if piece.taught else 0.0


def _parts(pieces: Sequence[Piece], window: int) -> tuple[list[_Part], int]:
    """Every piece's states in runs that fit a window; a pair is not torn apart where it fits."""
    parts: list[_Part] = []
    lost = 0
    for piece in pieces:
        run: list[NoisyState] = []
        for state in piece.states:
            if state.block + 1 > window:
                lost += 1
                continue
            if run and state.block + len(run) + 1 > window:
                parts.append(_Part(piece, run, max(s.block for s in run)))
                run = []
            run.append(state)
        if run:
            parts.append(_Part(piece, run, max(s.block for s in run)))
    return parts, lost


def _tabulate(
    bins: Sequence[Sequence[_Part]],
    shares: dict[int, _Share],
    window: int,
    length: int,
    mask_id: int,
) -> Packed:
    shape = (len(bins), window)
    ids = np.full((*shape, length), mask_id, np.int32)
    target = np.zeros((*shape, length), np.int32)
    position = np.full(shape, -1, np.int32)
    segment = np.broadcast_to(np.arange(window, dtype=np.int32) + window, shape).copy()
    noisy = np.zeros(shape, np.bool_)
    slot, row = np.full(shape, NO_SLOT, np.int32), np.zeros(shape, np.int32)
    opened = np.zeros((*shape, length), np.bool_)
    wanted = np.zeros((*shape, length), np.float32)
    anchored = np.zeros_like(wanted)
    pairs: list[tuple[int, int, float]] = []
    for w, parts in enumerate(bins):
        column = 0
        for number, part in enumerate(parts):
            share, tokens = shares[id(part.piece)], part.piece.tokens
            end = column + part.clean
            padded = np.full(max(len(tokens), (part.clean + 1) * length), mask_id, np.int32)
            padded[: len(tokens)] = tokens
            ids[w, column:end] = padded[: part.clean * length].reshape(part.clean, length)
            position[w, column:end] = np.arange(part.clean)
            segment[w, column : column + part.size] = number
            for index, state in enumerate(part.states):
                at = end + index
                ids[w, at], position[w, at], noisy[w, at] = state.canvas, state.block, True
                slot[w, at], row[w, at], opened[w, at] = state.slot, state.row, state.open
                here = tokens[state.block * length : (state.block + 1) * length]
                target[w, at, : len(here)] = here
                wanted[w, at] = state.wanted * share.wanted
                anchored[w, at] = state.open * share.anchored
                if state.follows and index:
                    flat = w * window + at
                    pairs.append((flat - 1, flat, share.pair))
            column += part.size
    ordered = np.array(pairs, dtype=np.float64).reshape(-1, 3)
    return Packed(
        ids,
        target,
        position,
        segment,
        noisy,
        slot,
        row,
        opened,
        wanted,
        anchored,
        ordered[:, 0].astype(np.int64),
        ordered[:, 1].astype(np.int64),
        ordered[:, 2].astype(np.float32),
    )
