"""A comparison as plain data, for `--json` and for other programs.

Knows names and shapes. A number that is not known is null, never 0.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engine.trace.compare import Comparison, Difference, FinalTokens
from engine.trace.drag import Drag, Stubborn, Undone
from engine.trace.numbers import TraceNumbers
from engine.trace.reading import text_of
from engine.trace.trace import Trace
from engine.trace.why import divergence_sentence, why_slower

Json = dict[str, Any]


def comparison_json(a: Trace, b: Trace, found: Comparison) -> Json:
    """Everything a comparison says but its cells, of which only the count of each kind is given.
    Positions and block starts are absolute."""
    cells = None
    if found.raster is not None:
        cells = {kind.name.lower(): int((found.raster.cells == kind).sum()) for kind in Difference}
    at = found.diverged
    return {
        "notes": list(found.notes),
        "a": _side(a, found.a, found.drag_a),
        "b": _side(b, found.b, found.drag_b),
        "slower": found.slower,
        "why_slower": list(why_slower(a, b, found)),
        "diverged": None
        if at is None
        else {
            **asdict(at),
            "kind": at.kind.name.lower(),
            "state_a": at.state_a.name.lower(),
            "state_b": at.state_b.name.lower(),
            "text_a": text_of(a, at.token_a),
            "text_b": text_of(b, at.token_b),
        },
        "diverged_in_words": divergence_sentence(a, b, found),
        "first_token": found.first_token,
        "final_tokens": _final(a, b, found.final),
        "steps_by_block": [asdict(block) for block in found.blocks],
        "cells": cells,
    }


def numbers_json(numbers: TraceNumbers) -> Json:
    """Figures by key, each with unit, definition and, where it is null, the reason."""
    return {
        figure.key: {
            "value": figure.value,
            "unit": figure.unit,
            "definition": figure.definition,
            **({"missing": figure.missing} if figure.value is None else {}),
        }
        for figure in numbers.figures
    }


def _side(trace: Trace, numbers: TraceNumbers, drag: Drag) -> Json:
    header = trace.header
    return {
        "trace_id": header.trace_id,
        "model": header.model_name,
        "quantisation": header.quantisation,
        "runtime": header.runtime,
        "settings": None if header.settings is None else asdict(header.settings),
        "reason": header.reason,
        "text": header.text,
        "figures": numbers_json(numbers),
        "stubborn": [_stubborn(trace, one) for one in drag.stubborn],
        "undone_edits": [_undone(trace, one) for one in drag.undone],
        "idle_steps": drag.idle_steps,
        "undone_steps": drag.undone_steps,
        "capped_blocks": list(drag.capped),
        "steps_per_block": numbers.steps_per_block.tolist(),
    }


def _stubborn(trace: Trace, one: Stubborn) -> Json:
    return {**asdict(one), "text": text_of(trace, one.token)}


def _undone(trace: Trace, one: Undone) -> Json:
    between = text_of(trace, one.between)
    return {**asdict(one), "before_text": text_of(trace, one.before), "between_text": between}


def _final(a: Trace, b: Trace, final: FinalTokens) -> Json:
    """Where the final tokens differ; those that do not are only counted."""
    columns = (final.position, final.a, final.b, final.forward_a, final.forward_b)
    different = [
        {
            "position": position,
            "token_a": token_a if token_a >= 0 else None,
            "token_b": token_b if token_b >= 0 else None,
            "text_a": text_of(a, token_a) if token_a >= 0 else None,
            "text_b": text_of(b, token_b) if token_b >= 0 else None,
            "forward_a": forward_a if forward_a >= 0 else None,
            "forward_b": forward_b if forward_b >= 0 else None,
        }
        for position, token_a, token_b, forward_a, forward_b in zip(
            *(column[final.different].tolist() for column in columns), strict=True
        )
    ]
    return {"compared": len(final.position), "different": different}
