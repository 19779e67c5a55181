"""What single skills write: the working agrees with facts computed another way."""

from __future__ import annotations

import calendar
import random
import re
from collections.abc import Iterator
from datetime import datetime

import pytest

from trainer.data.skills import SKILLS, Example
from trainer.data.skills.about_facts import FACTS, TALK
from trainer.data.skills.dates import is_leap, leap_line, month_length
from trainer.data.skills.story_parts import ANIMALS, OBJECTS, PLACES
from trainer.data.skills.words import CITIES, ITEMS, MEN, MONTHS, NAMES, NOUNS, SURNAMES, WEEKDAYS
from trainer.data.skills.working import column_difference, column_sum, parts, product, quotient
from trainer.verify.working import equations, false_equation


def examples(skill: str, task: str, count: int = 60) -> Iterator[Example]:
    rng = random.Random(31)
    chosen = next(t for t in SKILLS[skill].tasks if t.name == task)
    for _ in range(count):
        yield SKILLS[skill].generate(rng, "train", chosen)


@pytest.mark.parametrize("words", [NAMES, SURNAMES, CITIES, ITEMS, NOUNS, MONTHS, WEEKDAYS])
def test_word_lists_have_no_duplicates(words: tuple[str, ...]) -> None:
    assert len(words) == len(set(words))


def test_a_name_is_a_name_only() -> None:
    others = {*SURNAMES, *CITIES, *MONTHS, *WEEKDAYS}
    assert not set(NAMES) & others
    assert len(MEN) == 50


def test_products_end_in_the_product_and_every_step_holds() -> None:
    for a in (1, 7, 10, 17, 90, 101, 247, 999):
        for b in (2, 9, 10, 24, 36, 99):
            lines = product(a, b)
            assert int(re.findall(r"\d+", lines[-1])[-1]) == a * b
            assert false_equation("\n".join(lines)) is None
            assert all(equations(line) for line in lines)


def test_quotients_end_in_the_quotient_and_every_step_holds() -> None:
    for b in (2, 7, 9, 12, 24, 60):
        for q in (1, 9, 10, 18, 61, 199):
            for rest in (0, b - 1):
                lines = quotient(b * q + rest, b)
                assert false_equation("\n".join(lines)) is None
                assert (
                    sum(int(re.findall(r"\* (\d+)", line)[0]) for line in lines if "*" in line) == q
                )


def test_parts_of_a_number_add_up() -> None:
    assert parts(2047) == [2000, 40, 7]
    assert all(sum(parts(n)) == n for n in range(1, 3000))


@pytest.mark.parametrize(("a", "b"), [(4827, 3596), (999, 11), (100, 9999), (500, 499), (55, 45)])
def test_columns_spell_the_sum_and_the_difference(a: int, b: int) -> None:
    lines = column_sum(a, b)
    written = [re.findall(r"write (\d)", line)[0] for line in lines]
    carry = re.findall(r"carry (\d)", lines[-1])[0]
    assert int(carry + "".join(reversed(written))) == a + b
    high, low = max(a, b), min(a, b)
    digits = [re.findall(r"= (\d),", line)[0] for line in column_difference(high, low)]
    assert int("".join(reversed(digits))) == high - low


def test_leap_years_follow_the_calendar() -> None:
    for year in range(1900, 2100):
        assert is_leap(year) == calendar.isleap(year)
        assert ("no leap year" not in leap_line(year)) == calendar.isleap(year)
        for month in range(1, 13):
            assert month_length(year, month) == calendar.monthrange(year, month)[1]


def _date(text: str) -> datetime:
    return datetime.strptime(text, "%d %B %Y")


DATE = r"\d+ [A-Z][a-z]+ \d{4}"


@pytest.mark.parametrize("task", ["between", "after", "before", "weekday_date"])
def test_date_answers_follow_from_the_prompt_and_from_the_working(task: str) -> None:
    for example in examples("dates", task):
        dates = [_date(text) for text in re.findall(DATE, example.prompt)]
        value = example.check["value"]
        last = example.answer.splitlines()[-2]
        if task == "between":
            days = abs((dates[1] - dates[0]).days)
            assert value == f"{days} days"
            assert int(re.findall(r"\d+", last)[-1]) == days
        elif task == "weekday_date":
            named = next(day for day in WEEKDAYS if day in example.prompt)
            shift = WEEKDAYS.index(named) - dates[0].weekday()
            assert value == WEEKDAYS[(dates[1].weekday() + shift) % 7]
            assert last.split()[-1] == value
        else:
            days = int(re.findall(r"(\d+) days", example.prompt)[0])
            sign = 1 if task == "after" else -1
            assert (_date(value) - dates[0]).days == sign * days
            day, month, year = value.split()
            assert f"day {day} of {month} {year}" in last or last.endswith(f"= {day}")


def test_clock_answers_agree_with_minutes_counted_through() -> None:
    for example in examples("dates", "clock_after"):
        (h, m) = map(int, re.findall(r"(\d+):(\d+)", example.prompt)[0])
        add_h, add_m = map(int, re.findall(r"(\d+) h (\d+) min", example.prompt)[0])
        total = (h * 60 + m + add_h * 60 + add_m) % 1440
        assert example.check["value"] == f"{total // 60:02d}:{total % 60:02d}"


UNIT = {
    "km": 1_000_000, "m": 1000, "cm": 10, "mm": 1,
    "t": 1_000_000, "kg": 1000, "g": 1, "l": 1000, "ml": 1,
    "weeks": 604_800, "days": 86_400, "h": 3600, "min": 60, "s": 1,
    "years": 12, "months": 1, "euros": 100, "cents": 1,
}  # fmt: skip


def amounts(text: str) -> list[tuple[float, str]]:
    names = "|".join(sorted(UNIT, key=len, reverse=True))
    found = re.findall(rf"(\d+(?:\.\d+)?) ({names})\b", text)
    return [(float(number), unit) for number, unit in found]


@pytest.mark.parametrize("task", ["down", "up", "chain", "add", "decimal"])
def test_unit_answers_hold_the_same_quantity_as_the_prompt(task: str) -> None:
    for example in examples("units", task):
        asked = sum(number * UNIT[unit] for number, unit in amounts(example.prompt))
        answered = sum(number * UNIT[unit] for number, unit in amounts(example.check["value"]))
        assert answered == pytest.approx(asked), example.prompt


def test_stories_slots_are_disjoint_so_that_constraints_can_be_told_apart() -> None:
    assert not set(ANIMALS) & set(OBJECTS)
    assert not set(ANIMALS) & set(PLACES)
    assert not set(OBJECTS) & set(PLACES)


def test_facts_are_two_different_sentences_each_and_no_two_share_one() -> None:
    found = [sentence for pair in (*FACTS.values(), *TALK.values()) for sentence in pair]
    assert len(found) == len(set(found))
    assert all(sentence.endswith((".", "?")) and sentence[0].isupper() for sentence in found)


def test_list_answers_follow_from_the_prompt() -> None:
    for example in examples("lists", "sort_words"):
        assert example.check["items"] == sorted(example.check["items"])
        assert all(word in example.prompt for word in example.check["items"])
    for example in examples("lists", "sort_numbers"):
        numbers = [int(item) for item in example.check["items"]]
        falling = "largest to" in example.prompt or "descending" in example.prompt
        assert numbers == sorted(numbers, reverse=falling)
