"""Sentences and numbers of the inspector: the same words in tooltips, the card and the text view.

It knows how a moment of a position is said. "Not captured" is said, never a number in its place. It
refuses to know widgets.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QCoreApplication

from app.models.inspector import InspectorModel
from app.models.inspector_curves import DOUBTED, Mark, MarkKind
from app.models.inspector_data import InspectorData, Moment
from app.models.inspector_fills import FillKey
from app.ui.inspector.token_layout import shown
from engine.trace.compare import Difference
from engine.types import TokenState

EN_DASH = "–"


def tr(text: str) -> str:
    return QCoreApplication.translate("Inspector", text)


def state_name(state: TokenState) -> str:
    return {
        TokenState.MASKED: tr("masked"),
        TokenState.DRAFT: tr("draft"),
        TokenState.COMMITTED: tr("committed"),
        TokenState.EDITED: tr("edited"),
        TokenState.PROMPT: tr("prompt"),
    }[state]


def fill_name(fill: FillKey) -> str:
    return {
        "confidence": tr("Confidence"),
        "entropy": tr("Entropy"),
        "margin": tr("Margin"),
        "commit": tr("Commit step"),
        "edits": tr("Edits"),
        "age": tr("Age"),
        "difference": tr("Difference"),
    }[fill]


def capture_meaning(level: str) -> str:
    """What a capture level keeps, and what it cost when bench/trace_levels.py measured it."""
    if level == "top-k":
        return tr(
            "Also the 16 most likely tokens of every position, for the next answers. Measured on "
            "the demo on a CPU: 2.8 % longer steps, 4.7 KB a step."
        )
    return tr(
        "Tokens, states, confidence and entropy of every step, for the next answers. Measured on "
        "the demo on a CPU: 1.0 % longer steps, 0.6 KB a step."
    )


def fill_meaning(fill: FillKey) -> str:
    return {
        "confidence": tr("Probability the model gave the token shown, at its last judged step."),
        "entropy": tr("How undecided the model was, in nats: 0 is sure, ln V is knowing nothing."),
        "margin": tr("Probability of the best candidate minus that of the second best."),
        "commit": tr("Step of its block in which the token was accepted, from 0."),
        "edits": tr("How often an accepted token was replaced, within its block."),
        "age": tr("Steps of its block since the token or its state last changed."),
        "difference": tr("How the cell differs from the trace it is compared with."),
    }[fill]


def difference_name(kind: Difference) -> str:
    return {
        Difference.SAME: tr("the same"),
        Difference.STATE: tr("same token, open in one"),
        Difference.GUESS: tr("another guess"),
        Difference.TOKEN: tr("another token"),
        Difference.ONLY_A: tr("only in A"),
        Difference.ONLY_B: tr("only in B"),
    }[kind]


def number(value: float, digits: int = 2) -> str:
    """A recorded number; an en dash where it is NaN."""
    return EN_DASH if math.isnan(value) else f"{value:.{digits}f}"


def share(value: float, digits: int = 2) -> str:
    """A probability. One that is not quite 0 or 1 never reads as if it were."""
    text = number(value, digits)
    if 0 < value < 1 and float(text) in (0.0, 1.0):
        return f"<{10.0**-digits:.{digits}f}" if value < 0.5 else f">{1 - 10.0**-digits:.{digits}f}"
    return text


def seconds(value: float) -> str:
    """A time of a reply, with its unit."""
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.3f} s"


def quoted(data: InspectorData, token: int) -> str:
    return f"“{shown(data.text(token))}”"


def place_words(model: InspectorModel, position: int) -> str:
    """ "Position 97, block 3, 1 of 32"; positions count from 0, as in the trace."""
    data = model.data
    if data is None:
        return ""
    segment = data.segment_of(position)
    if segment is None:
        return tr("Position {0}").format(data.first_position + position)
    return tr("Position {0}, block {1}, {2} of {3}").format(
        data.first_position + position,
        segment.block + 1,
        position - segment.begin + 1,
        data.length,
    )


def step_words(model: InspectorModel) -> str:
    """ "Step 12 of 96, block 3, its step 4, 34.1 ms"."""
    data, curves = model.data, model.curves
    if data is None or curves is None:
        return ""
    step = model.selection.step
    segment = data.segment_at(step)
    return tr("Step {0} of {1}, block {2}, its step {3}, at {4}").format(
        f"{step + 1:,}",
        f"{data.steps:,}",
        segment.block + 1,
        int(data.trace.step[step]) + 1,
        seconds(float(curves.seconds[step])),
    )


def moment_words(data: InspectorData, moment: Moment) -> str:
    """State, token and numbers of one moment."""
    parts = [state_name(moment.state)]
    if not data.hides(moment.state):
        parts.append(quoted(data, moment.token))
    if moment.before is not None:
        parts.append(tr("in place of {0}").format(quoted(data, moment.before)))
    if math.isnan(moment.confidence):
        parts.append(tr("not judged"))
    else:
        parts.append(tr("confidence {0}").format(share(moment.confidence)))
        parts.append(tr("entropy {0} nat").format(number(moment.entropy)))
    return ", ".join(parts)


def moment_sentence(
    model: InspectorModel, position: int | None = None, step: int | None = None
) -> str:
    """A position (the selected one) after a step (the selected one)."""
    data = model.data
    if data is None:
        return tr("No trace is open.")
    position = model.selection.position if position is None else position
    moment = data.now(model.selection.step if step is None else step, position)
    if moment is None:
        return tr("{0}: its block has not begun.").format(place_words(model, position))
    return f"{place_words(model, position)}: {moment_words(data, moment)}."


def mark_words(mark: Mark) -> str:
    count = f"{mark.count:,}"
    return {
        MarkKind.BLOCK: tr("block {0} begins").format(mark.count + 1),
        MarkKind.EDIT: tr("{0} edited").format(count),
        MarkKind.REMASK: tr("{0} taken back").format(count),
        MarkKind.CAP: tr("the block ended with {0} open").format(count),
        MarkKind.STOP: tr("a stop token was accepted"),
        MarkKind.DOUBT: tr("{0} accepted before, now below {1}").format(count, DOUBTED),
        MarkKind.GAP: tr("{0} steps before it were not recorded").format(count),
    }[mark.kind]
