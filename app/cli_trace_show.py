"""What `unblur trace` prints of a trace: its figures, a step, a position, an attribution.

It knows lines and JSON. What a figure means is `engine.trace.numbers`' knowledge. No Qt, no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.trace import EVERYWHERE, Change, Trace, TraceError
from engine.trace.attribution import Attribution
from engine.trace.header_json import header_to_json
from engine.trace.numbers import numbers_of
from engine.trace.why import quoted
from engine.types import TokenState

Json = dict[str, Any]
BAR = 24  # characters of the strongest effect
_MARKS = {
    TokenState.MASKED: "masked",
    TokenState.DRAFT: "draft",
    TokenState.COMMITTED: "committed",
    TokenState.EDITED: "edited",
    TokenState.PROMPT: "prompt",
}
NOT_JUDGED = "–"


def summary_lines(trace: Trace) -> Iterator[str]:
    """The model, where a fork comes from, the figures and the text."""
    header = trace.header
    facts = (header.model_name, header.quantisation, header.runtime, header.device)
    yield ", ".join(fact for fact in facts if fact) or "a model that is not named"
    for parent in header.ancestry:
        change = in_words(trace, parent.change)
        yield f"Fork of {parent.trace_id[:8]} at step {parent.step}: {change}"
    yield f"Captured: {header.capture}" + (f", {header.top_k} candidates" if header.top_k else "")
    width = max(len(figure.name) for figure in numbers_of(trace).figures)
    for figure in numbers_of(trace).figures:
        yield f"{figure.name:{width}}  {figure.text}" + (
            f"  ({figure.missing})" if figure.missing else ""
        )
    yield ""
    yield _plain(header.text)


def in_words(trace: Trace, change: Change) -> str:
    """A change as a person would say it."""
    words = [f"{quoted(trace, token)} put at {position}" for position, token in change.force]
    words += [f"{quoted(trace, token)} banned {_where(position)}" for position, token in change.ban]
    words += [f"{position} masked" for position in change.mask]
    if change.settings is not None:
        settings = change.settings
        words.append(f"threshold {settings.threshold:g}, temperature {settings.temperature:g}")
    return "; ".join(words) or "unchanged"


def _where(position: int) -> str:
    return "everywhere" if position == EVERYWHERE else f"at {position}"


def show_lines(trace: Trace, step: int | None, position: int | None) -> Iterator[str]:
    """All of the trace, or what was asked for. Raises TraceError `trace.not_there`."""
    if position is not None:
        yield from _position_lines(trace, position, step)
    elif step is not None:
        yield from _step_lines(trace, step)
    else:
        yield from summary_lines(trace)
        yield ""
        yield from _all_steps(trace)


def _all_steps(trace: Trace) -> Iterator[str]:
    numbers = numbers_of(trace)
    yield "  step  block  in block       ms  accepted  edited  taken back  mean entropy"
    began = 0.0
    for row in range(len(trace)):
        took, began = (trace.seconds[row] - began) * 1000, float(trace.seconds[row])
        yield (
            f"{row:6}  {int(trace.block[row]):5}  {int(trace.step[row]):8}  {took:7.2f}"
            f"  {int(numbers.accepted_per_step[row]):8}  {int(numbers.edited_per_step[row]):6}"
            f"  {int(numbers.taken_back_per_step[row]):10}  {_real(numbers.entropy_mean[row]):>12}"
        )


def _step_lines(trace: Trace, row: int) -> Iterator[str]:
    _require_step(trace, row)
    start = int(trace.block_start[row])
    yield (
        f"Step {row}: block {int(trace.block[row])}, its forward {int(trace.step[row])}, "
        f"positions {start} to {start + trace.ids.shape[1] - 1}"
    )
    for column in range(trace.ids.shape[1]):
        yield _cell(trace, row, column, f"{start + column:8}")


def _position_lines(trace: Trace, position: int, step: int | None) -> Iterator[str]:
    rows = _rows_of(trace, position, step)
    yield f"Position {position}: {len(rows)} step(s)"
    for row in rows:
        yield _cell(trace, row, position - int(trace.block_start[row]), f"step {row:6}")


def _cell(trace: Trace, row: int, column: int, label: str) -> str:
    before = int(trace.edited_from[row, column])
    parts = [
        label,
        f"{_MARKS[TokenState(int(trace.state[row, column]))]:9}",
        f"p {_real(trace.confidence[row, column])}",
        f"H {_real(trace.entropy[row, column])}",
        quoted(trace, int(trace.ids[row, column])),
    ]
    if before >= 0:
        parts.append(f"instead of {quoted(trace, before)}")
    return "  ".join([*parts, *_candidates(trace, row, column)])


def _candidates(trace: Trace, row: int, column: int) -> list[str]:
    if trace.top_ids is None or trace.top_p is None:
        return []
    pairs = zip(trace.top_ids[row, column].tolist(), trace.top_p[row, column].tolist(), strict=True)
    shown = [f"{quoted(trace, token)} {share:.3f}" for token, share in pairs if token >= 0]
    return [" ".join(["|", *shown[:4]])] if shown else []


def attribution_lines(trace: Trace, found: Attribution) -> Iterator[str]:
    """The tokens from the strongest effect on."""
    yield (
        f"Step {found.step}, position {found.position}: {quoted(trace, found.token)} "
        f"with {found.confidence:.4f}"
    )
    if not found.positions.size:
        yield "No token was accepted before it within reach."
        return
    yield "without      effect  position"
    most = float(np.abs(found.effect).max())
    for index in np.argsort(-np.abs(found.effect), kind="stable").tolist():
        effect = float(found.effect[index])
        bar = "█" * round(BAR * abs(effect) / most) if most > 0 else ""
        token = quoted(trace, int(found.tokens[index]))
        yield (
            f"{found.without[index]:7.4f}  {effect:+10.4f}  {int(found.positions[index]):8}"
            f"  {token:12}  {bar}".rstrip()
        )


def trace_json(trace: Trace, step: int | None, position: int | None) -> Json:
    """The header, the figures, and all cells of what was asked for."""
    found: Json = {
        "trace": header_to_json(trace.header),
        "figures": {figure.key: figure.value for figure in numbers_of(trace).figures},
        "steps": len(trace),
    }
    if position is not None:
        rows = _rows_of(trace, position, step)
        found["cells"] = [_cell_json(trace, r, position - int(trace.block_start[r])) for r in rows]
    elif step is not None:
        _require_step(trace, step)
        found["cells"] = [_cell_json(trace, step, column) for column in range(trace.ids.shape[1])]
    return found


def _cell_json(trace: Trace, row: int, column: int) -> Json:
    candidates = None
    if trace.top_ids is not None and trace.top_p is not None:
        ids, shares = trace.top_ids[row, column].tolist(), trace.top_p[row, column].tolist()
        candidates = [
            [token, share] for token, share in zip(ids, shares, strict=True) if token >= 0
        ]
    return {
        "step": row,
        "position": int(trace.block_start[row]) + column,
        "id": int(trace.ids[row, column]),
        "state": _MARKS[TokenState(int(trace.state[row, column]))],
        "confidence": _known(trace.confidence[row, column]),
        "entropy": _known(trace.entropy[row, column]),
        "edited_from": int(trace.edited_from[row, column]),
        "candidates": candidates,
    }


def attribution_json(trace: Trace, found: Attribution) -> Json:
    return {
        "trace_id": trace.header.trace_id,
        "step": found.step,
        "position": found.position,
        "id": found.token,
        "confidence": found.confidence,
        "positions": found.positions.tolist(),
        "ids": found.tokens.tolist(),
        "without": found.without.tolist(),
        "effect": found.effect.tolist(),
    }


def print_json(value: Json) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _rows_of(trace: Trace, position: int, step: int | None) -> list[int]:
    length = trace.ids.shape[1]
    inside = (trace.block_start <= position) & (position < trace.block_start + length)
    if step is not None:
        _require_step(trace, step)
        inside &= np.arange(len(trace)) == step
    rows = np.flatnonzero(inside).tolist()
    if not rows:
        first, last = int(trace.block_start[0]), int(trace.block_start[-1]) + length - 1
        raise _not_there(
            f"Position {position} is not in the block of this step."
            if step is not None
            else f"Position {position} is in no block of this trace.",
            f"Choose one from {first} to {last}",
        )
    return rows


def _require_step(trace: Trace, row: int) -> None:
    if not 0 <= row < len(trace):
        raise _not_there(
            f"Step {row} is not in this trace.", f"Choose one from 0 to {len(trace) - 1}"
        )


def _not_there(problem: str, action: str) -> TraceError:
    return TraceError("trace.not_there", problem, f"{action}.")


def _known(value: float) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number


def _real(value: float) -> str:
    return f"{NOT_JUDGED:>6}" if math.isnan(value) else f"{value:6.3f}"


def _plain(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
