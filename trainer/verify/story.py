"""Judges short stories: every constraint is kept and every sentence is a sentence of the grammar.

A reply need not make the generator's choices: any order of known sentences about the right person,
animal, place, object, mood and ending passes, as long as the frame (title, opening, ending) stands.
"""

from __future__ import annotations

import re
from typing import Any

from trainer.data.skills import story_parts as parts
from trainer.data.skills.stories import slots
from trainer.verify.verdict import RIGHT, Verdict, wrong

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
MINIMUM_SENTENCES = 7


def sentences(text: str) -> list[str]:
    """Title line and sentences of a story, paragraphs joined."""
    found: list[str] = []
    for line in text.strip().splitlines():
        found += [part for part in _SENTENCE_END.split(line.strip()) if part]
    return found


def _allowed(check: dict[str, Any]) -> set[str]:
    """Every sentence that a story with these constraints may hold."""
    with_friend = check["friend"] is not None
    mood = parts.MOODS[check["mood"]]
    forms = {
        parts.TITLE,
        parts.OPENING_FRIEND if with_friend else parts.OPENING,
        parts.MEETING_FRIEND if with_friend else parts.MEETING,
        parts.FINDING_FRIEND if with_friend else parts.FINDING,
        parts.PLACES[check["place"]][1],
        parts.ANIMALS[check["animal"]],
        parts.OBJECTS[check["object"]],
        mood[1],
        mood[2],
        parts.ENDINGS[check["ending"]],
        parts.CLOSING,
    }
    values = slots(check)
    return {form.format_map(values) for form in forms}


def check_story(check: dict[str, Any], reply: str) -> Verdict:
    """check: name, friend or None, animal, place, object, mood, ending."""
    found = sentences(reply)
    if len(found) < MINIMUM_SENTENCES:
        return wrong(f"only {len(found)} sentences")
    allowed = _allowed(check)
    for sentence in found:
        if sentence not in allowed:
            return wrong(f"not a sentence of this story: {sentence!r}")
    if len(set(found)) != len(found):
        return wrong("a sentence is repeated")
    values = slots(check)
    title = parts.TITLE.format_map(values)
    ending = parts.ENDINGS[check["ending"]].format_map(values)
    if found[0] != title or found[-2:] != [ending, parts.CLOSING]:
        return wrong("title or ending is not in its place")
    mood = parts.MOODS[check["mood"]][1].format_map(values)
    opening = parts.OPENING_FRIEND if check["friend"] is not None else parts.OPENING
    if mood not in found or found[1] != opening.format_map(values):
        return wrong("the mood or the opening is missing")
    text = " ".join(found)
    for key in ("name", "friend", "animal", "place", "object"):
        if check[key] is not None and check[key] not in text:
            return wrong(f"{key} {check[key]!r} is missing")
    return RIGHT
