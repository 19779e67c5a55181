"""Finds what a reply states as its result: a number, a boxed expression, a block of code or JSON.

Knows how answers are usually marked. Refuses to know whether they are right.
"""

from __future__ import annotations

import re
from fractions import Fraction

# A sign counts only where no number or word stands before it: `7-3` holds 7 and 3.
_NUMBER = re.compile(
    r"(?:(?<![\w.)])[-+\u2212])?"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.\d+|(?<![\d.])\.\d+)?"
    r"(?:(?<=\d)[eE][-+]?\d{1,3})?(?:(?<=\d) ?/ ?\d+)?"
)
_MARKS = (
    re.compile(r"####"),
    re.compile(r"\\boxed\s*\{"),
    re.compile(r"\banswer\b[^\n\d]{0,40}?(?:\bis\b|:|=)", re.IGNORECASE),
)
_BRACKET = re.compile(r"\\boxed\s*\{|\\[\\{}]|[{}]")
LONGEST_NUMBER = 400  # characters; longer ones are no answers, and slow to compare


def numbers(text: str) -> list[Fraction]:
    """Every number in a text, in order: `1,234.5`, `-3`, `.5`, `2/3`, `1e6`."""
    found = []
    for match in _NUMBER.finditer(text):
        value = _value(match.group())
        if value is not None:
            found.append(value)
    return found


def _value(token: str) -> Fraction | None:
    if not any(c.isdigit() for c in token) or len(token) > LONGEST_NUMBER:
        return None
    plain = token.replace(",", "").replace("\u2212", "-").replace(" ", "")
    over, _, under = plain.partition("/")
    try:
        return Fraction(over) / Fraction(under) if under else Fraction(over)
    except (ValueError, ZeroDivisionError):
        return None


def final_number(text: str, marker: str = "") -> Fraction | None:
    """The number a text ends with. marker: the first number after its last occurrence (None where
    it does not occur). Without one: the first number after the last `####`, else `\\boxed{`, else
    `answer is` or `answer:`; else the last number of all."""
    if marker:
        at = text.rfind(marker)
        return None if at < 0 else _first(numbers(text[at + len(marker) :]))
    for mark in _MARKS:
        ends = [match.end() for match in mark.finditer(text)]
        if ends and (value := _first(numbers(text[ends[-1] :]))) is not None:
            return value
    found = numbers(text)
    return found[-1] if found else None


def _first(found: list[Fraction]) -> Fraction | None:
    return found[0] if found else None


def last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{...}` whose brackets close, None where there is none. One pass,
    whatever the text holds."""
    opened: list[int] = []  # where the content of each open bracket begins; -1: it is no box's
    found: tuple[int, int] | None = None
    for match in _BRACKET.finditer(text):
        sign = match.group()
        if sign == "}":
            start = opened.pop() if opened else -1
            if start >= 0 and (found is None or start > found[0]):
                found = start, match.start()
        elif sign == "{":
            opened.append(-1)
        elif not sign.endswith(("\\{", "\\}", "\\\\")):
            opened.append(match.end())
    return None if found is None else text[found[0] : found[1]].strip()


def fenced_blocks(text: str, languages: tuple[str, ...]) -> list[str]:
    """Contents of the closed fenced blocks marked with one of `languages`, or with none."""
    blocks: list[str] = []
    inside: list[str] | None = None
    name = ""
    for line in text.splitlines(keepends=True):
        if not line.startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            name = next(iter(line[3:].split()), "").lower()
            inside = []
        elif line.strip() == "```":
            if not name or name in languages:
                blocks.append("".join(inside))
            inside = None
        else:
            inside.append(line)
    return blocks
