"""Verifiers accept the canonical answers and reject every kind of mistake made in them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from trainer.data.skills import SKILLS, Example, generate_examples
from trainer.data.skills.about_facts import FACTS
from trainer.verify import verify, verify_many
from trainer.verify.working import equations, evaluate, false_equation

ACCEPTED = 350  # generated examples per skill and split


def sample(skill: str, count: int = 60, kind: str | None = None) -> list[Example]:
    found = generate_examples(21, 0, count, "train", [skill])
    return [e for e in found if kind is None or e.check["kind"] == kind]


@pytest.mark.parametrize("skill", [name for name in SKILLS if name != "python"])
def test_every_canonical_answer_is_right(skill: str) -> None:
    for split in ("train", "heldout_templates"):
        examples = list(generate_examples(12, 0, ACCEPTED, split, [skill]))
        verdicts = verify_many(examples, [example.answer for example in examples])
        assert [v.reason for v in verdicts if not v.ok] == []


@pytest.mark.parametrize("skill", [name for name in SKILLS if name != "python"])
def test_answers_of_other_prompts_and_empty_replies_are_wrong(skill: str) -> None:
    examples = sample(skill)
    for example, other in pairwise(examples):
        if other.check != example.check:
            assert not verify(example, other.answer).ok
        for reply in ("", " \n", "Answer:", "I do not know."):
            assert not verify(example, reply).ok


def lines_of(example: Example) -> list[str]:
    return example.answer.splitlines()


def change_last_line(example: Example, change: Callable[[str], str]) -> str:
    *working, last = lines_of(example)
    return "\n".join([*working, "Answer: " + change(last.removeprefix("Answer: "))])


ANSWERING = ("arithmetic", "lists", "strings", "dates", "units")


@pytest.mark.parametrize("skill", ANSWERING)
def test_any_changed_character_of_the_answer_is_seen(skill: str) -> None:
    rng = random.Random(3)
    for example in sample(skill):
        value = lines_of(example)[-1].removeprefix("Answer: ")
        for _ in range(4):
            at = rng.randrange(len(value))
            new = rng.choice("0123456789abcXYZ-, '")
            if new == value[at]:
                continue
            changed = value[:at] + new + value[at + 1 :]
            if changed.rstrip() == value.rstrip():
                continue
            assert not verify(example, change_last_line(example, lambda _, v=changed: v)).ok


@pytest.mark.parametrize("skill", ANSWERING)
def test_an_answer_with_more_or_less_is_wrong(skill: str) -> None:
    for example in sample(skill, 30):
        for change in (lambda v: v + "0", lambda v: v[:-1], lambda v: f"{v} or 7", lambda v: ""):
            assert not verify(example, change_last_line(example, change)).ok
        assert not verify(example, "\n".join(lines_of(example)[:-1])).ok
        assert not verify(example, example.answer + "\nAnswer: 3.5").ok
        assert not verify(example, example.answer + "\nThat was easy.").ok


@pytest.mark.parametrize("skill", ["arithmetic", "dates", "units"])
def test_a_false_step_is_seen_although_the_answer_is_right(skill: str) -> None:
    seen = 0
    for example in sample(skill):
        for match in re.finditer(r"= (\d+)", example.answer):
            number = match.group(1)
            head, tail = example.answer[: match.start(1)], example.answer[match.end(1) :]
            reply = head + str(int(number) + 1) + tail
            if equations(example.answer) == equations(reply):
                continue  # part of a fact such as `1 km = 1000 m`, not of an equation
            seen += 1
            assert not verify(example, reply).ok
    assert seen > 100


def test_arithmetic_without_its_working_is_wrong() -> None:
    for example in sample("arithmetic", 20):
        assert not verify(example, lines_of(example)[-1]).ok


def test_dropped_swapped_and_added_items_are_seen() -> None:
    seen = 0
    for example in sample("lists", 200, "items"):
        items = example.check["items"]
        if len(items) < 2 or items[0] == items[1]:
            continue
        seen += 1
        swapped = [items[1], items[0], *items[2:]]
        for changed in (items[1:], items[:-1], swapped, [*items, items[0]]):
            reply = change_last_line(example, lambda _, c=changed: ", ".join(c))
            assert not verify(example, reply).ok
    assert seen > 40


def test_strings_are_compared_with_their_case_and_quotes() -> None:
    for example in sample("strings", 80, "text"):
        if not example.check.get("quoted"):
            continue
        bare = change_last_line(example, lambda v: v.strip("'"))
        other_case = change_last_line(example, str.swapcase)
        assert not verify(example, bare).ok
        assert verify(example, other_case).ok == (example.check["value"] == "")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("10 - 4 - 3", 3), ("0.5 * 4", 2), ("9 / 3 / 3", 1)],
)
def test_expressions_have_their_usual_value(text: str, value: int) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize(
    "text",
    ["3 + 4 = 8", "17 * 24 = 17 * 20 + 17 * 5", "2 + = 5", "5 / 0 = 5", "(1) 3 * 4 = 13",
     "a: 3 * 4 = 12, 12 + 1 = 14", "7 = 7 = 8", "(2 + 3 = 5"],
)  # fmt: skip
def test_false_and_broken_equations_are_found(text: str) -> None:
    assert false_equation(text) is not None


@pytest.mark.parametrize(
    "text",
    ["3 + 4 = 7", "1 km = 1000 m", "59 = 4 * 14 + 3, rest 3", "(1) 3 * 4 = 12", "5 <= 7",
     "x == 3", "x % 2 == 0", "0.1 km = 100 m", "n = 3", "7 = 7 = 7."],
)  # fmt: skip
def test_what_is_true_or_no_equation_passes(text: str) -> None:
    assert false_equation(text) is None


def test_json_must_be_equal_and_of_the_same_types() -> None:
    for example in sample("json"):
        value = example.check["value"]
        key = next(iter(value))
        for changed in (
            {**value, key: "something else"},
            {k: v for k, v in value.items() if k != key},
            {**value, "extra": 1},
            {k: str(v) if isinstance(v, int | float) else [v] for k, v in value.items()},
        ):
            assert not verify(example, json.dumps(changed, indent=2)).ok
        for reply in (
            example.answer[:-1],
            "Here it is: " + example.answer,
            example.answer + "\n" + example.answer,
            example.answer.replace('"', "'"),
            example.answer[:-2] + f',\n  "{key}": 1\n}}',
        ):
            assert not verify(example, reply).ok


def test_json_may_be_laid_out_or_fenced_another_way() -> None:
    for example in sample("json", 10):
        value = example.check["value"]
        backwards = dict(reversed(value.items()))
        assert verify(example, json.dumps(backwards)).ok
        assert verify(example, f"```json\n{example.answer}\n```").ok


def test_json_tells_true_from_one_and_refuses_what_json_has_not() -> None:
    example = sample("json", 1)[0]
    odd = Example("json", "t/0", "p", "a", {"kind": "json", "value": {"a": True, "b": 1}}, False)
    assert verify(odd, '{"a": true, "b": 1}').ok
    assert not verify(odd, '{"a": 1, "b": 1}').ok
    assert not verify(odd, '{"a": true, "b": 1.0}').ok
    assert not verify(odd, '{"a": true, "b": NaN}').ok
    assert not verify(example, "[" * 100_000).ok


def test_stories_must_keep_their_constraints() -> None:
    for example in sample("stories"):
        check = example.check
        other_name = "Zoe" if check["name"] != "Zoe" else "Max"
        other_animal = "fox" if check["animal"] != "fox" else "owl"
        other_object = "key" if check["object"] != "key" else "map"
        sentences = re.split(r"(?<=[.]) ", example.answer)
        assert verify(example, example.answer).ok
        for reply in (
            example.answer.replace(check["name"], other_name),
            example.answer.replace(check["animal"], other_animal),
            example.answer.replace(check["object"], other_object),
            example.answer.replace(" met a", " meet a", 1),
            example.answer.replace("The end.", ""),
            example.answer + " The end.",
            example.answer.replace("morning", "morning morning"),
            " ".join(sentences[:2]),
            " ".join([*sentences[:-1], sentences[0], sentences[-1]]),
            "\n".join(lines_of(example)[1:]),
        ):
            assert not verify(example, reply).ok, reply


def test_stories_may_leave_out_an_ornament() -> None:
    example = sample("stories", 1)[0]
    middle = lines_of(example)[1]
    place = re.split(r"(?<=[.]) ", middle)[1]
    assert verify(example, example.answer.replace(" " + place, "", 1)).ok


def test_replies_about_the_app_hold_every_fact_and_no_other() -> None:
    everything = [sentence for pair in FACTS.values() for sentence in pair]
    for example in sample("about", 120, "facts"):
        check = example.check
        foreign = next(s for s in everything if s not in check["facts"])
        for reply in (
            example.answer.replace(check["facts"][0], ""),
            example.answer.replace(check["facts"][0], foreign),
            example.answer + " " + foreign,
            example.answer.replace(check["facts"][-1], check["facts"][-1][:-9] + "."),
            example.answer + " " + check["facts"][0],
        ):
            assert not verify(example, reply).ok, reply
        for part in (check["hello"], check["bye"]):
            if part:
                assert not verify(example, example.answer.replace(part, "").strip()).ok


def test_the_greeting_stands_first_and_names_the_right_person() -> None:
    greeted = [e for e in sample("about", 120, "facts") if e.check["hello"]]
    assert len(greeted) > 30
    for example in greeted:
        hello = example.check["hello"]
        assert not verify(example, example.answer.removeprefix(hello).strip() + " " + hello).ok
        assert not verify(example, example.answer.replace(hello, "Hi Nobody!")).ok


def test_figures_about_the_app_are_compared_exactly() -> None:
    figures = sample("about", 150, "text")
    assert len(figures) > 30
    for example in figures:
        assert not verify(example, change_last_line(example, lambda v: "1" + v)).ok


def test_an_unknown_kind_of_check_is_an_error() -> None:
    example = Example("x", "x/0", "p", "a", {"kind": "poem"}, False)
    with pytest.raises(KeyError):
        verify(example, "a")
