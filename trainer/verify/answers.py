"""Judges replies that end in `Answer: ...`: a number, a text or a list of items.

Knows the last line and the equations above it; the last line is compared exactly.
"""

from __future__ import annotations

import re
from typing import Any

from trainer.verify.verdict import RIGHT, Verdict, wrong
from trainer.verify.working import equations, false_equation

_LAST_LINE = re.compile(r"^Answer: (.+)$")


def final_answer(reply: str) -> str | None:
    """What stands after `Answer: ` in the last line, None when the reply does not end that way."""
    lines = reply.strip().splitlines()
    match = _LAST_LINE.match(lines[-1].rstrip()) if lines else None
    return match.group(1) if match else None


def _judge(reply: str, expected: str, check: dict[str, Any]) -> Verdict:
    found = final_answer(reply)
    if found is None:
        return wrong("the last line is not an answer")
    if found != expected:
        return wrong(f"answer {found!r}, expected {expected!r}")
    broken = false_equation(reply)
    if broken is not None:
        return wrong(f"false step: {broken}")
    if check.get("working") and not equations(reply):
        return wrong("no working is shown")
    return RIGHT


def check_number(check: dict[str, Any], reply: str) -> Verdict:
    """check: {"value": int, "working": bool}; working asks for at least one equation."""
    return _judge(reply, str(check["value"]), check)


def check_text(check: dict[str, Any], reply: str) -> Verdict:
    """check: {"value": str}; strings in single quotes are compared with their quotes."""
    expected = check["value"]
    return _judge(reply, f"'{expected}'" if check.get("quoted") else expected, check)


def check_items(check: dict[str, Any], reply: str) -> Verdict:
    """check: {"items": [str]}; the same items in the same order, `none` for no item."""
    return _judge(reply, ", ".join(check["items"]) or "none", check)
