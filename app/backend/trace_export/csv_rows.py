"""A trace as CSV: one row a step and position, every value as exact as the trace holds it.

Knows columns (docs/trace-exports.md). A value that was not captured is an empty field. Token texts
are JSON strings: exact, on one line, and never a formula to a spreadsheet.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from engine.trace import Trace
from engine.trace.reading import text_of
from engine.types import TokenState

COLUMNS = (
    "row", "block", "block_step", "forwards", "seconds", "position", "state", "id", "text",
    "confidence", "entropy_nats", "edited_from", "edited_from_text",
)  # fmt: skip
STATES = tuple(state.name.lower() for state in TokenState)
ROWS_AT_ONCE = 4096


def write_csv(trace: Trace, file: BinaryIO) -> None:
    """UTF-8, comma, CRLF, a header line, S x L rows. The captured candidates follow as top1_id,
    top1_text, top1_p, ...; a trace without them has no such columns."""
    # a lone surrogate is no UTF-8; written out as \udXXX, it is JSON
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    writer = csv.writer(text)
    depth = 0 if trace.top_ids is None else trace.top_ids.shape[2]
    tops = [f"top{rank}_{what}" for rank in range(1, depth + 1) for what in ("id", "text", "p")]
    writer.writerow([*COLUMNS, *tops])
    rows: list[list[object]] = []
    for row in _rows(trace, _Texts(trace)):
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            writer.writerows(rows)
            rows.clear()
    writer.writerows(rows)
    text.detach()  # flushed; the file stays open: its owner closes it


class _Texts(dict[int, str]):
    """Token ids and their texts as JSON strings, made once each."""

    def __init__(self, trace: Trace) -> None:
        super().__init__({-1: ""})
        self._trace = trace

    def __missing__(self, token: int) -> str:
        self[token] = found = json.dumps(text_of(self._trace, token), ensure_ascii=False)
        return found


def _rows(trace: Trace, texts: _Texts) -> Iterator[list[object]]:
    for row in range(len(trace)):
        head: list[object] = [
            row,
            int(trace.block[row]),
            int(trace.step[row]),
            int(trace.forwards[row]),
            repr(float(trace.seconds[row])),
        ]
        start = int(trace.block_start[row])
        cells = zip(
            trace.state[row].tolist(),
            trace.ids[row].tolist(),
            trace.confidence[row],
            trace.entropy[row],
            trace.edited_from[row].tolist(),
            strict=True,
        )
        for column, (state, token, confidence, entropy, before) in enumerate(cells):
            yield [
                *head,
                start + column,
                STATES[state],
                token,
                texts[token],
                exact(confidence),
                exact(entropy),
                before if before >= 0 else "",
                texts[before],
                *_candidates(trace, row, column, texts),
            ]


def _candidates(trace: Trace, row: int, column: int, texts: _Texts) -> Iterator[object]:
    if trace.top_ids is None or trace.top_p is None:
        return
    for token, p in zip(trace.top_ids[row, column].tolist(), trace.top_p[row, column], strict=True):
        yield token if token >= 0 else ""
        yield texts[token]
        yield exact(p)


def exact(value: np.floating) -> str:
    """The shortest decimal that reads back as this very float; "" for NaN."""
    return "" if np.isnan(value) else str(value)
