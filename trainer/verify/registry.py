"""Verifiers by kind: from a spec, as it stands in a run's file, to something that judges replies.

Knows the kinds; how each judges is in its own module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from engine.errors import RequestError
from trainer.data.skills import Example
from trainer.data.task import Task
from trainer.verify import verify_many
from trainer.verify.verdict import RIGHT, Verdict
from trainer.verify.verifier_spec import VerifierSpec


class Verifier(Protocol):
    """Judges replies. labels: whether a verdict says that a reply is right, or only lets it pass
    (self-distillation for speed)."""

    labels: bool

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        """One verdict a reply, in order."""
        ...


class DemoVerifier:
    """The built-in skills' own checks (`Task.check` is an example's)."""

    labels = True

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        examples = [
            Example(task.skill, task.id, "", task.reference or "", dict(task.check), False)
            for task in tasks
        ]
        return verify_many(examples, replies)


class AcceptAll:
    """Lets every reply pass: the model learns to say faster what it says anyway."""

    labels = False

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        return [RIGHT for _ in replies]


KINDS: dict[str, Callable[[Mapping[str, Any]], Verifier]] = {
    "demo": lambda options: DemoVerifier(),
    "accept_all": lambda options: AcceptAll(),
}


def make_verifier(spec: VerifierSpec) -> Verifier:
    """Raises RequestError `verifier.kind` for a kind there is not."""
    make = KINDS.get(spec.kind)
    if make is None:
        raise RequestError(
            "verifier.kind",
            f"There is no verifier {spec.kind!r:.40}; there are {', '.join(sorted(KINDS))}.",
            "Choose one of these.",
        )
    return make(spec.options)
