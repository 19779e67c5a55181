"""Skill `units`: conversions of length, mass, volume, time and money, with their working.

Knows a small table of exact integer factors; every answer is a quantity of one or two parts such as
`3 km 450 m`.
"""

from __future__ import annotations

import random
from typing import Any

from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import NAMES
from trainer.data.skills.working import product, quotient

Solution = tuple[str, dict[str, Any]]

# (large unit, small unit, factor), each as written in answers.
PAIRS: tuple[tuple[str, str, int], ...] = (
    ("km", "m", 1000),
    ("m", "cm", 100),
    ("cm", "mm", 10),
    ("kg", "g", 1000),
    ("t", "kg", 1000),
    ("l", "ml", 1000),
    ("h", "min", 60),
    ("min", "s", 60),
    ("days", "h", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
    ("euros", "cents", 100),
)
# (large, middle, small, large -> middle, middle -> small)
CHAINS: tuple[tuple[str, str, str, int, int], ...] = (
    ("m", "cm", "mm", 100, 10),
    ("h", "min", "s", 60, 60),
    ("days", "h", "min", 24, 60),
    ("weeks", "days", "h", 7, 24),
    ("km", "m", "cm", 1000, 100),
    ("t", "kg", "g", 1000, 1000),
)


SINGULAR = {"days": "day", "weeks": "week", "years": "year", "euros": "euro"}


def _fact(large: str, factor: int, small: str) -> str:
    """The conversion that a working starts from: `1 week = 7 days`."""
    return f"1 {SINGULAR.get(large, large)} = {factor} {small}"


def _quantity(lines: list[str], *parts: tuple[int, str]) -> Solution:
    value = " ".join(f"{amount} {unit}" for amount, unit in parts)
    return "\n".join([*lines, f"Answer: {value}"]), {"kind": "text", "value": value}


def scaled(amount: int, factor: int) -> list[str]:
    """Lines for amount * factor: one line for powers of ten, partial products otherwise."""
    if factor in (10, 100, 1000):
        return [f"{amount} * {factor} = {amount * factor}"]
    return product(amount, factor)


def split_lines(amount: int, factor: int) -> list[str]:
    """Lines that split an amount into whole factors and a rest."""
    whole, rest = divmod(amount, factor)
    if factor in (10, 100, 1000):
        return [f"{amount} = {whole} * {factor} + {rest}"]
    return quotient(amount, factor)


def _draw_down(rng: random.Random) -> Draft:
    """`3 km 450 m` in metres."""
    large, small, factor = pick(rng, PAIRS)
    a = number(rng, 2, 99)
    b = number(rng, 1, factor - 1)
    name = pick(rng, NAMES)

    def solve() -> Solution:
        total = a * factor + b
        lines = [_fact(large, factor, small), *scaled(a, factor)]
        lines.append(f"{a * factor} + {b} = {total}")
        return _quantity(lines, (total, small))

    return Draft({"a": a, "b": b, "large": large, "small": small, "name": name}, solve)


DOWN = (
    "Convert {a} {large} {b} {small} to {small}.",
    "How many {small} are {a} {large} {b} {small}?",
    "{name} measures {a} {large} {b} {small}. Write this in {small}.",
    "Express {a} {large} and {b} {small} in {small}.",
)
DOWN_HELDOUT = ("{name} needs {a} {large} {b} {small} as a number of {small}.",)


def _draw_up(rng: random.Random) -> Draft:
    """`3450 m` in kilometres and metres."""
    large, small, factor = pick(rng, PAIRS)
    whole = number(rng, 2, 40 if factor in (10, 100, 1000) else 19)
    total = whole * factor + number(rng, 0, factor - 1)
    name = pick(rng, NAMES)

    def solve() -> Solution:
        rest = total % factor
        lines = [_fact(large, factor, small), *split_lines(total, factor)]
        lines.append(f"{whole} {large} and {rest} {small}")
        return _quantity(lines, (whole, large), (rest, small))

    return Draft({"n": total, "large": large, "small": small, "name": name}, solve)


UP = (
    "Convert {n} {small} to {large} and {small}.",
    "How many {large} and {small} are {n} {small}?",
    "{name} counts {n} {small}. Write this in {large} and {small}.",
    "Express {n} {small} in {large} and {small}.",
)
UP_HELDOUT = ("{name} has {n} {small}; split that into {large} and {small}.",)


def _draw_chain(rng: random.Random) -> Draft:
    """`3 h 25 min` in seconds: two conversions."""
    large, middle, small, first, second = pick(rng, CHAINS)
    a, b = number(rng, 2, 19), number(rng, 1, min(99, first - 1))
    name = pick(rng, NAMES)

    def solve() -> Solution:
        between = a * first + b
        lines = [_fact(large, first, middle), *scaled(a, first)]
        lines += [f"{a * first} + {b} = {between}", _fact(middle, second, small)]
        lines += scaled(between, second)
        return _quantity(lines, (between * second, small))

    fields = {"a": a, "b": b, "large": large, "middle": middle, "small": small, "name": name}
    return Draft(fields, solve)


CHAIN = (
    "How many {small} are {a} {large} {b} {middle}?",
    "Convert {a} {large} {b} {middle} to {small}.",
    "{name} notes {a} {large} {b} {middle}. Write this in {small}.",
)
CHAIN_HELDOUT = ("Tell {name} what {a} {large} {b} {middle} is in {small}.",)


def _draw_add(rng: random.Random) -> Draft:
    """Two quantities of two units, added with a carry."""
    large, small, factor = pick(rng, PAIRS)
    a, c = number(rng, 1, 50), number(rng, 1, 50)
    b, d = number(rng, 1, factor - 1), number(rng, 1, factor - 1)
    name = pick(rng, NAMES)

    def solve() -> Solution:
        rest = b + d
        lines = [_fact(large, factor, small), f"{small}: {b} + {d} = {rest}"]
        carry = int(rest >= factor)
        if carry:
            lines.append(f"{rest} >= {factor}: {rest} - {factor} = {rest - factor}, carry 1")
            rest -= factor
        else:
            lines.append(f"{rest} < {factor}: {rest}, carry 0")
        lines.append(f"{large}: {a} + {c} + {carry} = {a + c + carry}")
        return _quantity(lines, (a + c + carry, large), (rest, small))

    one, two = f"{a} {large} {b} {small}", f"{c} {large} {d} {small}"
    return Draft({"one": one, "two": two, "name": name}, solve)


ADD = (
    "Add {one} and {two}.",
    "What is {one} plus {two}?",
    "{name} has {one} and gets {two} more. How much is that in all?",
)
ADD_HELDOUT = ("First {name} uses {one}, then {two}. What is the total?",)


def _draw_compare(rng: random.Random) -> Draft:
    """Which is more: `3 km 40 m` or `3400 m`?"""
    large, small, factor = pick(rng, PAIRS)
    a, b = number(rng, 2, 30), number(rng, 1, factor - 1)
    total = a * factor + b
    other = total + number(rng, 1, factor) * (1 if rng.random() < 0.5 else -1)
    name = pick(rng, NAMES)

    def solve() -> Solution:
        lines = [_fact(large, factor, small), *scaled(a, factor)]
        lines.append(f"{a * factor} + {b} = {total}")
        lines.append(f"{total} {'>' if total > other else '<'} {other}")
        if total > other:
            return _quantity(lines, (a, large), (b, small))
        return _quantity(lines, (other, small))

    fields = {"one": f"{a} {large} {b} {small}", "two": f"{other} {small}", "name": name}
    return Draft(fields, solve)


COMPARE = (
    "Which is more, {one} or {two}?",
    "{name} compares {one} with {two}. Which one is larger?",
)
COMPARE_HELDOUT = ("Tell {name} the greater of {one} and {two}.",)

_TENTHS = tuple(pair for pair in PAIRS if pair[2] in (100, 1000))


def _draw_decimal(rng: random.Random) -> Draft:
    """`2.5 km` in metres."""
    large, small, factor = pick(rng, _TENTHS)
    a, tenth = number(rng, 1, 99), number(rng, 1, 9)
    name = pick(rng, NAMES)

    def solve() -> Solution:
        tenth_of = factor // 10
        lines = [_fact(large, factor, small), f"{a} * {factor} = {a * factor}"]
        lines.append(f"0.1 {large} = {tenth_of} {small}")
        lines.append(f"{tenth} * {tenth_of} = {tenth * tenth_of}")
        total = a * factor + tenth * tenth_of
        lines.append(f"{a * factor} + {tenth * tenth_of} = {total}")
        return _quantity(lines, (total, small))

    return Draft({"n": f"{a}.{tenth}", "large": large, "small": small, "name": name}, solve)


DECIMAL = (
    "Convert {n} {large} to {small}.",
    "How many {small} are {n} {large}?",
    "{name} reads {n} {large}. Write this in {small}.",
)
DECIMAL_HELDOUT = ("For {name}, give {n} {large} as {small}.",)


def _draw_speed(rng: random.Random) -> Draft:
    """A distance at a steady speed, in kilometres and metres."""
    speed, minutes = number(rng, 12, 99), number(rng, 3, 59)
    per_minute = speed * 10
    name = pick(rng, NAMES)

    def solve() -> Solution:
        lines = [f"{minutes} min at {per_minute} m per min", *product(per_minute, minutes)]
        total = per_minute * minutes
        whole, rest = divmod(total, 1000)
        lines += ["1 km = 1000 m", *split_lines(total, 1000)]
        return _quantity(lines, (whole, "km"), (rest, "m"))

    return Draft({"v": per_minute, "n": minutes, "name": name}, solve)


SPEED = (
    "{name} travels {v} m every minute for {n} minutes. How far is that in km and m?",
    "A drone of {name} flies {v} m per minute. How many km and m does it fly in {n} minutes?",
)
SPEED_HELDOUT = ("At {v} m a minute, how many km and m does {name} get in {n} minutes?",)

_NAMED = len(NAMES)

UNITS = Skill(
    "units",
    (
        # Sum over the table of (factor - 1): 4361 small amounts.
        Task("down", _draw_down, DOWN, DOWN_HELDOUT, 98 * 4361, 1.5),
        Task("up", _draw_up, UP, UP_HELDOUT, 18 * 4373, 1.5),
        Task("chain", _draw_chain, CHAIN, CHAIN_HELDOUT, 18 * 385, 1.5),
        Task("add", _draw_add, ADD, ADD_HELDOUT, 50 * 50 * 4361, 1.5),
        Task("compare", _draw_compare, COMPARE, COMPARE_HELDOUT, 29 * 4361),
        Task("decimal", _draw_decimal, DECIMAL, DECIMAL_HELDOUT, len(_TENTHS) * 99 * 9),
        Task("speed", _draw_speed, SPEED, SPEED_HELDOUT, 88 * 57 * _NAMED),
    ),
    weight=1.2,
)
