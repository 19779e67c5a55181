r"""Judges replies by a mathematical result, usually in `\boxed{...}`, compared symbolically.

Knows where the result stands; what is equal is decided by `trainer.verify.math_judge`, inside the
sandbox and within its limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainer.data.task import Task
from trainer.verify.extract import last_boxed
from trainer.verify.sandbox import Limits, shared_sandbox
from trainer.verify.verdict import NO_REFERENCE, RIGHT, Verdict, wrong

JUDGE = Path(__file__).with_name("math_judge.py")
LIMITS = Limits(seconds=3.0, memory=1 << 30)
LONGEST = 2_000  # characters of one expression


@dataclass(frozen=True)
class MathOptions:
    r"""boxed: a reply must put its result in `\boxed{...}`; otherwise the last expression of a
    reply without one is taken."""

    boxed: bool = True


class Maths:
    """Raises SandboxError where the sandbox does not work."""

    labels = True

    def __init__(self, options: MathOptions) -> None:
        self.options = options
        self._sandbox = shared_sandbox(LIMITS, JUDGE)

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        with ThreadPoolExecutor(self._sandbox.size) as pool:
            return list(pool.map(self._check, tasks, replies))

    def _check(self, task: Task, reply: str) -> Verdict:
        if task.reference is None:
            return NO_REFERENCE
        boxed = last_boxed(task.reference)
        expected = task.reference.strip() if boxed is None else boxed
        found = last_boxed(reply)
        if found is None and self.options.boxed:
            return wrong("no \\boxed{} answer")
        if found == expected:
            return RIGHT
        expected = expected.replace("\\$", "")  # a price's sign would open a formula
        found = None if found is None else found.replace("\\$", "")
        mine = f"\\boxed{{{found}}}" if found is not None else reply[-LONGEST:]
        if len(mine) > LONGEST or len(expected) > LONGEST:
            return wrong(f"an answer of more than {LONGEST} characters")
        # A whole worked solution is read as it is, its last expression being the answer.
        gold = f"\\boxed{{{expected}}}" if "$" not in expected else expected
        run = self._sandbox.run_judge("equal", [[gold, mine]])
        if run.error is not None:
            return wrong(f"could not be compared ({run.error})")
        return wrong(str(run.results[0])) if run.results[0] else RIGHT
