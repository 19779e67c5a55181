"""Judges replies by a regular expression, with a time limit on every match.

Knows the `regex` library, whose matching can be cut off: a pattern that backtracks for ever is a
wrong reply with that reason, never a hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import regex

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.verify.verdict import RIGHT, Verdict, wrong

SECONDS = 0.5  # of one match
LONGEST_PATTERN = 10_000  # characters


@dataclass(frozen=True)
class PatternOptions:
    """pattern: in the syntax of the `regex` library. mode: `search` = anywhere in the reply, `full`
    = the whole reply, without white space around it. ignore_case: capitals do not matter."""

    pattern: str
    mode: Literal["search", "full"] = "search"
    ignore_case: bool = False


class PatternMatch:
    """Raises RequestError `verifier.pattern` for a pattern that cannot be read."""

    labels = True

    def __init__(self, options: PatternOptions) -> None:
        self._full = options.mode == "full"
        flags = regex.IGNORECASE if options.ignore_case else 0
        try:
            if not options.pattern or len(options.pattern) > LONGEST_PATTERN:
                raise ValueError(f"it must have 1 to {LONGEST_PATTERN} characters")
            self._pattern = regex.compile(options.pattern, flags)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise RequestError(
                "verifier.pattern",
                f"The pattern cannot be used: {error}.",
                "Correct the regular expression.",
            ) from error

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        return [self._check(reply) for reply in replies]

    def _check(self, reply: str) -> Verdict:
        text = reply.strip()
        match = self._pattern.fullmatch if self._full else self._pattern.search
        try:
            return RIGHT if match(text, timeout=SECONDS) else wrong("the pattern does not match")
        except TimeoutError:
            return wrong(f"the pattern took longer than {SECONDS} s")
