"""Judges replies that must be JSON of a given shape.

Knows JSON Schema through `jsonschema`, with two of its dangers taken out: nothing is fetched from
the network, and patterns are matched with a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import regex
from jsonschema import ValidationError, validators
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.verify.extract import fenced_blocks
from trainer.verify.records import strict_json
from trainer.verify.verdict import RIGHT, Verdict, wrong

SECONDS = 0.5  # of one pattern
REASON = 160  # characters of a reason


@dataclass(frozen=True)
class SchemaOptions:
    """schema: as in json-schema.org; `$schema` names the draft, 2020-12 by default."""

    schema: Mapping[str, Any]


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not regex.search(pattern, value, timeout=SECONDS):
        yield ValidationError(f"{value!r:.60} does not match {pattern!r:.60}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: Any, _: Any
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    for pattern, schema in patterns.items():
        for key, item in value.items():
            if regex.search(pattern, key, timeout=SECONDS):
                yield from validator.descend(item, schema, path=key, schema_path=pattern)


class JsonSchema:
    """Raises RequestError `verifier.schema` for a schema that cannot be used."""

    labels = True

    def __init__(self, options: SchemaOptions) -> None:
        schema = dict(options.schema)
        base = validators.validator_for(schema)
        rules = {"pattern": _pattern, "patternProperties": _pattern_properties}
        try:
            base.check_schema(schema)
            self._validator = validators.extend(base, rules)(schema, registry=Registry())
            self._first_problem(None)
        except (SchemaError, Unresolvable, RecursionError, regex.error, ValueError) as error:
            words = getattr(error, "message", "") or str(error) or type(error).__name__
            raise RequestError(
                "verifier.schema",
                f"The schema cannot be used: {words[:REASON]}.",
                "Correct the schema; references must stay inside it.",
            ) from error

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        return [self._check(reply) for reply in replies]

    def _first_problem(self, value: Any) -> ValidationError | None:
        return next(iter(self._validator.iter_errors(value)), None)

    def _check(self, reply: str) -> Verdict:
        text = reply.strip()
        blocks = fenced_blocks(text, ("json",))
        if len(blocks) > 1:
            return wrong(f"{len(blocks)} blocks of JSON")
        try:
            value = strict_json(blocks[0] if blocks else text)
        except (ValueError, RecursionError) as error:
            return wrong(f"not JSON: {error}"[:REASON])
        try:
            problem = self._first_problem(value)
        except TimeoutError:
            return wrong(f"a pattern of the schema took longer than {SECONDS} s")
        except (Unresolvable, RecursionError, regex.error) as error:
            return wrong(f"the schema cannot be applied: {error}"[:REASON])
        if problem is None:
            return RIGHT
        place = "/".join(map(str, problem.absolute_path))
        return wrong(f"{place or 'the whole'}: {problem.message}"[:REASON])
