"""Judges replies that hold a Python function, by running it on calls the prompt does not show."""

from __future__ import annotations

import re
from typing import Any

from trainer.verify.records import same
from trainer.verify.sandbox import Sandbox, shared_sandbox
from trainer.verify.verdict import RIGHT, Verdict, wrong

_BLOCK = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def check_python(check: dict[str, Any], reply: str, sandbox: Sandbox | None = None) -> Verdict:
    """check: {"function": name, "cases": [[arguments, expected result]]}."""
    block = _BLOCK.search(reply)
    if block is None:
        return wrong("no fenced Python block")
    cases = check["cases"]
    run = (sandbox or shared_sandbox()).run(
        block.group(1), check["function"], [arguments for arguments, _ in cases]
    )
    for found, (arguments, expected) in zip(run.results, cases, strict=False):
        if not same(found, expected):
            return wrong(f"{check['function']}{tuple(arguments)} gave {found!r}")
    if run.error is not None:
        return wrong(run.error)
    return RIGHT if len(run.results) == len(cases) else wrong("not every call returned")
