"""Collects the events of a reply into a `Trace`.

Knows the events of the seam and nothing of who sends them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.trace.header import TraceHeader
from engine.trace.trace import KeptLogits, Trace
from engine.types import Event, Finished, StepTaken


class TraceRecorder:
    """Takes `StepTaken` events as they pass, and the end of the reply."""

    def __init__(self, header: TraceHeader | None = None) -> None:
        self._header = header or TraceHeader()
        self._steps: list[StepTaken] = []

    def take(self, event: Event) -> None:
        """Any event of a reply; those that a trace does not hold are passed over."""
        if isinstance(event, StepTaken):
            self.add(event)
        elif isinstance(event, Finished):
            self._header = replace(
                self._header, reason=event.reason, text=event.text, stats=event.stats
            )

    def add(self, step: StepTaken) -> None:
        self._steps.append(step)

    def __len__(self) -> int:
        return len(self._steps)

    def trace(self) -> Trace:
        """What has been recorded so far. Raises ValueError when nothing has."""
        steps = self._steps
        if not steps:
            raise ValueError("no step has been recorded")

        def column(name: str) -> npt.NDArray[np.int32]:
            return np.array([getattr(s, name) for s in steps], dtype=np.int32)

        top_ids, top_p = _candidates(steps)
        return Trace(
            block=column("block"),
            step=column("step"),
            block_start=column("block_start"),
            forwards=column("forwards"),
            seconds=np.array([s.seconds for s in steps], dtype=np.float64),
            ids=np.stack([s.ids for s in steps]),
            edited_from=np.stack([s.edited_from for s in steps]),
            state=np.stack([s.state for s in steps]),
            confidence=np.stack([s.confidence for s in steps]),
            entropy=np.stack([s.entropy for s in steps]),
            top_ids=top_ids,
            top_p=top_p,
            logits=_logits(steps),
            header=self._header,
        )


def _candidates(
    steps: list[StepTaken],
) -> tuple[npt.NDArray[np.int32] | None, npt.NDArray[np.float32] | None]:
    ids = [step.top_ids for step in steps if step.top_ids is not None]
    p = [step.top_p for step in steps if step.top_p is not None]
    if not ids:
        return None, None
    return np.stack(ids), np.stack(p)


def _logits(steps: list[StepTaken]) -> KeptLogits | None:
    rows = [(row, step) for row, step in enumerate(steps) if step.logits is not None]
    if not rows:
        return None
    kept, owners, positions = [], [], []
    for row, step in rows:
        assert step.logits is not None
        assert step.logit_positions is not None
        kept.append(step.logits)
        positions.append(step.logit_positions)
        owners.append(np.full(len(step.logits), row, dtype=np.int32))
    return KeptLogits(np.concatenate(owners), np.concatenate(positions), np.concatenate(kept))
