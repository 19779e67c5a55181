"""Captures the pieces of a reply, each once per variant, and keeps them.

Knows that a piece must have run before it can be captured, and leaves every buffer as it was. Knows
neither how pieces are joined into a graph nor when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Literal

import torch
from torch import Tensor

from engine.runtime.backend import Backend, Captured
from engine.runtime.pieces import ReplyPieces, Variant


class CapturedPieces:
    """count: captures made so far (a test watches that it does not grow with requests)."""

    def __init__(self, pieces: ReplyPieces, backend: Backend) -> None:
        self.pieces, self.backend = pieces, backend
        self.count = 0
        self._kept: dict[tuple[str, Variant | int | None], Captured] = {}

    def of_reply(self, variant: Variant) -> dict[str, Captured]:
        """`begin`, `first`, `step`, `end`, and `verify` and `accept` where they are used; the first
        call for a variant captures."""
        pieces = self.pieces
        pieces.select(variant)
        captured = {
            "begin": self._get("begin", None, pieces.begin),
            "first": self._get("first", variant, pieces.first),
            "step": self._get("step", variant, pieces.step),
            "end": self._get("end", None, pieces.end),
        }
        if pieces.ahead:

            def both() -> None:
                pieces.verify()
                pieces.accept()

            # `accept` works on what the captured `verify` leaves in the graph's memory, where
            # nothing is before it has run: so the pair is warmed up together, before either.
            captured["verify"] = self._get("verify", variant, pieces.verify, warm_up=both)
            captured["accept"] = self._get("accept", variant, pieces.accept, warm_up=None)
        return captured

    def prefill(self, blocks: int) -> Captured:
        """A prefill chunk of so many blocks."""
        return self._get("prefill", blocks, lambda: self.pieces.prefill(blocks), blocks=blocks)

    def clear(self) -> None:
        """Lets go of every capture and its memory."""
        self._kept.clear()
        self.backend.close()

    def _get(
        self,
        name: str,
        key: Variant | int | None,
        run: Callable[[], None],
        *,
        warm_up: Callable[[], None] | Literal["itself"] | None = "itself",
        blocks: int = 3,
    ) -> Captured:
        """blocks: how many of the cache the warm-up writes."""
        kept = self._kept.get((name, key))
        if kept is not None:
            return kept
        pieces = self.pieces
        warm = run if warm_up == "itself" else warm_up
        if warm is not None:

            def from_second_block() -> None:
                _stand_on_second_block(pieces)
                warm()

            with _preserved(pieces, blocks):
                self.backend.warm_up(from_second_block)
        captured = self._kept[name, key] = self.backend.capture(run)
        self.count += 1
        return captured


def _stand_on_second_block(pieces: ReplyPieces) -> None:
    """A valid place for any piece to start from."""
    state, reply = pieces.program.state, pieces.reply
    reply.control.zero_()
    reply.counts.zero_()
    reply.cursor.zero_()
    masks = torch.full_like(state.tokens, reply.mask_id)
    room = reply.capacity - (2 if pieces.ahead else 1) * reply.block_length
    start = min(reply.block_length, room)
    none, starts = torch.zeros_like(state.prompt), torch.full_like(state.start, start)
    state.begin(masks, none, starts, reply.mask_id)
    state.finished.zero_()


@contextmanager
def _preserved(pieces: ReplyPieces, blocks: int) -> Iterator[None]:
    """Puts back whatever a piece writes, the first `blocks` blocks of the cache included."""
    state, reply, cache = pieces.program.state, pieces.reply, pieces.program.cache
    written: list[Tensor] = [getattr(state, field.name) for field in fields(state)]
    written += [reply.counts, reply.first_stop, reply.converged, reply.cursor]
    written += [reply.control, reply.log, *pieces.program.written]
    written += cache.first(blocks * reply.block_length)
    kept = [tensor.clone() for tensor in written]
    try:
        yield
    finally:
        for tensor, old in zip(written, kept, strict=True):
            tensor.copy_(old)
