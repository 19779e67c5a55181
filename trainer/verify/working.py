"""Checks every equation a reply writes down: both sides must have the same value.

Knows integers, decimals, + - * / and brackets. Refuses to judge what is not an equation between
numbers, such as `1 km = 1000 m`.
"""

from __future__ import annotations

import re
from fractions import Fraction

# Two or more expressions of digits, signs and brackets, joined by `=` (not `<=`, `>=`, `==`).
_EXPRESSION = r"[\d(][\d+\-*/(). ]*"
_EQUATION = re.compile(rf"(?<![\w.+\-*/<>=]){_EXPRESSION}(?:= ?{_EXPRESSION})+")
_TAG = re.compile(r"^\(\d+\) ")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[-+*/()]")


class MalformedError(ValueError):
    """An expression that cannot be read."""


class _Reader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        if "".join(self.tokens) != text.replace(" ", ""):
            raise MalformedError(text)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def total(self) -> Fraction:
        value = self.term()
        while self.peek() in ("+", "-"):
            value = value + self.term() if self.take() == "+" else value - self.term()
        return value

    def term(self) -> Fraction:
        value = self.factor()
        while self.peek() in ("*", "/"):
            if self.take() == "*":
                value *= self.factor()
            else:
                divisor = self.factor()
                if divisor == 0:
                    raise MalformedError("division by zero")
                value /= divisor
        return value

    def factor(self) -> Fraction:
        token = self.take()
        if token == "(":
            value = self.total()
            if self.take() != ")":
                raise MalformedError("bracket left open")
            return value
        if not token or not token[0].isdigit():
            raise MalformedError(token)
        return Fraction(token)


def evaluate(text: str) -> Fraction:
    """Value of an arithmetic expression. Raises MalformedError."""
    reader = _Reader(text)
    value = reader.total()
    if reader.at != len(reader.tokens):
        raise MalformedError(text)
    return value


def equations(text: str) -> list[str]:
    """Every equation between numbers in a text, line by line, item numbers left out."""
    found = []
    for line in text.splitlines():
        found += _EQUATION.findall(_TAG.sub("", line))
    return found


def false_equation(text: str) -> str | None:
    """The first equation that does not hold (or cannot be read), None when all hold."""
    for equation in equations(text):
        try:
            values = {evaluate(side.strip(" .")) for side in equation.split("=")}
        except MalformedError:
            return equation.strip()
        if len(values) > 1:
            return equation.strip()
    return None
