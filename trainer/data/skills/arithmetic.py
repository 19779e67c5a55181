"""Skill `arithmetic`: bare expressions and multi-step word problems, with their working.

Every answer ends in `Answer: N`. Knows which numbers and stories are drawn; how the working is laid
out is `working`'s.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import ITEMS, NAMES
from trainer.data.skills.working import (
    column_difference,
    column_sum,
    product,
    quotient,
)

EXPRESSION_PHRASINGS = (
    "What is {expr}? Show the working.",
    "What is {expr}?",
    "Calculate {expr}.",
    "Calculate {expr} step by step.",
    "Work out {expr} and show each step.",
    "Compute {expr}. Show the working.",
    "How much is {expr}?",
    "{expr} = ?",
)
EXPRESSION_HELDOUT = (
    "Please find the value of {expr}.",
    "Can you solve {expr} for me?",
)


def _solved(lines: list[str], value: int) -> tuple[str, dict[str, Any]]:
    text = "\n".join([*lines, f"Answer: {value}"])
    return text, {"kind": "number", "value": value, "working": True}


def _typed(rng: random.Random, expr: str) -> str:
    """The expression as typed: some people leave out the spaces around signs."""
    return expr.replace(" ", "") if rng.random() < 0.15 and "s" not in expr else expr


def _times(rng: random.Random) -> str:
    """How the prompt writes a product; answers always write `*`."""
    roll = rng.random()
    return "*" if roll < 0.7 else "x" if roll < 0.85 else "times"


def _draw_product(rng: random.Random) -> Draft:
    """a * b with an optional third term: `17 * 24 + 9`."""
    shape = rng.random()
    if shape < 0.08:
        a, b = number(rng, 2, 19), number(rng, 2, 9)
    else:
        a = number(rng, 101, 999) if shape < 0.38 else number(rng, 11, 99)
        b = number(rng, 11, 99) if shape > 0.26 else number(rng, 2, 9)
    c = number(rng, 1, 99)
    sign = rng.random()
    times = _times(rng)
    if sign < 0.25 or (a > 99 and b > 9):
        expr, value, tail = f"{a} {times} {b}", a * b, []
    elif sign < 0.6:
        expr, value = f"{a} {times} {b} + {c}", a * b + c
        tail = [f"{a * b} + {c} = {value}"]
    elif sign < 0.8:
        expr, value = f"{a} {times} {b} - {c}", a * b - c
        tail = [f"{a * b} - {c} = {value}"]
    else:
        expr, value = f"{c} + {a} {times} {b}", a * b + c
        tail = [f"{c} + {a * b} = {value}"]
    if value < 0:
        return _draw_product(rng)
    return Draft({"expr": _typed(rng, expr)}, lambda: _solved(product(a, b) + tail, value))


def _draw_two_products(rng: random.Random) -> Draft:
    """a * b + c * d with one-digit b and d."""
    a, c = number(rng, 11, 99), number(rng, 11, 99)
    b, d = number(rng, 2, 9), number(rng, 2, 9)
    times = _times(rng)
    value = a * b + c * d

    def solve() -> tuple[str, dict[str, Any]]:
        lines = [*product(a, b), *product(c, d), f"{a * b} + {c * d} = {value}"]
        return _solved(lines, value)

    expr = f"{a} {times} {b} + {c} {times} {d}"
    return Draft({"expr": _typed(rng, expr)}, solve)


def _draw_bracket(rng: random.Random) -> Draft:
    """(a + b) * c or (a - b) * c."""
    a, b, c = number(rng, 11, 99), number(rng, 2, 60), number(rng, 3, 30)
    minus = rng.random() < 0.4 and a > b
    inner = a - b if minus else a + b
    sign = "-" if minus else "+"
    first = f"{a} {sign} {b} = {inner}"
    return Draft(
        {"expr": _typed(rng, f"({a} {sign} {b}) * {c}")},
        lambda: _solved([first, *product(inner, c)], inner * c),
    )


def _sized(rng: random.Random) -> int:
    """A number of one to four digits, longer ones more often."""
    top = pick(rng, (9, 99, 99, 999, 999, 9999, 9999, 9999))
    return number(rng, max(1, top // 10), top)


def _draw_column(rng: random.Random) -> Draft:
    """Sum or difference of two numbers of one to four digits, in columns."""
    a, b = _sized(rng), _sized(rng)
    if rng.random() < 0.5:
        return Draft(
            {"expr": _typed(rng, f"{a} + {b}")},
            lambda: _solved([f"{a} + {b}", *column_sum(a, b)], a + b),
        )
    a, b = max(a, b), min(a, b)
    return Draft(
        {"expr": _typed(rng, f"{a} - {b}")},
        lambda: _solved([f"{a} - {b}", *column_difference(a, b)], a - b),
    )


def _draw_chain(rng: random.Random) -> Draft:
    """Three to five terms added and subtracted from left to right."""
    total = number(rng, 2, 200)
    expr = str(total)
    lines = []
    for _ in range(number(rng, 2, 4)):
        term = number(rng, 2, 99)
        minus = rng.random() < 0.5 and term <= total
        after = total - term if minus else total + term
        sign = "-" if minus else "+"
        expr += f" {sign} {term}"
        lines.append(f"{total} {sign} {term} = {after}")
        total = after
    return Draft({"expr": _typed(rng, expr)}, lambda: _solved(lines, total))


def _draw_quotient(rng: random.Random) -> Draft:
    """a / b without a rest, b from 2 to 9."""
    b, q = number(rng, 2, 9), number(rng, 2, 199)
    a = b * q
    sign = "/" if rng.random() < 0.6 else "divided by"
    return Draft(
        {"expr": f"{a} {sign} {b}"},
        lambda: _solved([f"{a} / {b}", *quotient(a, b)], q),
    )


def _story(fields: Mapping[str, object], steps: list[tuple[str, list[str]]], value: int) -> Draft:
    """A word problem: each step has a label and its lines."""

    def solve() -> tuple[str, dict[str, Any]]:
        lines = []
        for index, (label, working) in enumerate(steps, 1):
            lines.append(f"Step {index}: {label}")
            lines += working
        return _solved(lines, value)

    return Draft(fields, solve)


def _draw_boxes(rng: random.Random) -> Draft:
    a, b = number(rng, 4, 40), number(rng, 5, 48)
    c = number(rng, 2, min(99, a * b - 1))
    name, item = pick(rng, NAMES), pick(rng, ITEMS)
    steps = [
        (f"{item} in all", product(a, b)),
        (f"{item} left", [f"{a * b} - {c} = {a * b - c}"]),
    ]
    return _story({"name": name, "a": a, "b": b, "c": c, "item": item}, steps, a * b - c)


BOXES = (
    "{name} has {a} bags with {b} {item} in each and gives away {c} {item}. "
    "How many {item} are left?",
    "There are {a} crates of {b} {item} in a store. {name} takes {c} {item}. How many {item} stay?",
    "{name} packs {a} parcels with {b} {item} each, then loses {c} {item}. "
    "How many {item} does {name} still have?",
)
BOXES_HELDOUT = (
    "A shelf holds {a} rows of {b} {item}. {name} sells {c} of the {item}. How many {item} remain?",
)


def _draw_shop(rng: random.Random) -> Draft:
    a, b = number(rng, 2, 9), number(rng, 2, 9)
    p, q = number(rng, 3, 39), number(rng, 3, 39)
    first, second = pick(rng, ITEMS), pick(rng, ITEMS)
    if first == second:
        return _draw_shop(rng)
    total = a * p + b * q
    note = (total // 100 + 1) * 100
    steps = [
        (f"price of the {first}", product(p, a)),
        (f"price of the {second}", product(q, b)),
        ("in all", [f"{a * p} + {b * q} = {total}"]),
        ("change", [f"{note} - {total} = {note - total}"]),
    ]
    fields: dict[str, object] = {"name": pick(rng, NAMES), "note": note}
    fields |= {"a": a, "b": b, "p": p, "q": q, "first": first, "second": second}
    return _story(fields, steps, note - total)


SHOP = (
    "{name} buys {a} {first} at {p} euros each and {b} {second} at {q} euros each and pays with "
    "{note} euros. How much change does {name} get?",
    "At the market {first} cost {p} euros each and {second} cost {q} euros each. {name} takes {a} "
    "{first} and {b} {second} and hands over {note} euros. What is the change?",
)
SHOP_HELDOUT = (
    "{name} has {note} euros and buys {a} {first} for {p} euros each and {b} {second} for {q} "
    "euros each. How many euros are left?",
)


def _draw_share(rng: random.Random) -> Draft:
    k, each = number(rng, 2, 9), number(rng, 11, 60)
    total = k * each
    b = number(rng, 5, min(99, total - 5))
    a = total - b
    item = pick(rng, ITEMS)
    steps = [
        (f"{item} in all", [f"{a} + {b} = {total}"]),
        (f"{total} / {k}", quotient(total, k)),
    ]
    fields = {"name": pick(rng, NAMES), "a": a, "b": b, "k": k, "item": item}
    return _story(fields, steps, each)


SHARE = (
    "{name} has {a} {item} and gets {b} more. {name} shares them equally among {k} friends. "
    "How many {item} does each friend get?",
    "{name} finds {a} {item} in one drawer and {b} {item} in another and puts them into {k} equal "
    "piles. How many {item} are in a pile?",
)
SHARE_HELDOUT = (
    "A box of {a} {item} and a box of {b} {item} belong to {name}, who divides all of them evenly "
    "over {k} tables. How many {item} lie on each table?",
)


def _draw_bus(rng: random.Random) -> Draft:
    start = number(rng, 12, 60)
    a, b = number(rng, 2, start - 1), number(rng, 2, 30)
    now = start - a + b
    c, d = number(rng, 1, now - 1), number(rng, 2, 30)
    steps = [
        ("first stop", [f"{start} - {a} = {start - a}", f"{start - a} + {b} = {now}"]),
        ("second stop", [f"{now} - {c} = {now - c}", f"{now - c} + {d} = {now - c + d}"]),
    ]
    fields = {"s": start, "a": a, "b": b, "c": c, "d": d}
    return _story(fields, steps, now - c + d)


BUS = (
    "A bus starts with {s} people. At the first stop {a} get off and {b} get on, at the second "
    "stop {c} get off and {d} get on. How many people are on the bus now?",
    "{s} people sit in a train. First {a} leave and {b} come in, then {c} leave and {d} come in. "
    "How many people are in the train?",
)
BUS_HELDOUT = (
    "There are {s} visitors in a museum. {a} go out and {b} enter, later {c} go out and {d} enter. "
    "How many visitors are inside?",
)


def _draw_together(rng: random.Random) -> Draft:
    a, k = number(rng, 6, 60), number(rng, 2, 9)
    b = a * k
    c = number(rng, 2, min(40, b - 1))
    rest = b - c
    one, two, three = rng.sample(NAMES, 3)
    item = pick(rng, ITEMS)
    steps = [
        (f"{two} has", product(a, k)),
        (f"{three} has", [f"{b} - {c} = {rest}"]),
        ("together", [f"{a} + {b} = {a + b}", f"{a + b} + {rest} = {a + b + rest}"]),
    ]
    fields: dict[str, object] = {"one": one, "two": two, "three": three}
    fields |= {"a": a, "k": k, "c": c, "item": item}
    return _story(fields, steps, a + b + rest)


TOGETHER = (
    "{one} has {a} {item}. {two} has {k} times as many. {three} has {c} fewer than {two}. "
    "How many {item} do they have together?",
    "{one} collects {a} {item}, {two} collects {k} times as many as {one}, and {three} collects "
    "{c} less than {two}. How many {item} is that in all?",
)
TOGETHER_HELDOUT = (
    "{two} owns {k} times as many {item} as {one}, who owns {a}. {three} owns {c} fewer than "
    "{two}. What is the total?",
)


def _draw_saving(rng: random.Random) -> Draft:
    have, week, weeks = number(rng, 5, 95), number(rng, 3, 29), number(rng, 3, 19)
    saved = week * weeks
    total = have + saved
    spent = number(rng, 4, min(99, total - 1))
    steps = [
        ("saved", product(week, weeks)),
        ("with the start", [f"{have} + {saved} = {total}"]),
        ("after spending", [f"{total} - {spent} = {total - spent}"]),
    ]
    fields = {"name": pick(rng, NAMES), "h": have, "w": week, "n": weeks, "s": spent}
    return _story(fields, steps, total - spent)


SAVING = (
    "{name} has {h} euros, saves {w} euros a week for {n} weeks and then spends {s} euros. "
    "How many euros does {name} have now?",
    "{name} starts with {h} points, wins {w} points in each of {n} games and loses {s} points at "
    "the end. How many points does {name} have?",
)
SAVING_HELDOUT = (
    "A tank holds {h} litres. {name} adds {w} litres on each of {n} days and then uses {s} litres. "
    "How many litres are in the tank?",
)

ARITHMETIC = Skill(
    "arithmetic",
    (
        Task("product", _draw_product, EXPRESSION_PHRASINGS, EXPRESSION_HELDOUT, 89 * 89 * 99, 3.0),
        Task(
            "two_products",
            _draw_two_products,
            EXPRESSION_PHRASINGS,
            EXPRESSION_HELDOUT,
            89 * 89 * 8 * 8,
        ),
        Task("bracket", _draw_bracket, EXPRESSION_PHRASINGS, EXPRESSION_HELDOUT, 89 * 59 * 28),
        Task("column", _draw_column, EXPRESSION_PHRASINGS, EXPRESSION_HELDOUT, 9000 * 9000, 2.0),
        Task("chain", _draw_chain, EXPRESSION_PHRASINGS, EXPRESSION_HELDOUT, 199 * 98**2),
        Task("quotient", _draw_quotient, EXPRESSION_PHRASINGS, EXPRESSION_HELDOUT, 8 * 198 * 2),
        Task("boxes", _draw_boxes, BOXES, BOXES_HELDOUT, 37 * 44 * 18 * len(NAMES)),
        Task("shop", _draw_shop, SHOP, SHOP_HELDOUT, 64 * 37 * 37 * len(NAMES)),
        Task("share", _draw_share, SHARE, SHARE_HELDOUT, 8 * 50 * 12 * len(NAMES)),
        Task("bus", _draw_bus, BUS, BUS_HELDOUT, 49 * 29 * 29),
        Task("together", _draw_together, TOGETHER, TOGETHER_HELDOUT, 55 * 8 * 10 * len(NAMES)),
        Task("saving", _draw_saving, SAVING, SAVING_HELDOUT, 91 * 27 * 17 * len(NAMES)),
    ),
    weight=2.0,
)
