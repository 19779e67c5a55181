"""Judges replies that hold Python code by running the row's tests on it, in the sandbox.

Knows the two usual shapes of tests: a list of assert statements (or one text of them), and a text
that defines `check(candidate)`. The asserts run beside the reply's code, so code written to deceive
them can; counted calls without expected values (`trainer.verify.code`) are stricter.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.verify.extract import fenced_blocks
from trainer.verify.sandbox import Limits, shared_sandbox
from trainer.verify.verdict import RIGHT, Verdict, wrong

TEST_FIELDS = ("test_list", "tests", "test", "test_cases", "unit_tests")
SETUP_FIELDS = ("test_setup_code", "test_imports", "setup")
LONGEST_RUN = 60.0  # seconds

# Runs one test behind the reply's code and returns the token, which no code of a reply knows.
HARNESS = """
def run_unblur_test(token, setup, test, entry):
    space = globals()
    exec(compile(setup, "<setup>", "exec"), space)
    exec(compile(test, "<test>", "exec"), space)
    if entry:
        space["check"](space[entry])
    return token
"""


@dataclass(frozen=True)
class UnitTestOptions:
    """tests: the row's field that holds the tests; empty = the usual names. seconds: of all tests
    of one reply. megabytes: of memory."""

    tests: str = ""
    seconds: float = 3.0
    megabytes: int = 256


@dataclass(frozen=True)
class _Tests:
    """tests: each run by itself behind setup. entry: function that `check` is called with. lead:
    code that a reply may rely on (imports, the signature it was to complete)."""

    setup: str
    tests: tuple[str, ...]
    entry: str = ""
    lead: str = ""


class UnitTests:
    """Raises SandboxError where code cannot be run safely, RequestError `verifier.limits`."""

    labels = True

    def __init__(self, options: UnitTestOptions) -> None:
        if not 0.1 <= options.seconds <= LONGEST_RUN or not 64 <= options.megabytes <= 8192:
            raise RequestError(
                "verifier.limits",
                f"{options.seconds} s and {options.megabytes} MB are outside what a test may take.",
                f"Give 0.1 to {LONGEST_RUN:.0f} s and 64 to 8192 MB.",
            )
        self.options = options
        self._sandbox = shared_sandbox(Limits(options.seconds, options.megabytes << 20))

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        with ThreadPoolExecutor(self._sandbox.size) as pool:
            return list(pool.map(self._check, tasks, replies))

    def _check(self, task: Task, reply: str) -> Verdict:
        tests = row_tests(task.check, self.options.tests)
        if tests is None:
            return wrong("the row has no tests")
        code = _code(reply, tests)
        token = secrets.token_hex(16)
        calls = [[token, tests.setup, test, tests.entry] for test in tests.tests]
        run = self._sandbox.run(code + "\n" + HARNESS, "run_unblur_test", calls)
        if run.error is None and run.results == [token] * len(tests.tests):
            return RIGHT
        number = min(len(run.results) + 1, len(tests.tests))
        failed = tests.tests[number - 1].strip().splitlines()
        what = failed[0][:80] if failed and not tests.entry else "check()"
        return wrong(f"test {number} of {len(tests.tests)}, {what}: {run.error or 'no result'}")


def row_tests(row: Mapping[str, Any], field: str = "") -> _Tests | None:
    """The tests of a row; None where it has none. field: its name, empty = the usual ones."""
    name = field or next((name for name in TEST_FIELDS if row.get(name)), "")
    tests = [test for test in _texts(row.get(name)) if test.strip()]
    if not tests:
        return None
    setup = "\n".join(text for name in SETUP_FIELDS for text in _texts(row.get(name)))
    entry = row.get("entry_point")
    if isinstance(entry, str) and entry and any("def check(" in test for test in tests):
        lead = row.get("prompt")
        return _Tests(setup, ("\n".join(tests),), entry, lead if isinstance(lead, str) else "")
    return _Tests(setup, tuple(tests))


def _texts(value: Any) -> list[str]:
    """Text or a list of texts, also as JSON in a cell of a table."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _code(reply: str, tests: _Tests) -> str:
    """The reply's code: its fenced blocks, else all of it; behind the given beginning where it only
    continues that."""
    blocks = fenced_blocks(reply, ("python", "py", "python3"))
    code = "\n\n".join(blocks) if blocks else reply
    if not tests.entry or not tests.lead:
        return code
    if re.search(rf"^(?:async )?def {re.escape(tests.entry)}\b", code, re.MULTILINE):
        given = tests.lead.partition(f"def {tests.entry}")[0]  # its imports and helpers
        return f"{given}\n{code}"
    return tests.lead + code
