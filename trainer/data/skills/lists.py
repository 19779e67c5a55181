"""Skill `lists`: sorting, reversing, filtering, counting and the like, item by item.

Items are numbered where their place matters, so that each line of the working copies one item of
the prompt and each part of the answer copies one line. Answers end in `Answer: ...`, an empty list
is `none`.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import NOUNS
from trainer.data.skills.working import running_sum

Item = int | str
Solution = tuple[str, dict[str, Any]]


def joined(items: Sequence[Item]) -> str:
    return ", ".join(map(str, items)) if items else "none"


def typed(rng: random.Random, items: Sequence[Item]) -> str:
    """A list as people type it: with commas, sometimes in brackets or with spaces alone."""
    roll = rng.random()
    if roll < 0.75:
        return joined(items)
    return f"[{joined(items)}]" if roll < 0.9 else " ".join(map(str, items))


def tagged(items: Sequence[Item]) -> str:
    """`(1) 42, (2) 17`: the form in which a result is gathered before the answer."""
    return ", ".join(f"({i}) {item}" for i, item in enumerate(items, 1)) if items else "none"


def answer_items(lines: list[str], items: Sequence[Item]) -> Solution:
    text = "\n".join([*lines, f"Answer: {joined(items)}"])
    return text, {"kind": "items", "items": [str(item) for item in items]}


def answer_number(lines: list[str], value: int) -> Solution:
    text = "\n".join([*lines, f"Answer: {value}"])
    return text, {"kind": "number", "value": value}


def draw_numbers(rng: random.Random, low: int, high: int) -> list[int]:
    """A list of `low` to `high` numbers below 100, sometimes of at most 5 below 1000."""
    if rng.random() < 0.25:
        return [number(rng, 1, 999) for _ in range(number(rng, low, max(low, 5)))]
    return [number(rng, 1, 99) for _ in range(number(rng, low, high))]


def draw_words(rng: random.Random, low: int, high: int) -> list[str]:
    return rng.sample(NOUNS, number(rng, low, high))


def _draw_items(rng: random.Random, low: int, high: int) -> list[int] | list[str]:
    return draw_numbers(rng, low, high) if rng.random() < 0.5 else draw_words(rng, low, high)


def _draw_sort_numbers(rng: random.Random) -> Draft:
    items = draw_numbers(rng, 3, 7)
    down = rng.random() < 0.4

    def solve() -> Solution:
        done: list[int] = []
        lines = []
        for index, item in enumerate(items, 1):
            place = bisect_right(done, -item if down else item)
            done.insert(place, -item if down else item)
            lines.append(f"({index}) {item}: {joined([abs(x) for x in done])}")
        return answer_items(lines, [abs(x) for x in done])

    order = ("from largest to smallest", "in descending order") if down else ()
    order = order or ("from smallest to largest", "in ascending order")
    return Draft({"items": typed(rng, items), "order": pick(rng, order)}, solve)


SORT_NUMBERS = (
    "Sort these numbers {order}: {items}",
    "Put the numbers {items} {order}.",
    "Arrange {items} {order}.",
    "List: {items}. Sort it {order}.",
)
SORT_NUMBERS_HELDOUT = ("Here are some numbers: {items}. Please order them {order}.",)


def _draw_sort_words(rng: random.Random) -> Draft:
    items = draw_words(rng, 3, 6)
    if len({word[:3] for word in items}) < len(items):
        return _draw_sort_words(rng)  # three letters shown must be enough to tell them apart

    def solve() -> Solution:
        done: list[str] = []
        lines = []
        for index, item in enumerate(items, 1):
            done.insert(bisect_right(done, item), item)
            lines.append(f"({index}) {item} '{item[:3]}': {joined(done)}")
        return answer_items(lines, done)

    return Draft({"items": typed(rng, items)}, solve)


SORT_WORDS = (
    "Sort these words alphabetically: {items}",
    "Put the words {items} in alphabetical order.",
    "Arrange {items} from A to Z.",
)
SORT_WORDS_HELDOUT = ("Order the following words by the alphabet: {items}",)


def _draw_reverse(rng: random.Random) -> Draft:
    items = _draw_items(rng, 3, 8)

    def solve() -> Solution:
        back = items[::-1]
        tags = [f"({i}) {item}" for i, item in enumerate(items, 1)]
        lines = ["Items: " + ", ".join(tags), "Backwards: " + ", ".join(tags[::-1])]
        return answer_items(lines, back)

    return Draft({"items": typed(rng, items)}, solve)


REVERSE = (
    "Reverse this list: {items}",
    "Write the list {items} backwards.",
    "Give the items {items} in reverse order.",
)
REVERSE_HELDOUT = ("Turn the order of these items around: {items}",)


Test = tuple[str, str, str, Callable[[int], bool]]


def _draw_test(rng: random.Random, items: Sequence[int]) -> Test:
    """A condition: its wording for many, the words when it holds and when not, its test."""
    roll = rng.random()
    if roll < 0.25:
        return "even", "is even", "is odd", lambda x: x % 2 == 0
    if roll < 0.5:
        return "odd", "is odd", "is even", lambda x: x % 2 == 1
    bound = min(999, max(1, pick(rng, items) + number(rng, -5, 5)))
    if roll < 0.75:
        return f"greater than {bound}", f"> {bound}", f"<= {bound}", lambda x: x > bound
    return f"less than {bound}", f"< {bound}", f">= {bound}", lambda x: x < bound


def _draw_filter(rng: random.Random) -> Draft:
    items = draw_numbers(rng, 3, 7)
    wanted, yes, no, test = _draw_test(rng, items)

    def solve() -> Solution:
        kept: list[int] = []
        lines = []
        for item in items:
            if test(item):
                kept.append(item)
                lines.append(f"{item} {yes}: ({len(kept)}) {item}")
            else:
                lines.append(f"{item} {no}: no")
        return answer_items([*lines, f"Kept: {tagged(kept)}"], kept)

    return Draft({"items": typed(rng, items), "wanted": wanted}, solve)


FILTER = (
    "Keep only the numbers that are {wanted}: {items}",
    "Which of the numbers {items} are {wanted}?",
    "From the list {items} take the numbers that are {wanted}.",
    "Filter {items}: keep what is {wanted}.",
)
FILTER_HELDOUT = ("Look at {items} and give me just the ones that are {wanted}.",)


def _draw_count(rng: random.Random) -> Draft:
    items = draw_numbers(rng, 3, 8)
    wanted, yes, no, test = _draw_test(rng, items)

    def solve() -> Solution:
        count = 0
        lines = []
        for item in items:
            count += test(item)
            lines.append(f"{item} {yes if test(item) else no}: {count}")
        return answer_number(lines, count)

    return Draft({"items": typed(rng, items), "wanted": wanted}, solve)


COUNT = (
    "How many of the numbers {items} are {wanted}?",
    "Count the numbers that are {wanted}: {items}",
    "In the list {items}, how many numbers are {wanted}?",
)
COUNT_HELDOUT = ("Tell me the count of numbers {wanted} among {items}.",)


def _draw_occurrences(rng: random.Random) -> Draft:
    few = draw_words(rng, 2, 4)
    items = [pick(rng, few) for _ in range(number(rng, 4, 8))]
    word = pick(rng, few)

    def solve() -> Solution:
        count = 0
        lines = []
        for item in items:
            count += item == word
            lines.append(f"{item} {'is' if item == word else 'is not'} {word}: {count}")
        return answer_number(lines, count)

    return Draft({"items": typed(rng, items), "word": word}, solve)


OCCURRENCES = (
    "How often does the word {word} occur in the list {items}?",
    "Count how many times {word} appears: {items}",
)
OCCURRENCES_HELDOUT = ("In {items}, how many entries are equal to {word}?",)


def _draw_extreme(rng: random.Random) -> Draft:
    items = draw_numbers(rng, 4, 8)
    largest = rng.random() < 0.5

    def solve() -> Solution:
        best = items[0]
        lines = [f"(1) {best}: {best}"]
        for index, item in enumerate(items[1:], 2):
            best = max(best, item) if largest else min(best, item)
            lines.append(f"({index}) {item}: {best}")
        return answer_number(lines, best)

    word = pick(rng, ("largest", "maximum") if largest else ("smallest", "minimum"))
    return Draft({"items": typed(rng, items), "word": word}, solve)


EXTREME = (
    "Find the {word} of these numbers: {items}",
    "What is the {word} number in {items}?",
    "Give the {word} value of the list {items}.",
)
EXTREME_HELDOUT = ("Among {items}, which is the {word}?",)


def _draw_sum(rng: random.Random) -> Draft:
    items = draw_numbers(rng, 4, 7)
    return Draft(
        {"items": typed(rng, items)}, lambda: answer_number(running_sum([0, *items]), sum(items))
    )


SUM = (
    "Add up these numbers: {items}",
    "What is the sum of {items}?",
    "Find the total of the list {items}.",
)
SUM_HELDOUT = ("Sum the following values: {items}",)


def _draw_dedupe(rng: random.Random) -> Draft:
    few = _draw_items(rng, 2, 5)
    items: list[Item] = [pick(rng, few) for _ in range(number(rng, 4, 8))]

    def solve() -> Solution:
        kept: list[Item] = []
        lines = []
        for item in items:
            if item in kept:
                lines.append(f"{item} seen: no")
            else:
                kept.append(item)
                lines.append(f"{item} new: ({len(kept)}) {item}")
        return answer_items([*lines, f"Kept: {tagged(kept)}"], kept)

    return Draft({"items": typed(rng, items)}, solve)


DEDUPE = (
    "Remove the duplicates from this list: {items}",
    "Drop repeated items and keep the first of each: {items}",
    "Give the list {items} without duplicates.",
)
DEDUPE_HELDOUT = ("Every item should occur only once in {items}. Write the new list.",)


def _draw_map(rng: random.Random) -> Draft:
    items = [number(rng, 1, 99) for _ in range(number(rng, 3, 6))]
    k = number(rng, 2, 20)
    if rng.random() < 0.5:
        how, sign, results = f"plus {k}", "+", [x + k for x in items]
    else:
        k = number(rng, 2, 5)
        how, sign, results = f"times {k}", "*", [x * k for x in items]

    def solve() -> Solution:
        rows = enumerate(zip(items, results, strict=True), 1)
        lines = [f"({i}) {item} {sign} {k} = {result}" for i, (item, result) in rows]
        return answer_items([*lines, f"Results: {tagged(results)}"], results)

    return Draft({"items": typed(rng, items), "how": how}, solve)


MAP = (
    "Take each number of {items} {how}.",
    "Write the list {items} with every number {how}.",
    "What is each of {items} {how}?",
)
MAP_HELDOUT = ("Start from {items} and give all of the numbers {how}.",)


def _draw_slice(rng: random.Random) -> Draft:
    items = _draw_items(rng, 5, 8)
    k = number(rng, 2, len(items) - 1)
    which = pick(rng, ("first", "last"))

    def solve() -> Solution:
        tags = [f"({i}) {item}" for i, item in enumerate(items, 1)]
        size = len(items)
        if which == "first":
            span, chosen, kept = f"1 to {k}", tags[:k], items[:k]
        else:
            span, chosen, kept = f"{size - k + 1} to {size}", tags[-k:], items[-k:]
        lines = ["Items: " + ", ".join(tags), f"Take {span}: " + ", ".join(chosen)]
        return answer_items(lines, kept)

    return Draft({"items": typed(rng, items), "k": k, "which": which}, solve)


SLICE = (
    "Take the {which} {k} items of this list: {items}",
    "What are the {which} {k} items of {items}?",
    "Keep only the {which} {k} entries: {items}",
)
SLICE_HELDOUT = ("Out of {items}, write down the {which} {k}.",)


def _draw_position(rng: random.Random) -> Draft:
    items = rng.sample(NOUNS, number(rng, 4, 8))
    place = number(rng, 1, len(items))
    word = items[place - 1]

    def solve() -> Solution:
        lines = []
        for index, item in enumerate(items[:place], 1):
            lines.append(f"({index}) {item}: {'yes' if item == word else 'no'}")
        return answer_number(lines, place)

    return Draft({"items": typed(rng, items), "word": word}, solve)


POSITION = (
    "At which position is {word} in this list: {items}",
    "Find the position of {word} in the list {items}.",
)
POSITION_HELDOUT = ("Counting from 1, where does {word} stand in {items}?",)

_TRIPLES = 99**3
_WORDS = len(NOUNS) * (len(NOUNS) - 1) * (len(NOUNS) - 2)
_PREFIXES = len({word[:3] for word in NOUNS})

LISTS = Skill(
    "lists",
    (
        Task("sort_numbers", _draw_sort_numbers, SORT_NUMBERS, SORT_NUMBERS_HELDOUT, _TRIPLES, 2.5),
        Task("sort_words", _draw_sort_words, SORT_WORDS, SORT_WORDS_HELDOUT, _PREFIXES**2, 2.0),
        Task("reverse", _draw_reverse, REVERSE, REVERSE_HELDOUT, _WORDS, 1.5),
        Task("filter", _draw_filter, FILTER, FILTER_HELDOUT, _TRIPLES, 2.0),
        Task("count", _draw_count, COUNT, COUNT_HELDOUT, _TRIPLES, 1.5),
        Task("occurrences", _draw_occurrences, OCCURRENCES, OCCURRENCES_HELDOUT, _WORDS),
        Task("extreme", _draw_extreme, EXTREME, EXTREME_HELDOUT, _TRIPLES),
        Task("sum", _draw_sum, SUM, SUM_HELDOUT, _TRIPLES, 1.5),
        Task("dedupe", _draw_dedupe, DEDUPE, DEDUPE_HELDOUT, _WORDS, 1.5),
        Task("map", _draw_map, MAP, MAP_HELDOUT, _TRIPLES, 1.5),
        Task("slice", _draw_slice, SLICE, SLICE_HELDOUT, _WORDS),
        Task("position", _draw_position, POSITION, POSITION_HELDOUT, _WORDS),
    ),
    weight=1.8,
)
