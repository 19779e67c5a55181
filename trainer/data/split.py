"""Which tasks train and which validate: drawn by a seed, the same prompt always on one side.

Knows messages only. Two prompts are the same when they differ in white space and capitals at most.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from hashlib import blake2b

from trainer.data.task import Task

_NUMBER = re.compile(r"\d+")


def prompt_key(task: Task, numbers: bool = True) -> bytes:
    """The same for the same prompt. numbers: False = prompts that differ in numbers alone are the
    same, too."""
    parts = (f"{m.role}\0{' '.join(m.content.casefold().split())}" for m in task.messages)
    text = "\1".join(parts)
    if not numbers:
        text = _NUMBER.sub("0", text)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def held_out(tasks: Sequence[Task], share: float, seed: int) -> frozenset[int]:
    """Places of the validation tasks: at most `share` of all, and never one whose prompt trains."""
    groups: dict[bytes, list[int]] = {}
    for place, task in enumerate(tasks):
        groups.setdefault(prompt_key(task), []).append(place)
    order = list(groups.values())
    random.Random(f"{seed}:split").shuffle(order)
    wanted = round(share * len(tasks))
    held: set[int] = set()
    for group in order:
        if len(held) + len(group) <= wanted:
            held.update(group)
    return frozenset(held)
