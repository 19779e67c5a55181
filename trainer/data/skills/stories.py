"""Skill `stories`: short stories that keep the constraints of their prompt.

Name, animal, place, object, mood and ending are asked for; every sentence follows from one of them
(`story_parts`). Some stories have a friend as second person.
"""

from __future__ import annotations

import random
from typing import Any

from trainer.data.skills import story_parts as parts
from trainer.data.skills.base import Draft, Skill, Task, pick
from trainer.data.skills.words import NAMES, WOMEN, article

_PLACES, _ANIMALS, _OBJECTS = tuple(parts.PLACES), tuple(parts.ANIMALS), tuple(parts.OBJECTS)
_MOODS, _ENDINGS = tuple(parts.MOODS), tuple(parts.ENDINGS)
_WOMEN = frozenset(WOMEN)


def slots(check: dict[str, Any]) -> dict[str, str]:
    """Every slot of the story sentences, from the constraints of a check."""
    woman = check["name"] in _WOMEN
    prep, _ = parts.PLACES[check["place"]]
    day = parts.MOODS[check["mood"]][0]
    return {
        **{key: value for key, value in check.items() if value is not None},
        "prep": prep,
        "day": day,
        "she": "she" if woman else "he",
        "her": "her" if woman else "him",
        "a_animal": article(check["animal"]),
        "a_object": article(check["object"]),
    }


def story_lines(check: dict[str, Any]) -> list[list[str]]:
    """The story's paragraphs as lists of sentences; the title is the first paragraph."""
    with_friend = check["friend"] is not None
    _, place = parts.PLACES[check["place"]]
    _, mood, answer = parts.MOODS[check["mood"]]
    plan = [
        [parts.TITLE],
        [
            parts.OPENING_FRIEND if with_friend else parts.OPENING,
            place,
            parts.MEETING_FRIEND if with_friend else parts.MEETING,
            parts.ANIMALS[check["animal"]],
        ],
        [
            parts.FINDING_FRIEND if with_friend else parts.FINDING,
            parts.OBJECTS[check["object"]],
            mood,
            answer,
        ],
        [parts.ENDINGS[check["ending"]], parts.CLOSING],
    ]
    values = slots(check)
    return [[sentence.format_map(values) for sentence in paragraph] for paragraph in plan]


def _draw(rng: random.Random, with_friend: bool) -> Draft:
    name = pick(rng, NAMES)
    friend = pick(rng, NAMES) if with_friend else None
    if friend == name:
        return _draw(rng, with_friend)
    check: dict[str, Any] = {
        "kind": "story",
        "name": name,
        "friend": friend,
        "animal": pick(rng, _ANIMALS),
        "place": pick(rng, _PLACES),
        "object": pick(rng, _OBJECTS),
        "mood": pick(rng, _MOODS),
        "ending": pick(rng, _ENDINGS),
    }
    fields = dict(check)
    fields["who"] = name if friend is None else f"{name}, {friend}"
    fields["a_animal"] = article(check["animal"])
    fields["a_object"] = article(check["object"])
    fields["a_mood"] = article(check["mood"])
    fields["where"] = f"{parts.PLACES[check['place']][0]} the {check['place']}"

    def solve() -> tuple[str, dict[str, Any]]:
        return "\n".join(" ".join(paragraph) for paragraph in story_lines(check)), check

    return Draft(fields, solve)


def _draw_one(rng: random.Random) -> Draft:
    return _draw(rng, False)


def _draw_two(rng: random.Random) -> Draft:
    return _draw(rng, True)


ONE = (
    "Write {a_mood} story about {name} and {a_animal} {where} with {a_object}. Ending: {ending}.",
    "Tell a short story. Hero: {name}. Animal: {animal}. Place: {place}. Object: {object}. "
    "Mood: {mood}. Ending: {ending}.",
    "I would like {a_mood} story {where}. It is about {name}, {a_animal} and {a_object}, and in "
    "the end {ending}.",
    "Story please: {name} meets {a_animal} {where} and gets {a_object}. Make it {mood}. "
    "At the end {ending}.",
)
ONE_HELDOUT = (
    "Make up {a_mood} tale with {name}, {a_animal}, {a_object} and the {place}. "
    "It should end so that {ending}.",
)
TWO = (
    "Write {a_mood} story about the friends {name} and {friend} {where}, with {a_animal} and "
    "{a_object}. Ending: {ending}.",
    "Tell a short story. Heroes: {name}, {friend}. Animal: {animal}. Place: {place}. "
    "Object: {object}. Mood: {mood}. Ending: {ending}.",
    "{name} and {friend} are {where}. They meet {a_animal} and get {a_object}. Tell {a_mood} story "
    "where {ending}.",
)
TWO_HELDOUT = (
    "A {mood} tale, please, of {name} with {friend}, set {where}, with {a_animal} and {a_object}. "
    "Finish it so that {ending}.",
)

_SPACE = len(NAMES) * len(_PLACES) * len(_ANIMALS) * len(_OBJECTS) * len(_MOODS) * len(_ENDINGS)

STORIES = Skill(
    "stories",
    (
        Task("one", _draw_one, ONE, ONE_HELDOUT, _SPACE, 1.5),
        Task("two", _draw_two, TWO, TWO_HELDOUT, _SPACE * (len(NAMES) - 1), 1.0),
    ),
    weight=0.4,
)
