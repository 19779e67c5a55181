"""Judges replies that are a JSON value, alone or in one fenced block."""

from __future__ import annotations

import json
import re
from typing import Any

from trainer.verify.verdict import RIGHT, Verdict, wrong

_FENCE = re.compile(r"^```(?:json)?\n(.*)\n```$", re.DOTALL)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice")
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def same(a: Any, b: Any) -> bool:
    """Equality that tells true from 1 and 1 from 1.0; the order of keys does not matter."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def strict_json(text: str) -> Any:
    """A JSON value as the standard has it: no key twice, no NaN. Raises ValueError or
    RecursionError."""
    return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def check_json(check: dict[str, Any], reply: str) -> Verdict:
    """check: {"value": JSON value}."""
    text = reply.strip()
    fenced = _FENCE.match(text)
    try:
        found = strict_json(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError) as error:
        return wrong(f"not JSON: {error}")
    return RIGHT if same(found, check["value"]) else wrong("the JSON differs from the sentence")
