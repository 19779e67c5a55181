"""What a skill is: tasks that draw a prompt, a canonical answer and the data that checks it.

Knows how prompts are split by their hash, how an example follows from (seed, split, index) alone,
and how a lower bound on distinct prompts adds up. Refuses to know any skill's content, tokens, or
how a reply is judged (`trainer.verify`).
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Split = Literal["train", "valid", "heldout", "heldout_templates"]

# Per mille of the prompt's hash: [0, 10) is held out, [10, 20) validates, the rest trains.
HELDOUT_BELOW = 10
VALID_BELOW = 20


@dataclass(frozen=True)
class Example:
    """One prompt with its canonical answer.

    template: `task/phrasing index`; unique within the skill. check: JSON-able data from which
    `trainer.verify` judges a reply; `check["kind"]` names the verifier. heldout_template: the
    phrasing is one that never occurs in training.
    """

    skill: str
    template: str
    prompt: str
    answer: str
    check: dict[str, Any]
    heldout_template: bool


@dataclass(frozen=True)
class Draft:
    """A drawn problem: what fills a phrasing's slots, and how to solve it (answer, check).

    `solve` is called only for prompts that are kept, so that looking for the one prompt in a
    hundred that is held out stays cheap. It may be called at most once.
    """

    fields: Mapping[str, object]
    solve: Callable[[], tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Task:
    """One kind of problem of a skill, with its phrasings (format strings over `Draft.fields`).

    space: lower bound on the number of distinct field values `draw` can give that yield distinct
    prompts, by arithmetic of the value ranges; each training phrasing multiplies it.
    """

    name: str
    draw: Callable[[random.Random], Draft]
    phrasings: tuple[str, ...]
    heldout: tuple[str, ...]
    space: int
    weight: float = 1.0


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One item, uniformly."""
    return items[int(rng.random() * len(items))]


def number(rng: random.Random, low: int, high: int) -> int:
    """An integer in [low, high], uniformly."""
    return low + int(rng.random() * (high - low + 1))


def split_of(prompt: str) -> Literal["train", "valid", "heldout"]:
    """The split a prompt belongs to for ever: a stable hash of its text, nothing else."""
    digest = blake2b(prompt.encode("utf-8"), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % 1000
    if bucket < HELDOUT_BELOW:
        return "heldout"
    return "valid" if bucket < VALID_BELOW else "train"


# What people put around a request; none of it changes the answer.
OPENERS = ("Hello! ", "Hi, ", "Please help me. ", "Quick question: ", "Next one: ", "Please: ")
CLOSERS = (" Thanks!", " Thank you.", " Please be careful.")


def vary(rng: random.Random, prompt: str, starts_with_data: bool) -> str:
    """The prompt as people may type it: mostly as it is, else with an opener or closer, a small
    first letter (unless that letter is part of the data), or no full stop at the end."""
    roll = rng.random()
    if roll > 0.2:
        return prompt
    if roll < 0.06:
        return pick(rng, OPENERS) + prompt
    ended = prompt[-1] in ".?"
    if roll < 0.1:
        return prompt + pick(rng, CLOSERS) if ended else prompt
    if roll < 0.15:
        return prompt if starts_with_data else prompt[0].lower() + prompt[1:]
    return prompt[:-1] if ended else prompt


@dataclass(frozen=True)
class Skill:
    """A closed set of tasks under one name, drawn by weight.

    varied: training phrasings are typed in various ways (`vary`); off where an opener would call
    for another reply.
    """

    name: str
    tasks: tuple[Task, ...]
    weight: float = 1.0
    varied: bool = True
    _edges: tuple[float, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_edges", tuple(accumulate(task.weight for task in self.tasks)))

    def pick_task(self, rng: random.Random) -> Task:
        return self.tasks[bisect(self._edges, rng.random() * self._edges[-1])]

    def generate(self, rng: random.Random, split: Split, task: Task | None = None) -> Example:
        """Draws until a prompt of `split` comes up, then solves it.

        `task` restricts the draw to one task. Prompts of "heldout_templates" are told apart by
        their phrasing alone, those of the other splits by `split_of`.
        """
        unseen = split == "heldout_templates"
        while True:
            chosen = task if task is not None else self.pick_task(rng)
            phrasings = chosen.heldout if unseen else chosen.phrasings
            index = int(rng.random() * len(phrasings))
            draft = chosen.draw(rng)
            prompt = phrasings[index].format_map(draft.fields)
            if self.varied and not unseen:
                prompt = vary(rng, prompt, phrasings[index].startswith("{"))
            if unseen or split_of(prompt) == split:
                break
        answer, check = draft.solve()
        number = index + len(chosen.phrasings) if unseen else index
        template = f"{chosen.name}/{number}"
        return Example(self.name, template, prompt, answer, check, unseen)

    def distinct_prompts(self) -> int:
        """Lower bound on distinct prompts over the training phrasings."""
        return sum(task.space * len(task.phrasings) for task in self.tasks)


def example_rng(seed: int, split: Split, index: int) -> random.Random:
    """The generator of example `index`: a function of its arguments only, on any process."""
    digest = blake2b(f"{seed}:{split}:{index}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


def draw_examples(
    registry: Mapping[str, Skill],
    seed: int,
    start: int,
    count: int,
    split: Split,
    skills: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Iterator[Example]:
    """Examples `start` .. `start + count - 1` of the endless seeded sequence of `split`.

    skills: names to draw from (all by default). weights: relative frequency by name, a skill's own
    weight where it is not named. Any partition of the index range over processes gives the same
    examples. Raises KeyError for an unknown name.
    """
    chosen = [registry[name] for name in (skills if skills is not None else registry)]
    given = weights or {}
    edges = list(accumulate(given.get(skill.name, skill.weight) for skill in chosen))
    for index in range(start, start + count):
        rng = example_rng(seed, split, index)
        skill = chosen[bisect(edges, rng.random() * edges[-1])]
        yield skill.generate(rng, split)
