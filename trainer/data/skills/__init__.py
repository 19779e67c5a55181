"""The demo model's closed set of skills: seeded generators of prompts with canonical answers.

`SKILLS` names them; `generate_examples` gives the endless seeded sequence of a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainer.data.skills.about import ABOUT
from trainer.data.skills.arithmetic import ARITHMETIC
from trainer.data.skills.base import Example, Skill, Split, draw_examples, split_of
from trainer.data.skills.dates import DATES
from trainer.data.skills.json_skill import JSON
from trainer.data.skills.lists import LISTS
from trainer.data.skills.python_skill import PYTHON
from trainer.data.skills.stories import STORIES
from trainer.data.skills.strings import STRINGS
from trainer.data.skills.units import UNITS

__all__ = [
    "SKILLS",
    "Example",
    "Skill",
    "Split",
    "distinct_prompts",
    "generate_examples",
    "split_of",
]

SKILLS: dict[str, Skill] = {
    skill.name: skill
    for skill in (ARITHMETIC, LISTS, STRINGS, DATES, UNITS, JSON, PYTHON, STORIES, ABOUT)
}


def generate_examples(
    seed: int,
    start: int,
    count: int,
    split: Split,
    skills: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Iterator[Example]:
    """Examples `start` .. `start + count - 1` of `split` (see `base.draw_examples`)."""
    return draw_examples(SKILLS, seed, start, count, split, skills, weights)


def distinct_prompts(skill: str) -> int:
    """Lower bound on the number of distinct training-phrasing prompts of a skill."""
    return SKILLS[skill].distinct_prompts()
