"""Judges replies by how much they agree with the reference's text: exactly, or by their longest
common subsequence of words.

Knows words and their order. Refuses to know meaning: a right answer in other words is wrong here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.verify.verdict import NO_REFERENCE, RIGHT, Verdict, wrong

_WORD = re.compile(r"\w+", re.UNICODE)


@dataclass(frozen=True)
class TextOptions:
    """mode: `exact` = the same text, white space runs being one space; `rouge_l` = F1 of the
    longest common subsequence of words at least `threshold` (0 to 1). ignore_case: for `exact`;
    `rouge_l` always ignores case."""

    mode: Literal["exact", "rouge_l"] = "exact"
    threshold: float = 0.7
    ignore_case: bool = False


class TextAgreement:
    """Raises RequestError `verifier.threshold` for a threshold outside (0, 1]."""

    labels = True

    def __init__(self, options: TextOptions) -> None:
        if not 0.0 < options.threshold <= 1.0:
            raise RequestError(
                "verifier.threshold",
                f"The similarity's threshold is {options.threshold}; at 0 everything would pass.",
                "Give a threshold above 0, at most 1.",
            )
        self.options = options

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        return [self._check(task, reply) for task, reply in zip(tasks, replies, strict=True)]

    def _check(self, task: Task, reply: str) -> Verdict:
        if task.reference is None:
            return NO_REFERENCE
        if self.options.mode == "exact":
            same = self._plain(reply) == self._plain(task.reference)
            return RIGHT if same else wrong("differs from the row's answer")
        score = rouge_l(reply, task.reference)
        if score >= self.options.threshold:
            return RIGHT
        return wrong(f"similarity {score:.2f}, at least {self.options.threshold:.2f} is asked for")

    def _plain(self, text: str) -> str:
        joined = " ".join(text.split())
        return joined.casefold() if self.options.ignore_case else joined


def rouge_l(reply: str, reference: str) -> float:
    """F1 of the longest common subsequence of words, 0 to 1; two texts without words agree when
    they are the same. Source: Lin 2004 (ROUGE-L), beta 1."""
    mine, theirs = _WORD.findall(reply.casefold()), _WORD.findall(reference.casefold())
    if not mine or not theirs:
        return float(reply.split() == reference.split())
    return 2.0 * common_subsequence(mine, theirs) / (len(mine) + len(theirs))


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, one bit a word of `a`: as many big-integer steps
    as `b` has words. Source: Hyyro 2004, bit-parallel LCS."""
    places: dict[str, int] = {}
    for n, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << n
    full = (1 << len(a)) - 1
    row = full
    for word in b:
        hits = row & places.get(word, 0)
        row = ((row + hits) | (row - hits)) & full
    return len(a) - row.bit_count()
