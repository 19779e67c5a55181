"""Judges replies by the number they end with, compared exactly with the reference's.

Knows how both are found (`trainer.verify.extract`); 42, 42.0 and 84/2 are the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.data.task import Task
from trainer.verify.extract import final_number
from trainer.verify.verdict import NO_REFERENCE, RIGHT, Verdict, wrong


@dataclass(frozen=True)
class NumberOptions:
    """marker: text that stands before the number, in the reply and (where it occurs there) in the
    reference; empty = the usual ones."""

    marker: str = ""


class ExactNumber:
    labels = True

    def __init__(self, options: NumberOptions) -> None:
        self.options = options

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        return [self._check(task, reply) for task, reply in zip(tasks, replies, strict=True)]

    def _check(self, task: Task, reply: str) -> Verdict:
        if task.reference is None:
            return NO_REFERENCE
        marker = self.options.marker
        expected = final_number(task.reference, marker if marker in task.reference else "")
        if expected is None:
            return wrong("the row's own answer holds no number")
        found = final_number(reply, marker)
        if found is None:
            return wrong(f"no number after {marker!r}" if marker else "no number")
        return RIGHT if found == expected else wrong(f"{found} is not {expected}")
