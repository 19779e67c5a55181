"""What a reply looks like at one moment, as an immutable value, and the holder that keeps only the
latest.

It knows how engine events become canvas cells and live figures. The prompt's end, which the first
block begins with, is left out: the page shows the prompt already, and no template tokens. It runs
in the worker thread. It refuses to know widgets: whoever paints takes the latest snapshot whenever
it likes, and whatever it missed is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from engine.protocol import Engine
from engine.types import BlockFinished, Event, Finished, Started, StepTaken, TokenState

# At most twice what a screen can show; a slow engine gets a snapshot for every step.
PUBLISH_SECONDS = 1 / 120
BROKEN = "\N{REPLACEMENT CHARACTER}"  # of a token that holds a part of a character


@dataclass(frozen=True)
class Cell:
    """One canvas position. confidence in [0, 1] or NaN. before: the text it replaced, when edited.

    special: a stop token, shown as a mark and not as text.
    """

    text: str
    state: TokenState
    confidence: float
    before: str | None = None
    special: bool = False


@dataclass(frozen=True)
class BlockView:
    """One block of the canvas, without what belongs to the prompt. step: forwards made on it so
    far. final: nothing in it will change any more.
    """

    index: int
    cells: tuple[Cell, ...]
    step: int
    final: bool


@dataclass(frozen=True)
class LiveFigures:
    """Figures so far, None where not measured yet. tokens: kept tokens up to the first stop token,
    inclusive.
    """

    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0
    tokens_per_second: float | None = None
    tpf: float | None = None
    step: int | None = None
    block: int | None = None
    max_blocks: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """A reply so far. text: all finished blocks, the exact source. path: which runtime and kernels
    run.
    """

    reply_id: str
    blocks: tuple[BlockView, ...] = ()
    text: str = ""
    path: str = ""
    figures: LiveFigures = field(default_factory=LiveFigures)
    published: float = 0.0  # time.monotonic()


class SnapshotHolder:
    """Latest wins: one slot behind a lock. The worker puts, the window takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: Snapshot | None = None
        self._taken = True

    def put(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._latest, self._taken = snapshot, False

    def take(self) -> Snapshot | None:
        """The latest snapshot if it was not taken before, else None."""
        with self._lock:
            if self._taken:
                return None
            self._taken = True
            return self._latest

    def clear(self) -> None:
        with self._lock:
            self._latest, self._taken = None, True


class SnapshotBuilder:
    """Turns the events of one reply into snapshots. Not thread-safe: it lives in the worker."""

    def __init__(self, reply_id: str, engine: Engine) -> None:
        info = engine.info
        self._reply_id = reply_id
        self._engine = engine
        self._stop_ids = frozenset(info.stop_ids)
        self._started: Started | None = None
        self._final: list[BlockView] = []
        self._kept_before = 0  # tokens kept in finished blocks
        self._ended = False  # a finished block holds a stop token
        self._edited: npt.NDArray[np.int32] | None = None
        self._edited_block = -1
        self._last: StepTaken | None = None
        self._text = ""
        self._put_at = 0.0

    def add(self, event: Event) -> Snapshot | None:
        """Takes in one event; the snapshot to publish, or None when a newer one follows before a
        screen could show it.
        """
        if isinstance(event, Started):
            self._started = event
            return self._snapshot((self._masked_block(0),), 0, 0.0)
        if isinstance(event, StepTaken):
            self._remember_edits(event)
            self._last = event
            if time.monotonic() - self._put_at < PUBLISH_SECONDS:
                return None
            view = BlockView(event.block, self._cells(event), event.step + 1, final=False)
            return self._snapshot((view,), event.forwards, event.seconds)
        if isinstance(event, BlockFinished):
            self._finish_block(event)
            following: tuple[BlockView, ...] = ()
            if self._started and event.block + 1 < self._started.max_blocks and not self._ended:
                following = (self._masked_block(event.block + 1),)
            return self._snapshot(
                following, self._last.forwards if self._last else 0, event.seconds
            )
        return self._final_snapshot(event)

    def _final_snapshot(self, event: Finished) -> Snapshot:
        """A stopped reply keeps its unfinished block on the canvas; any other holds finished blocks
        only.
        """
        current: tuple[BlockView, ...] = ()
        if event.reason == "stopped" and self._last and self._last.block == len(self._final):
            last = self._last
            current = (BlockView(last.block, self._cells(last), last.step + 1, final=False),)
        self._text = event.text
        return self._snapshot(current, event.stats.forwards, event.stats.seconds)

    def _remember_edits(self, event: StepTaken) -> None:
        """`edited_from` lives for one step in the events; on the canvas the mark stays until the
        block's end.
        """
        if self._edited_block != event.block or self._edited is None:
            self._edited = np.full(event.ids.shape, -1, dtype=np.int32)
            self._edited_block = event.block
        now = event.edited_from >= 0
        self._edited[now] = event.edited_from[now]

    def _cells(self, event: StepTaken) -> tuple[Cell, ...]:
        masked = (event.state == TokenState.MASKED).tolist()
        pieces = self._pieces(event.ids.tolist(), masked)
        before = self._before(event.block, len(pieces))
        cells = tuple(
            Cell(
                text="" if state == TokenState.MASKED else piece,
                state=TokenState(state),
                confidence=confidence,
                before=old if state == TokenState.EDITED else None,
                special=token in self._stop_ids,
            )
            for piece, token, state, confidence, old in zip(
                pieces,
                event.ids.tolist(),
                event.state.tolist(),
                event.confidence.tolist(),
                before,
                strict=True,
            )
        )
        return cells[self._overlap(event.block) :]

    def _pieces(self, ids: list[int], masked: list[bool]) -> list[str]:
        """Display text of each token. Where several hold the bytes of one character (an emoji),
        the first shows it once all of them are there, and the others show nothing.
        """
        pieces = list(self._engine.pieces(ids))
        broken = [BROKEN in p and not m for p, m in zip(pieces, masked, strict=True)]
        for is_broken, group in groupby(range(len(pieces)), key=broken.__getitem__):
            run = list(group)
            if is_broken and len(run) > 1:
                text = self._engine.decode(ids[run[0] : run[-1] + 1])
                if BROKEN not in text:
                    pieces[run[0] : run[-1] + 1] = [text, *[""] * (len(run) - 1)]
        return pieces

    def _before(self, block: int, length: int) -> Sequence[str | None]:
        if self._edited is None or self._edited_block != block or not (self._edited >= 0).any():
            return [None] * length
        shown = iter(self._engine.pieces(self._edited[self._edited >= 0].tolist()))
        return [next(shown) if old >= 0 else None for old in self._edited.tolist()]

    def _finish_block(self, event: BlockFinished) -> None:
        ids = event.ids.tolist()
        overlap = self._overlap(event.block)
        pieces = self._pieces(ids, [False] * len(ids))[overlap:]
        before = self._before(event.block, len(ids))[overlap:]
        cells: list[Cell] = []
        for token, piece, old in zip(ids[overlap:], pieces, before, strict=True):
            state = TokenState.COMMITTED if old is None else TokenState.EDITED
            if not self._ended:
                self._kept_before += 1
                self._ended = token in self._stop_ids
            cells.append(Cell(piece, state, float("nan"), old, special=token in self._stop_ids))
        steps = self._last.step + 1 if self._last and self._last.block == event.block else 0
        self._final.append(BlockView(event.block, tuple(cells), steps, final=True))
        self._text = event.text

    def _masked_block(self, block: int) -> BlockView:
        length = self._started.block_length if self._started else 0
        masked = Cell("", TokenState.MASKED, float("nan"))
        return BlockView(block, (masked,) * (length - self._overlap(block)), 0, final=False)

    def _overlap(self, block: int) -> int:
        """How many positions of the block belong to the prompt."""
        if block > 0 or self._started is None:
            return 0
        return self._started.prompt_tokens - self._started.first_block_start

    def _kept(self, current: tuple[BlockView, ...]) -> int:
        kept = self._kept_before
        if self._ended:
            return kept
        for view in current:
            for cell in view.cells:
                if cell.state in (TokenState.COMMITTED, TokenState.EDITED):
                    kept += 1
                    if cell.special:
                        break
        return kept

    def _snapshot(self, current: tuple[BlockView, ...], forwards: int, seconds: float) -> Snapshot:
        self._put_at = time.monotonic()
        kept = self._kept(current)
        shown = current[0] if current else (self._final[-1] if self._final else None)
        return Snapshot(
            reply_id=self._reply_id,
            blocks=(*self._final, *current),
            text=self._text,
            path=self._started.path if self._started else "",
            figures=LiveFigures(
                tokens=kept,
                forwards=forwards,
                seconds=seconds,
                tokens_per_second=kept / seconds if seconds > 0 and kept else None,
                tpf=kept / forwards if forwards and kept else None,
                step=shown.step if shown else None,
                block=shown.index + 1 if shown else None,
                max_blocks=self._started.max_blocks if self._started else None,
            ),
            published=self._put_at,
        )
