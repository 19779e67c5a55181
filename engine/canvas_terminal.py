"""A reply on a terminal: the canvas of the current block redrawn in place, finished text above it,
then the figures.

Knows ANSI and token states. On anything that is not a terminal (a pipe, a file) only the finished
text is printed.
"""

from __future__ import annotations

import shutil
import threading
from typing import TextIO

import numpy as np

from engine.protocol import Engine
from engine.types import (
    BlockFinished,
    Finished,
    GenerateRequest,
    GenerationStats,
    StepTaken,
    StopReason,
    TokenState,
)

_STYLE = {
    TokenState.MASKED: "\x1b[2m",
    TokenState.DRAFT: "\x1b[3;33m",
    TokenState.COMMITTED: "",
    TokenState.EDITED: "\x1b[4;35m",
    TokenState.PROMPT: "\x1b[2m",
}
# A terminal obeys these: text of a model must not move the cursor, or worse.
_CONTROLS = dict.fromkeys(
    (*range(9), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}"
)
_RESET, _CLEAR_BELOW = "\x1b[0m", "\x1b[J"
_REASONS: dict[StopReason, str] = {
    "stop_token": "finished",
    "length": "stopped at length",
    "stopped": "stopped by you",
    "did_not_converge": "did not converge",
}


def show_reply(
    engine: Engine,
    request: GenerateRequest,
    out: TextIO,
    *,
    plain: bool,
    stop: threading.Event | None = None,
) -> Finished:
    """Runs the request and writes it to `out`. plain: no live canvas, whatever `out` is. stop: ends
    the reply within one step; what there is of it is kept."""
    terminal = out.isatty()
    live = terminal and not plain
    printed = ""
    finished: Finished | None = None
    for event in engine.generate(request, stop):
        if isinstance(event, StepTaken) and live:
            _draw(out, engine, event, printed)
        elif isinstance(event, BlockFinished):
            text = _shown(event.text, terminal)
            out.write(text.removeprefix(printed) if not live else "")
            printed = text
        elif isinstance(event, Finished):
            finished = event
            text = _shown(event.text, terminal)
            out.write(f"{text}{_CLEAR_BELOW}" if live else text.removeprefix(printed))
    if finished is None:
        raise RuntimeError("the engine ended without a Finished event")
    out.write(f"\n\n{describe(finished.stats, finished.reason)}\n")
    return finished


def describe(stats: GenerationStats, reason: StopReason) -> str:
    """The figures of a reply in one paragraph (definitions: docs/how-it-works.md)."""
    return (
        f"{_REASONS[reason]}: {_count(stats.tokens, 'token')} in {_count(stats.blocks, 'block')}, "
        f"{_count(stats.forwards, 'forward')} ({stats.commit_forwards} of them for commits alone)\n"
        f"{stats.tokens_per_second:.1f} tok/s, TPF {stats.tpf:.2f} of at most {stats.ceiling:.1f}, "
        f"first block after {stats.time_to_first_block:.2f} s"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _draw(out: TextIO, engine: Engine, event: StepTaken, printed: str) -> None:
    """Writes the text so far and the block's canvas, then puts the cursor back to where the text
    began."""
    columns = shutil.get_terminal_size().columns
    cells = _cells(engine, event)
    rows = _rows_used(printed + "".join(text for text, _ in cells), columns)
    body = "".join(f"{_STYLE[state]}{text}{_RESET}" for text, state in cells)
    out.write(f"{printed}{body}{_CLEAR_BELOW}\r" + (f"\x1b[{rows - 1}A" if rows > 1 else ""))
    out.flush()


def _cells(engine: Engine, event: StepTaken) -> list[tuple[str, TokenState]]:
    states = [TokenState(value) for value in event.state]
    pieces = engine.pieces([int(token) for token in event.ids])
    cells: list[tuple[str, TokenState]] = []
    stop_seen = False
    for token, piece, state, confidence in zip(
        event.ids, pieces, states, event.confidence, strict=True
    ):
        if state is TokenState.PROMPT or stop_seen:
            continue
        if int(token) in engine.info.stop_ids:
            stop_seen = state in (TokenState.COMMITTED, TokenState.EDITED)
            continue
        sure = state not in (TokenState.MASKED, TokenState.DRAFT) or (
            np.isfinite(confidence) and confidence > 0.3
        )
        piece = _shown(piece, terminal=True)
        cells.append((piece if sure else "░" * max(1, len(piece)), state))
    return cells


def _shown(text: str, terminal: bool) -> str:
    return text.translate(_CONTROLS) if terminal else text


def _rows_used(text: str, columns: int) -> int:
    return sum(max(1, -(-len(line) // columns)) for line in text.split("\n"))
