"""The figures of one recorded reply, each with its definition.

Knows what is counted and over what. A figure that a trace cannot give is None with the reason,
never 0. How a figure is shown is somebody else's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.trace.reading import BlockSpan, Changes, changes_of, end_of, spans_of
from engine.trace.trace import Trace

NOT_ENDED = "This trace does not hold the end of its reply."
NOT_TIMED = "The steps of this trace carry no times."
NOT_JUDGED = "No position was judged by a forward in this trace."


@dataclass(frozen=True)
class Figure:
    """One number of a reply. value None: it could not be had, and `missing` says why. unit: after
    the number, or "". digits: decimals worth showing."""

    key: str
    name: str
    value: float | None
    unit: str
    definition: str
    digits: int = 0
    missing: str = ""

    @property
    def text(self) -> str:
        """As a person reads it; an en dash where there is no value."""
        if self.value is None:
            return "–"
        number = f"{self.value:,.{self.digits}f}"
        return f"{number} {self.unit}" if self.unit else number


@dataclass(frozen=True, eq=False)
class TraceNumbers:
    """figures: in the order in which they are read. accepted_per_step, edited_per_step,
    taken_back_per_step: int64 [S], tokens of the step's block. entropy_mean, entropy_max: float64
    [S], nats, over the positions that are open or were accepted in it; NaN where none was judged.
    steps_per_block: int64 [B]. capped: blocks whose steps ran out."""

    figures: tuple[Figure, ...]
    accepted_per_step: npt.NDArray[np.int64]
    edited_per_step: npt.NDArray[np.int64]
    taken_back_per_step: npt.NDArray[np.int64]
    entropy_mean: npt.NDArray[np.float64]
    entropy_max: npt.NDArray[np.float64]
    steps_per_block: npt.NDArray[np.int64]
    capped: tuple[int, ...]

    def __getitem__(self, key: str) -> Figure:
        """Raises KeyError for a figure that does not exist."""
        for figure in self.figures:
            if figure.key == key:
                return figure
        raise KeyError(key)


def numbers_of(trace: Trace) -> TraceNumbers:
    spans = spans_of(trace)
    changes = changes_of(trace, spans)
    entropy_mean, entropy_max = _entropy(trace, changes)
    capped = tuple(
        span.block for span in spans if end_of(trace, span, last=span is spans[-1]) == "cap"
    )
    numbers = TraceNumbers(
        figures=(),
        accepted_per_step=changes.accepted.sum(axis=1),
        edited_per_step=changes.edited.sum(axis=1),
        taken_back_per_step=changes.taken_back.sum(axis=1),
        entropy_mean=entropy_mean,
        entropy_max=entropy_max,
        steps_per_block=np.array([span.steps for span in spans], dtype=np.int64),
        capped=capped,
    )
    figures = (*_reply_figures(trace), *_step_figures(trace, spans, numbers))
    return TraceNumbers(**{**vars(numbers), "figures": figures})


def _entropy(
    trace: Trace, changes: Changes
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    known = changes.judged & ~np.isnan(trace.entropy)
    values = np.where(known, trace.entropy, 0.0).astype(np.float64)
    count = known.sum(axis=1)
    mean = np.full(len(trace), np.nan)
    np.divide(values.sum(axis=1), count, out=mean, where=count > 0)
    highest = (
        np.where(known, trace.entropy, -np.inf).astype(np.float64).max(axis=1, initial=-np.inf)
    )
    return mean, np.where(count > 0, highest, np.nan)


def _reply_figures(trace: Trace) -> tuple[Figure, ...]:
    stats = trace.header.stats

    def figure(key: str, name: str, unit: str, digits: int, definition: str) -> Figure:
        value = None if stats is None else float(getattr(stats, key))
        return Figure(
            key, name, value, unit, definition, digits, NOT_ENDED if stats is None else ""
        )

    return (
        figure(
            "tokens", "Tokens", "", 0,
            "Kept in the answer, up to and including the first stop token; the prompt apart.",
        ),
        figure(
            "forwards", "Forwards", "", 0,
            "Runs of the model spent on the answer, commits included, prefill apart.",
        ),
        figure(
            "commit_forwards", "Commit forwards", "", 0,
            "Forwards that only committed a block and were shared with no step.",
        ),
        figure("tpf", "TPF", "", 2, "Tokens per forward: tokens / forwards."),
        figure(
            "ceiling", "Ceiling", "", 2,
            "The TPF this answer would have at one forward per block it needs, plus the commits "
            "that cannot be shared.",
        ),
        figure(
            "tokens_per_second", "Tokens per second", "tok/s", 0,
            "Tokens / seconds from the start of the first step to the end of the last.",
        ),
    )  # fmt: skip


def _step_figures(
    trace: Trace, spans: tuple[BlockSpan, ...], numbers: TraceNumbers
) -> tuple[Figure, ...]:
    steps = len(trace)
    per_block = numbers.steps_per_block
    judged = ~np.isnan(numbers.entropy_mean)
    seconds = float(trace.seconds[-1]) if steps else 0.0

    def count(key: str, name: str, value: int, definition: str) -> Figure:
        return Figure(key, name, float(value), "", definition)

    def over(
        key: str, name: str, value: float | None, unit: str, definition: str, missing: str = ""
    ) -> Figure:
        return Figure(key, name, value, unit, definition, 2, missing if value is None else "")

    return (
        count("steps", "Steps", steps, "Denoising forwards in this trace."),
        count("blocks", "Blocks", len(spans), "Blocks with at least one step in this trace."),
        over(
            "steps_per_block", "Steps per block", float(per_block.mean()) if steps else None, "",
            "Mean over the blocks of this trace.", "This trace holds no step.",
        ),
        over(
            "steps_per_block_max", "Most steps in a block",
            float(per_block.max()) if steps else None, "",
            "Of the block that took the most.", "This trace holds no step.",
        ),
        over(
            "ms_per_step", "Milliseconds per step",
            seconds / steps * 1000 if seconds > 0 else None, "ms",
            "Time of the last step's end / steps; a commit between two blocks is in it.", NOT_TIMED,
        ),
        over(
            "accepted_per_step", "Accepted per step",
            float(numbers.accepted_per_step.mean()) if steps else None, "",
            "Tokens that became accepted in a step, mean over the steps; block-local.",
            "This trace holds no step.",
        ),
        over(
            "entropy_mean", "Mean entropy",
            float(numbers.entropy_mean[judged].mean()) if judged.any() else None, "nat",
            "Over the positions open or accepted in a step, then over the steps; block-local.",
            NOT_JUDGED,
        ),
        over(
            "entropy_max", "Highest entropy",
            float(numbers.entropy_max[judged].max()) if judged.any() else None, "nat",
            "Of any position open or accepted in a step.", NOT_JUDGED,
        ),
        count(
            "edits", "Edits", int(numbers.edited_per_step.sum()),
            "Accepted tokens that a later step of their block replaced.",
        ),
        count(
            "remasks", "Taken back", int(numbers.taken_back_per_step.sum()),
            "Accepted tokens that became open again.",
        ),
        count(
            "capped_blocks", "Blocks at the cap", len(numbers.capped),
            "Blocks whose steps ran out before they were done, as far as the trace tells: a block "
            "whose edits were cut short with every position filled does not show.",
        ),
    )  # fmt: skip
