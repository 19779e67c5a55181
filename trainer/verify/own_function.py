"""Judges replies by a function in a file of the user's own, run in the sandbox.

The file defines `check(reply, reference, prompt, row)`: True when the reply is right, False or a
text (why not) when it is wrong. Knows how it is called and what it may return; it sees no files, no
network and only the standard modules that the sandbox holds ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.verify.sandbox import MODULES, Limits, shared_sandbox
from trainer.verify.verdict import RIGHT, Verdict, wrong

LARGEST_FILE = 1 << 20  # bytes
REASON = 160  # characters
PROBE = """
def unblur_probe(name):
    import inspect
    inspect.signature(globals()[name]).bind("reply", "reference", "prompt", {})
    return True
"""


@dataclass(frozen=True)
class FunctionOptions:
    """file: path of the Python file. function: its name. seconds: of one reply. megabytes: of
    memory."""

    file: str
    function: str = "check"
    seconds: float = 2.0
    megabytes: int = 512


class OwnFunction:
    """The file is read once, when the verifier is made. Raises RequestError `verifier.file`,
    `verifier.function` or `verifier.limits`; SandboxError where it cannot be run safely."""

    labels = True

    def __init__(self, options: FunctionOptions) -> None:
        if not 0.1 <= options.seconds <= 60 or not 64 <= options.megabytes <= 8192:
            raise RequestError(
                "verifier.limits",
                f"{options.seconds} s and {options.megabytes} MB are outside what it may take.",
                "Give 0.1 to 60 s and 64 to 8192 MB.",
            )
        self._function = options.function
        self._name = Path(options.file).name
        self._code = _read(Path(options.file))
        self._sandbox = shared_sandbox(Limits(options.seconds, options.megabytes << 20))
        self._prove_callable()

    def check_many(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Verdict]:
        with ThreadPoolExecutor(self._sandbox.size) as pool:
            return list(pool.map(self._check, tasks, replies))

    def _check(self, task: Task, reply: str) -> Verdict:
        call = [reply, task.reference, task.messages[-1].content, dict(task.check)]
        run = self._sandbox.run(self._code, self._function, [call])
        if run.error is not None:
            return wrong(f"{self._name}: {run.error}"[:REASON])
        return _verdict(run.results[0], self._function)

    def _prove_callable(self) -> None:
        """The file runs, and the function is there and takes four arguments."""
        run = self._sandbox.run(self._code + PROBE, "unblur_probe", [[self._function]])
        if run.error is not None:
            raise RequestError(
                "verifier.function",
                f"{self._name} cannot judge: {run.error}.",
                f"It must define {self._function}(reply, reference, prompt, row) and may import "
                f"only {', '.join(MODULES)}.",
            )


def _verdict(result: Any, function: str) -> Verdict:
    if result is True:
        return RIGHT
    if result is False:
        return wrong(f"{function}() says no")
    if isinstance(result, str):
        return wrong(result[:REASON] or f"{function}() says no")
    return wrong(f"{function}() returned {result!r:.60}, not True, False or a text")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"more than {LARGEST_FILE >> 20} MB")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RequestError(
            "verifier.file", f"{path} cannot be read: {reason}.", "Name a Python file in UTF-8."
        ) from error
