"""Skill `python`: a small Python function from its signature and a description.

The answer is one line of plan and the function in a fenced block. A check holds calls with their
results, computed here by reference lambdas and never shown in the prompt; a reply is judged by
running it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import listed

Solution = tuple[str, dict[str, Any]]

VERBS = listed(
    "add build check collect compute count filter find get give keep list make measure pick scan "
    "select solve take test"
)
THINGS = listed(
    "all answer data entries hits items list marks numbers part parts points result scores some "
    "steps things total values words"
)
LIST_ARGS = ("numbers", "values", "items", "data", "nums")
TEXT_ARGS = ("text", "word", "string", "line")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SAMPLE_WORDS = ("banana", "tree", "a quick test", "hello world", "zebra", "mississippi", "x", "")


@dataclass(frozen=True)
class Condition:
    """A test on a number: its wording after "that are", its source over x, and its meaning."""

    wording: str
    source: str
    holds: Callable[[int], bool]


@dataclass(frozen=True)
class Change:
    """What is done to each number: its wording after a comma, its source over x, its meaning."""

    wording: str
    source: str
    apply: Callable[[int], int]


def function_name(rng: random.Random) -> str:
    return f"{pick(rng, VERBS)}_{pick(rng, THINGS)}"


def draw_condition(rng: random.Random) -> Condition:
    k = number(rng, 2, 60)
    kind = number(rng, 0, 7)
    if kind == 0:
        return Condition("even", "x % 2 == 0", lambda x: x % 2 == 0)
    if kind == 1:
        return Condition("odd", "x % 2 == 1", lambda x: x % 2 == 1)
    if kind == 2:
        return Condition(f"greater than {k}", f"x > {k}", lambda x: x > k)
    if kind == 3:
        return Condition(f"less than {k}", f"x < {k}", lambda x: x < k)
    if kind == 4:
        return Condition(f"at least {k}", f"x >= {k}", lambda x: x >= k)
    if kind == 5:
        return Condition(f"at most {k}", f"x <= {k}", lambda x: x <= k)
    if kind == 6:
        d = number(rng, 2, 12)
        return Condition(f"divisible by {d}", f"x % {d} == 0", lambda x: x % d == 0)
    return Condition(f"not equal to {k}", f"x != {k}", lambda x: x != k)


def draw_change(rng: random.Random) -> Change:
    k = number(rng, 2, 20)
    kind = number(rng, 0, 4)
    if kind == 0:
        return Change(f", each times {k}", f"x * {k}", lambda x: x * k)
    if kind == 1:
        return Change(f", each plus {k}", f"x + {k}", lambda x: x + k)
    if kind == 2:
        return Change(f", each minus {k}", f"x - {k}", lambda x: x - k)
    if kind == 3:
        return Change(", each squared", "x * x", lambda x: x * x)
    return Change("", "x", lambda x: x)


def number_lists(rng: random.Random) -> list[list[int]]:
    """Hidden inputs: the empty list, small ranges and random numbers."""
    lists = [[], list(range(1, 13)), list(range(60, -5, -5))]
    for _ in range(3):
        lists.append([number(rng, -10, 99) for _ in range(number(rng, 1, 8))])
    return lists


def _code(plan: str, header: str, body: list[str], name: str, cases: list[Any]) -> Solution:
    """The answer and its check; a case is [arguments, expected result]."""
    lines = [plan, "```python", f"def {header}:", *(f"    {line}" for line in body), "```"]
    return "\n".join(lines), {"kind": "python", "function": name, "cases": cases}


def _list_task(
    rng: random.Random,
    goal: Callable[[str, Condition, Change], str],
    body: Callable[[str, Condition, Change], tuple[str, list[str]]],
    result: Callable[[list[int], Condition, Change], Any],
    changes: bool = True,
) -> Draft:
    """A function over a list: wording, source and meaning are given by the task."""
    name, arg = function_name(rng), pick(rng, LIST_ARGS)
    condition = draw_condition(rng)
    change = draw_change(rng) if changes else Change("", "x", lambda x: x)
    seed = rng.random()

    def solve() -> Solution:
        plan, lines = body(arg, condition, change)
        inputs = number_lists(random.Random(seed))
        cases = [[[values], result(values, condition, change)] for values in inputs]
        return _code(plan, f"{name}({arg})", lines, name, cases)

    return Draft({"f": f"{name}({arg})", "goal": goal(arg, condition, change)}, solve)


def _draw_sum(rng: random.Random) -> Draft:
    return _list_task(
        rng,
        lambda a, c, m: f"the sum of all numbers in {a} that are {c.wording}{m.wording}",
        lambda a, c, m: (
            f"Plan: total starts at 0. For each x in {a} with {c.source} add {m.source}.",
            [
                "total = 0",
                f"for x in {a}:",
                f"    if {c.source}:",
                f"        total += {m.source}",
                "return total",
            ],
        ),
        lambda values, c, m: sum(m.apply(x) for x in values if c.holds(x)),
    )


def _draw_count(rng: random.Random) -> Draft:
    return _list_task(
        rng,
        lambda a, c, m: f"how many numbers in {a} are {c.wording}",
        lambda a, c, m: (
            f"Plan: count starts at 0. For each x in {a} with {c.source} add 1.",
            [
                "count = 0",
                f"for x in {a}:",
                f"    if {c.source}:",
                "        count += 1",
                "return count",
            ],
        ),
        lambda values, c, m: sum(c.holds(x) for x in values),
        changes=False,
    )


def _draw_filter(rng: random.Random) -> Draft:
    return _list_task(
        rng,
        lambda a, c, m: f"a list of the numbers in {a} that are {c.wording}{m.wording}",
        lambda a, c, m: (
            f"Plan: result starts empty. For each x in {a} with {c.source} append {m.source}.",
            [
                "result = []",
                f"for x in {a}:",
                f"    if {c.source}:",
                f"        result.append({m.source})",
                "return result",
            ],
        ),
        lambda values, c, m: [m.apply(x) for x in values if c.holds(x)],
    )


def _draw_all_any(rng: random.Random) -> Draft:
    every = rng.random() < 0.5
    word = "all numbers" if every else "some numbers"
    found = "False" if every else "True"
    test = "if not" if every else "if"

    def body(a: str, c: Condition, m: Change) -> tuple[str, list[str]]:
        source = f"({c.source})" if every else c.source
        plan = f"Plan: for each x in {a} {test} {source} the answer is {found}. "
        plan += f"After the loop it is {every}."
        lines = [f"for x in {a}:", f"    {test} {source}:", f"        return {found}"]
        return plan, [*lines, f"return {every}"]

    return _list_task(
        rng,
        lambda a, c, m: f"True if {word} in {a} are {c.wording} and False otherwise",
        body,
        lambda values, c, m: (
            all(c.holds(x) for x in values) if every else any(c.holds(x) for x in values)
        ),
        changes=False,
    )


def _draw_first(rng: random.Random) -> Draft:
    default = number(rng, -1, 9)
    return _list_task(
        rng,
        lambda a, c, m: (
            f"the first number in {a} that is {c.wording}, or {default} if there is none"
        ),
        lambda a, c, m: (
            f"Plan: for each x in {a}, if {c.source} the answer is x. "
            f"After the loop it is {default}.",
            [f"for x in {a}:", f"    if {c.source}:", "        return x", f"return {default}"],
        ),
        lambda values, c, m: next((x for x in values if c.holds(x)), default),
        changes=False,
    )


def _draw_largest(rng: random.Random) -> Draft:
    low = rng.random() < 0.5
    word, sign = ("smallest", "<") if low else ("largest", ">")
    best = min if low else max
    return _list_task(
        rng,
        lambda a, c, m: f"the {word} number in {a} that is {c.wording}, or None if there is none",
        lambda a, c, m: (
            f"Plan: best starts as None. For each x in {a} with {c.source} "
            f"keep x if x {sign} best.",
            [
                "best = None",
                f"for x in {a}:",
                f"    if {c.source}:",
                f"        if best is None or x {sign} best:",
                "            best = x",
                "return best",
            ],
        ),
        lambda values, c, m: best((x for x in values if c.holds(x)), default=None),
        changes=False,
    )


def _text_task(
    rng: random.Random, goal: str, plan: str, body: list[str], result: Callable[[str], Any]
) -> Draft:
    """A function over a text; `{a}` in goal, plan and body is the argument's name."""
    name, arg = function_name(rng), pick(rng, TEXT_ARGS)

    def solve() -> Solution:
        lines = [line.replace("{a}", arg) for line in body]
        cases = [[[text], result(text)] for text in SAMPLE_WORDS]
        return _code(plan.replace("{a}", arg), f"{name}({arg})", lines, name, cases)

    return Draft({"f": f"{name}({arg})", "goal": goal.replace("{a}", arg)}, solve)


def _draw_count_letter(rng: random.Random) -> Draft:
    c, d = rng.sample(LETTERS, 2)
    if rng.random() < 0.5:
        return _text_task(
            rng,
            f"how often the letter '{c}' occurs in {{a}}",
            f"Plan: count starts at 0. For each c in {{a}} equal to '{c}' add 1.",
            [
                "count = 0",
                "for c in {a}:",
                f"    if c == '{c}':",
                "        count += 1",
                "return count",
            ],
            lambda text: text.count(c),
        )
    return _text_task(
        rng,
        f"how many letters of {{a}} are '{c}' or '{d}'",
        f"Plan: count starts at 0. For each c in {{a}} equal to '{c}' or '{d}' add 1.",
        [
            "count = 0",
            "for c in {a}:",
            f"    if c == '{c}' or c == '{d}':",
            "        count += 1",
            "return count",
        ],
        lambda text: text.count(c) + text.count(d),
    )


def _draw_replace_letter(rng: random.Random) -> Draft:
    c, d = rng.sample(LETTERS, 2)
    if rng.random() < 0.5:
        return _text_task(
            rng,
            f"{{a}} with every '{c}' replaced by '{d}'",
            f"Plan: result starts empty. For each c in {{a}} add '{d}' if c is '{c}', else c.",
            [
                "result = ''",
                "for c in {a}:",
                f"    if c == '{c}':",
                f"        result += '{d}'",
                "    else:",
                "        result += c",
                "return result",
            ],
            lambda text: text.replace(c, d),
        )
    return _text_task(
        rng,
        f"{{a}} without the letters '{c}' and '{d}'",
        f"Plan: result starts empty. For each c in {{a}} that is not '{c}' or '{d}' add c.",
        [
            "result = ''",
            "for c in {a}:",
            f"    if c != '{c}' and c != '{d}':",
            "        result += c",
            "return result",
        ],
        lambda text: text.replace(c, "").replace(d, ""),
    )


def _draw_words(rng: random.Random) -> Draft:
    k = number(rng, 2, 9)
    c = pick(rng, LETTERS)
    longer = rng.random() < 0.5
    source, wording = (
        (f"len(w) > {k}", f"longer than {k} letters")
        if longer
        else (f"w[0] == '{c}'", f"that start with '{c}'")
    )
    return _text_task(
        rng,
        f"a list of the words in {{a}} {wording}",
        f"Plan: split {{a}} into words. For each w with {source} append w.",
        [
            "result = []",
            "for w in {a}.split():",
            f"    if {source}:",
            "        result.append(w)",
            "return result",
        ],
        lambda text: [w for w in text.split() if (len(w) > k if longer else w[0] == c)],
    )


def _number_task(
    rng: random.Random, goal: str, plan: str, body: list[str], result: Callable[[int], Any]
) -> Draft:
    """A function of one number n."""
    name = function_name(rng)

    def solve() -> Solution:
        cases = [[[n], result(n)] for n in (-3, 0, 1, 2, 7, 12, 25, 40, 63, 99)]
        return _code(plan, f"{name}(n)", body, name, cases)

    return Draft({"f": f"{name}(n)", "goal": goal}, solve)


def _draw_label(rng: random.Random) -> Draft:
    low = number(rng, 1, 50)
    high = low + number(rng, 1, 40)
    a, b, c = pick(
        rng,
        (("low", "mid", "high"), ("small", "medium", "large"), ("cold", "warm", "hot")),
    )
    return _number_task(
        rng,
        f'"{a}" if n is less than {low}, "{c}" if n is greater than {high} and "{b}" otherwise',
        f'Plan: test n < {low} first for "{a}", then n > {high} for "{c}", else it is "{b}".',
        [
            f"if n < {low}:",
            f'    return "{a}"',
            f"if n > {high}:",
            f'    return "{c}"',
            f'return "{b}"',
        ],
        lambda n: a if n < low else c if n > high else b,
    )


def _draw_clamp(rng: random.Random) -> Draft:
    low = number(rng, 0, 50)
    high = low + number(rng, 1, 49)
    return _number_task(
        rng,
        f"n, but at least {low} and at most {high}",
        f"Plan: if n < {low} the answer is {low}. If n > {high} it is {high}. Otherwise it is n.",
        [
            f"if n < {low}:",
            f"    return {low}",
            f"if n > {high}:",
            f"    return {high}",
            "return n",
        ],
        lambda n: max(low, min(high, n)),
    )


def _draw_range_sum(rng: random.Random) -> Draft:
    condition, change = draw_condition(rng), draw_change(rng)
    return _number_task(
        rng,
        f"the sum of the numbers from 1 to n that are {condition.wording}{change.wording}",
        f"Plan: total starts at 0. For each x from 1 to n with {condition.source} "
        f"add {change.source}.",
        [
            "total = 0",
            "for x in range(1, n + 1):",
            f"    if {condition.source}:",
            f"        total += {change.source}",
            "return total",
        ],
        lambda n: sum(change.apply(x) for x in range(1, n + 1) if condition.holds(x)),
    )


PHRASINGS = (
    "Write a Python function {f} that returns {goal}.",
    "In Python, define {f}. It returns {goal}.",
    "Python: implement {f} so that it returns {goal}.",
    "I need a Python function {f} which returns {goal}.",
)
HELDOUT = ("Show me Python code for {f}; the result is {goal}.",)

_NAMES = len(VERBS) * len(THINGS)
# 4 bounds of 59 values, 11 divisors, parities and 59 inequalities; times changes where they occur.
_CONDITIONS = 5 * 59 + 11 + 2
_CHANGES = 3 * 19 + 2

PYTHON = Skill(
    "python",
    tuple(
        Task(name, draw, PHRASINGS, HELDOUT, space * _NAMES, weight)
        for name, draw, space, weight in (
            ("sum", _draw_sum, _CONDITIONS * _CHANGES * 5, 1.5),
            ("count", _draw_count, _CONDITIONS * 5, 1.0),
            ("filter", _draw_filter, _CONDITIONS * _CHANGES * 5, 1.5),
            ("all_any", _draw_all_any, _CONDITIONS * 5 * 2, 1.0),
            ("first", _draw_first, _CONDITIONS * 5 * 11, 1.0),
            ("extreme", _draw_largest, _CONDITIONS * 5 * 2, 1.0),
            ("count_letter", _draw_count_letter, 26 * 26 * 4, 1.0),
            ("replace_letter", _draw_replace_letter, 26 * 25 * 2 * 4, 1.0),
            ("words", _draw_words, (26 + 8) * 4, 0.7),
            ("label", _draw_label, 50 * 40 * 3, 0.8),
            ("clamp", _draw_clamp, 51 * 49, 0.8),
            ("range_sum", _draw_range_sum, _CONDITIONS * _CHANGES, 1.0),
        )
    ),
    weight=0.8,
)
