"""Judges replies about the app: every asked fact is there, and nothing else is claimed.

A reply is read as sentences. Required sentences may come in any order; the greeting and the
farewell that answer the prompt must stand first and last.
"""

from __future__ import annotations

import re
from typing import Any

from trainer.verify.verdict import RIGHT, Verdict, wrong

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def check_facts(check: dict[str, Any], reply: str) -> Verdict:
    """check: {"facts": [sentence], "hello": str, "bye": str} (empty when not called for)."""
    found = _SENTENCE_END.split(reply.strip())
    expected = [part for part in (check["hello"], *check["facts"], check["bye"]) if part]
    for sentence in found:
        if sentence not in expected:
            return wrong(f"not asked for or not true: {sentence!r}")
    for sentence in expected:
        if found.count(sentence) != 1:
            return wrong(f"missing or repeated: {sentence!r}")
    if check["hello"] and found[0] != check["hello"]:
        return wrong("the greeting does not stand first")
    if check["bye"] and found[-1] != check["bye"]:
        return wrong("the farewell does not stand last")
    return RIGHT
