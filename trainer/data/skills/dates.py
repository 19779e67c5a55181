"""Skill `dates`: days between dates, dates after some days, weekdays, leap years and clock times.

Years are 1900 to 2099, proleptic Gregorian. Every month's length is written down before it is used.
"""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import MONTHS, NAMES, WEEKDAYS
from trainer.data.skills.working import quotient

Solution = tuple[str, dict[str, Any]]

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year: int, month: int) -> int:
    return 29 if month == 2 and is_leap(year) else LENGTHS[month - 1]


def leap_line(year: int) -> str:
    """How the leap year rule is applied: by the last two digits, or the first two for centuries."""
    if year % 100 == 0:
        looked_at, why = year // 100, f"{year} ends in 00, first digits "
    else:
        looked_at, why = year % 100, f"{year}, last digits "
    four, rest = divmod(looked_at, 4)
    verdict = f"rest {rest}: {'leap year' if rest == 0 else 'no leap year'}"
    return f"{why}{looked_at} = 4 * {four} + {rest}, {verdict}"


def month_lines(year: int, month: int) -> list[str]:
    """The month's length, with the leap year rule first where it matters."""
    size = f"{MONTHS[month - 1]} has {month_length(year, month)} days"
    return [leap_line(year), size] if month == 2 else [size]


def show(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def _text(lines: list[str], value: str) -> Solution:
    return "\n".join([*lines, f"Answer: {value}"]), {"kind": "text", "value": value}


def _draw_date(rng: random.Random) -> date:
    year, month = number(rng, 1900, 2099), number(rng, 1, 12)
    return date(year, month, number(rng, 1, month_length(year, month)))


def between_lines(first: date, last: date) -> list[str]:
    """Days from `first` to `last` > `first`, month by month."""
    if (first.year, first.month) == (last.year, last.month):
        return [f"{last.day} - {first.day} = {last.day - first.day}"]
    year, month = first.year, first.month
    size = month_length(year, month)
    total = size - first.day
    lines = [*month_lines(year, month), f"{size} - {first.day} = {total}"]
    while True:
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        if (year, month) == (last.year, last.month):
            lines.append(f"{MONTHS[month - 1]}: {total} + {last.day} = {total + last.day}")
            return lines
        size = month_length(year, month)
        lines += [*month_lines(year, month), f"{total} + {size} = {total + size}"]
        total += size


def _draw_between(rng: random.Random) -> Draft:
    first = _draw_date(rng)
    last = first + timedelta(days=number(rng, 3, 130))
    days = (last - first).days

    def solve() -> Solution:
        lines = [f"From {show(first)} to {show(last)}", *between_lines(first, last)]
        return _text(lines, f"{days} days")

    return Draft({"first": show(first), "last": show(last)}, solve)


BETWEEN = (
    "How many days are there from {first} to {last}?",
    "Count the days between {first} and {last}.",
    "How long is it from {first} until {last} in days?",
)
BETWEEN_HELDOUT = ("A project starts on {first} and ends on {last}. How many days later is that?",)


def after_lines(first: date, days: int) -> list[str]:
    """The date `days` after `first`, month by month."""
    lines = [f"Start: {show(first)}, add {days} days"]
    year, month, size = first.year, first.month, month_length(first.year, first.month)
    left = size - first.day
    lines += [*month_lines(year, month), f"{size} - {first.day} = {left} left"]
    if days <= left:
        return [*lines, f"{days} <= {left}: {first.day} + {days} = {first.day + days}"]
    lines.append(f"{days} > {left}: {days} - {left} = {days - left}")
    days -= left
    while True:
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        size = month_length(year, month)
        lines += month_lines(year, month)
        if days <= size:
            return [*lines, f"{days} <= {size}: day {days} of {MONTHS[month - 1]} {year}"]
        lines.append(f"{days} > {size}: {days} - {size} = {days - size}")
        days -= size


def _draw_after(rng: random.Random) -> Draft:
    first, days = _draw_date(rng), number(rng, 3, 110)
    last = first + timedelta(days=days)
    fields = {"first": show(first), "n": days}
    return Draft(fields, lambda: _text(after_lines(first, days), show(last)))


AFTER = (
    "Which date is {n} days after {first}?",
    "Add {n} days to {first}.",
    "Today is {first}. What is the date in {n} days?",
)
AFTER_HELDOUT = ("A parcel sent on {first} arrives {n} days later. On which date is that?",)


def before_lines(last: date, days: int) -> list[str]:
    """The date `days` before `last`, month by month backwards."""
    lines = [f"Start: {show(last)}, go back {days} days"]
    if days < last.day:
        return [*lines, f"{days} < {last.day}: {last.day} - {days} = {last.day - days}"]
    lines.append(f"{days} >= {last.day}: {days} - {last.day} = {days - last.day}")
    days -= last.day
    year, month = last.year, last.month
    while True:
        year, month = (year - 1, 12) if month == 1 else (year, month - 1)
        size = month_length(year, month)
        lines += month_lines(year, month)
        if days < size:
            day = size - days
            where = f"day {day} of {MONTHS[month - 1]} {year}"
            return [*lines, f"{days} < {size}: {size} - {days} = {day}, {where}"]
        lines.append(f"{days} >= {size}: {days} - {size} = {days - size}")
        days -= size


def _draw_before(rng: random.Random) -> Draft:
    last, days = _draw_date(rng), number(rng, 3, 100)
    first = last - timedelta(days=days)
    fields = {"last": show(last), "n": days}
    return Draft(fields, lambda: _text(before_lines(last, days), show(first)))


BEFORE = (
    "Which date is {n} days before {last}?",
    "Subtract {n} days from {last}.",
    "Today is {last}. What was the date {n} days ago?",
)
BEFORE_HELDOUT = ("Something due on {last} has to be booked {n} days earlier. On which date?",)


def weekday_lines(start: str, days: int) -> tuple[list[str], str]:
    """The weekday `days` after `start`: whole weeks are dropped, the rest is counted off."""
    weeks, rest = divmod(days, 7)
    at = WEEKDAYS.index(start)
    walk = [f"{i} {WEEKDAYS[(at + i) % 7]}" for i in range(rest + 1)]
    lines = quotient(days, 7) if weeks else []
    lines += [f"Rest {rest}", "Count: " + ", ".join(walk)]
    return lines, WEEKDAYS[(at + rest) % 7]


def _draw_weekday_after(rng: random.Random) -> Draft:
    start, days = pick(rng, WEEKDAYS), number(rng, 4, 199)
    name = pick(rng, NAMES)

    def solve() -> Solution:
        lines, found = weekday_lines(start, days)
        return _text([f"Start: {start}, {days} days later", *lines], found)

    return Draft({"start": start, "n": days, "name": name}, solve)


WEEKDAY_AFTER = (
    "Today is {start}. {name} has a birthday in {n} days. Which weekday is that?",
    "{name} leaves on a {start} and comes back {n} days later. On which weekday?",
    "{name} asks: if today is {start}, what day of the week is it in {n} days?",
)
WEEKDAY_AFTER_HELDOUT = ("On {start} {name} starts a trip of {n} days. Name the weekday it ends.",)


def _draw_weekday_date(rng: random.Random) -> Draft:
    first = _draw_date(rng)
    last = first + timedelta(days=number(rng, 3, 60))
    start = WEEKDAYS[first.weekday()]

    def solve() -> Solution:
        lines, found = weekday_lines(start, (last - first).days)
        return _text(
            [f"From {show(first)} to {show(last)}", *between_lines(first, last), *lines], found
        )

    return Draft({"first": show(first), "last": show(last), "start": start}, solve)


WEEKDAY_DATE = (
    "{first} is a {start}. Which weekday is {last}?",
    "If {first} falls on a {start}, what day of the week is {last}?",
)
WEEKDAY_DATE_HELDOUT = ("Knowing that {first} was a {start}, find the weekday of {last}.",)


def _draw_leap(rng: random.Random) -> Draft:
    years = [number(rng, 1900, 2099) for _ in range(number(rng, 2, 3))]
    shown = ", ".join(map(str, years[:-1])) + f" and {years[-1]}"

    def solve() -> Solution:
        leap = [str(year) for year in years if is_leap(year)]
        return _text([leap_line(year) for year in years], ", ".join(leap) or "none")

    return Draft({"years": shown}, solve)


LEAP = (
    "Which of the years {years} are leap years?",
    "Find the leap years among {years}.",
    "Check {years} for leap years.",
)
LEAP_HELDOUT = ("Tell me which ones of {years} have 29 days in February.",)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _draw_clock_after(rng: random.Random) -> Draft:
    start = number(rng, 0, 24 * 60 - 1)
    hours, minutes = number(rng, 1, 9), number(rng, 1, 59)
    name = pick(rng, NAMES)
    end = (start + hours * 60 + minutes) % (24 * 60)

    def solve() -> Solution:
        h, m = divmod(start, 60)
        total, carry = m + minutes, int(m + minutes >= 60)
        lines = [f"Start: {_clock(start)}, add {hours} h {minutes} min"]
        fits = f"{total} < 60, carry 0"
        over = f"{total} >= 60, {total} - 60 = {total - 60}, carry 1"
        lines.append(f"Minutes: {m} + {minutes} = {total}, {over if carry else fits}")
        top = h + hours + carry
        line = f"Hours: {h} + {hours} + {carry} = {top}"
        lines.append(line + (f", {top} - 24 = {top - 24}" if top >= 24 else ""))
        return _text(lines, _clock(end))

    return Draft({"start": _clock(start), "h": hours, "m": minutes, "name": name}, solve)


CLOCK_AFTER = (
    "{name} starts at {start} and works for {h} h {m} min. When does {name} stop?",
    "The train of {name} leaves at {start} and takes {h} h {m} min. When does it arrive?",
    "{name} asks what time it is {h} h {m} min after {start}.",
)
CLOCK_AFTER_HELDOUT = (
    "At {start} {name} begins a film of {h} h {m} min. At what time is it over?",
)


def _draw_clock_between(rng: random.Random) -> Draft:
    start = number(rng, 0, 22 * 60)
    end = number(rng, start + 5, 24 * 60 - 1)
    name = pick(rng, NAMES)

    def solve() -> Solution:
        (h, m), (g, n) = divmod(start, 60), divmod(end, 60)
        lines = [f"From {_clock(start)} to {_clock(end)}"]
        borrow = int(n < m)
        if borrow:
            lines.append(f"Minutes: 60 + {n} - {m} = {60 + n - m}, borrow 1")
        else:
            lines.append(f"Minutes: {n} - {m} = {n - m}, borrow 0")
        lines.append(f"Hours: {g} - {h} - {borrow} = {g - h - borrow}")
        span = end - start
        return _text(lines, f"{span // 60} h {span % 60} min")

    return Draft({"start": _clock(start), "end": _clock(end), "name": name}, solve)


CLOCK_BETWEEN = (
    "{name} works from {start} to {end}. How long is that?",
    "The film {name} watches runs from {start} until {end}. How long does it take?",
    "{name} asks how much time passes between {start} and {end}.",
)
CLOCK_BETWEEN_HELDOUT = ("{name} sleeps at {start} and wakes at {end}. How long was the sleep?",)

_DATES = 200 * 365
_CLOCKS = 24 * 60 * len(NAMES)

DATES = Skill(
    "dates",
    (
        Task("between", _draw_between, BETWEEN, BETWEEN_HELDOUT, _DATES * 128, 1.5),
        Task("after", _draw_after, AFTER, AFTER_HELDOUT, _DATES * 108, 1.5),
        Task("before", _draw_before, BEFORE, BEFORE_HELDOUT, _DATES * 98, 1.2),
        Task(
            "weekday_after",
            _draw_weekday_after,
            WEEKDAY_AFTER,
            WEEKDAY_AFTER_HELDOUT,
            7 * 196 * len(NAMES),
        ),
        Task("weekday_date", _draw_weekday_date, WEEKDAY_DATE, WEEKDAY_DATE_HELDOUT, _DATES * 58),
        Task("leap", _draw_leap, LEAP, LEAP_HELDOUT, 200 * 200, 0.6),
        Task("clock_after", _draw_clock_after, CLOCK_AFTER, CLOCK_AFTER_HELDOUT, _CLOCKS * 9 * 59),
        Task(
            "clock_between", _draw_clock_between, CLOCK_BETWEEN, CLOCK_BETWEEN_HELDOUT, _CLOCKS * 60
        ),
    ),
    weight=1.5,
)
