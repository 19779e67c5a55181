"""Tries a verifier before anything is trained with it: does it accept the rows' own answers, and
does it refuse wrong ones?

Knows only what it can see from outside. A verifier that refuses every right answer teaches nothing,
one that accepts everything teaches anything: both are refused here, by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.verify.registry import Verifier

NONSENSE = ("", "?", "lorem ipsum 0 [] {} none")


@dataclass(frozen=True)
class Refused:
    """A right answer that the verifier refused: the row's id, the answer, the reason."""

    id: str
    answer: str
    reason: str


@dataclass(frozen=True)
class Probe:
    """accepted of tried right answers; refused: the others. wrong_accepted of wrong_tried answers
    that belong to other rows, or to none. labels: as the verifier's own."""

    accepted: int
    tried: int
    refused: tuple[Refused, ...]
    wrong_accepted: int
    wrong_tried: int
    labels: bool

    @property
    def sentence(self) -> str:
        """For a person."""
        if not self.labels:
            return (
                "Nothing is checked: every reply passes. The model learns to say faster what it "
                "says anyway (self-distillation, for speed only)."
            )
        if not self.tried:
            said = "The rows have no answers, so this verifier could not be tried on right ones"
        else:
            said = f"This verifier accepts {self.accepted} of {self.tried} reference answers"
        return f"{said}, and {self.wrong_accepted} of {self.wrong_tried} wrong ones."

    def refuse_useless(self) -> None:
        """Raises RequestError `verifier.always_fails` or `verifier.always_passes`."""
        if not self.labels:
            return
        if self.tried and not self.accepted:
            first = self.refused[0]
            raise RequestError(
                "verifier.always_fails",
                f"This verifier refuses all {self.tried} reference answers that were tried, so "
                f"nothing could be learnt. The first, {first.id}: {first.reason}.",
                "Choose another verifier, change its options, or name the column of the answers.",
            )
        if self.wrong_tried and self.wrong_accepted == self.wrong_tried:
            raise RequestError(
                "verifier.always_passes",
                f"This verifier accepts all {self.wrong_tried} wrong answers that were tried, so "
                "it cannot tell a right reply from a wrong one.",
                "Choose another verifier or change its options; to train for speed alone, choose "
                "the one that accepts everything and says so.",
            )


def probe(verifier: Verifier, tasks: Sequence[Task], answers: Sequence[str] | None = None) -> Probe:
    """Tries `answers` (the rows' references by default) as right ones, and, as wrong ones, each
    row's neighbours' answers where they differ, and nonsense."""
    if answers is None:
        given = [(task, task.reference) for task in tasks if task.reference is not None]
    else:
        given = list(zip(tasks, answers, strict=True))
    right = verifier.check_many([task for task, _ in given], [answer for _, answer in given])
    refused = [
        Refused(task.id, answer, verdict.reason)
        for (task, answer), verdict in zip(given, right, strict=True)
        if not verdict.ok
    ]
    bad = _wrong(tasks, given)
    verdicts = verifier.check_many([task for task, _ in bad], [answer for _, answer in bad])
    return Probe(
        len(given) - len(refused),
        len(given),
        tuple(refused),
        sum(verdict.ok for verdict in verdicts),
        len(bad),
        verifier.labels,
    )


def _wrong(tasks: Sequence[Task], given: Sequence[tuple[Task, str]]) -> list[tuple[Task, str]]:
    bad = [(task, text) for task in tasks[:3] for text in NONSENSE if text != task.reference]
    for (task, own), (_, other) in zip(given, [*given[1:], *given[:1]], strict=True):
        if other.strip() != own.strip():
            bad.append((task, other))
    return bad
