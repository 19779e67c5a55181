"""Verifiers by kind: from a spec, as it stands in a run's file, to something that judges replies.

Knows the kinds and what people call them; how each judges is in its own module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import RequestError
from trainer.data.skills import Example
from trainer.data.task import Task
from trainer.strict_json import read
from trainer.verify import CHECKS, verify
from trainer.verify.exact_number import ExactNumber, NumberOptions
from trainer.verify.json_schema import JsonSchema, SchemaOptions
from trainer.verify.maths import MathOptions, Maths
from trainer.verify.own_function import FunctionOptions, OwnFunction
from trainer.verify.pattern import PatternMatch, PatternOptions
from trainer.verify.sandbox import shared_sandbox
from trainer.verify.similarity import TextAgreement, TextOptions
from trainer.verify.unit_tests import UnitTestOptions, UnitTests
from trainer.verify.verdict import RIGHT, Verdict, wrong
from trainer.verify.verifier_spec import VerifierSpec


class Verifier(Protocol):
    """Judges replies. labels: whether a verdict says that a reply is right, or only lets it pass
    (self-distillation for speed)."""

    labels: bool

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        """One verdict a reply, in order."""
        ...


@dataclass(frozen=True)
class NoOptions:
    """There is nothing to choose."""


class DemoVerifier:
    """The built-in skills' own checks (`Task.check` is an example's)."""

    labels = True

    def __init__(self, options: NoOptions) -> None:
        pass

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        runs = any(task.check.get("kind") == "python" for task in tasks)
        with ThreadPoolExecutor(shared_sandbox().size if runs else 1) as pool:
            return list(pool.map(self._check, tasks, replies))

    def _check(self, task: Task, reply: str) -> Verdict:
        if str(task.check.get("kind")) not in CHECKS:
            return wrong("the row is none of the built-in skills")
        check = dict(task.check)
        example = Example(task.skill, task.id, "", task.reference or "", check, False)
        try:
            return verify(example, reply)
        except (KeyError, TypeError, AttributeError) as error:  # the check is a person's data
            return wrong(f"the row's check is not whole ({type(error).__name__}: {error})"[:160])


class AcceptAll:
    """Lets every reply pass: the model learns to say faster what it says anyway."""

    labels = False

    def __init__(self, options: NoOptions) -> None:
        pass

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        return [RIGHT for _ in replies]


@dataclass(frozen=True)
class Kind:
    """title and summary: for people. options: a dataclass, whose docstring explains its fields.
    make: takes them. reference: judges against the row's own answer."""

    title: str
    summary: str
    options: type[Any]
    make: Callable[[Any], Verifier]
    reference: bool = False


KINDS: dict[str, Kind] = {
    "number": Kind(
        "Exact number",
        "The number a reply ends with must be the one the row's answer ends with.",
        NumberOptions,
        ExactNumber,
        reference=True,
    ),
    "math": Kind(
        "Mathematics",
        "The boxed result must equal the row's, symbolically: 1/2, 0.5 and 2/4 are the same.",
        MathOptions,
        Maths,
        reference=True,
    ),
    "unit_tests": Kind(
        "Python tests",
        "The row's tests are run on the reply's code, locked away from this machine.",
        UnitTestOptions,
        UnitTests,
    ),
    "pattern": Kind(
        "Regular expression",
        "The reply must match a pattern.",
        PatternOptions,
        PatternMatch,
    ),
    "json_schema": Kind(
        "JSON of a given shape",
        "The reply must be JSON that a JSON Schema allows. What it says is not checked.",
        SchemaOptions,
        JsonSchema,
    ),
    "text": Kind(
        "Text like the row's answer",
        "The reply must be the row's answer, exactly or with most of its words in their order.",
        TextOptions,
        TextAgreement,
        reference=True,
    ),
    "function": Kind(
        "My own Python function",
        "check(reply, reference, prompt, row) in a file of yours, locked away from this machine.",
        FunctionOptions,
        OwnFunction,
    ),
    "accept_all": Kind(
        "Accept everything (speed only)",
        "Nothing is checked: self-distillation. The model learns to say faster what it says "
        "anyway, right or wrong.",
        NoOptions,
        AcceptAll,
    ),
    "demo": Kind(
        "Built-in skills",
        "The checks of the demo model's own skills; for rows that come from them.",
        NoOptions,
        DemoVerifier,
    ),
}


def make_verifier(spec: VerifierSpec) -> Verifier:
    """Raises RequestError `verifier.kind` for a kind there is not, `spec.field` for an option that
    is unknown or of another type, and what the kind's own class raises."""
    kind = KINDS.get(spec.kind)
    if kind is None:
        raise RequestError(
            "verifier.kind",
            f"There is no verifier {spec.kind!r:.40}; there are {', '.join(sorted(KINDS))}.",
            "Choose one of these.",
        )
    return kind.make(read(kind.options, spec.options, f"verifier {spec.kind}"))
