"""The skills as a whole: reproducible, split by prompt, large, of the right length, and right."""

from __future__ import annotations

import json
import random
import string
from collections import Counter
from pathlib import Path

import pytest

from trainer.data.skills import SKILLS, Example, distinct_prompts, generate_examples, split_of
from trainer.data.skills.base import Split
from trainer.data.template import ChatEncoder

NAMES = tuple(SKILLS)
SPLITS: tuple[Split, ...] = ("train", "valid", "heldout", "heldout_templates")


def sample(skill: str, count: int, split: Split = "train", seed: int = 5) -> list[Example]:
    return list(generate_examples(seed, 0, count, split, [skill]))


def test_the_closed_set_is_the_one_that_was_promised() -> None:
    assert set(NAMES) == {
        "arithmetic", "lists", "strings", "dates", "units", "json", "python", "stories", "about",
    }  # fmt: skip


def test_an_example_depends_on_seed_and_index_only() -> None:
    whole = list(generate_examples(3, 0, 60, "train"))
    pieces = [
        example
        for start, count in ((0, 17), (17, 1), (18, 42))
        for example in generate_examples(3, start, count, "train")
    ]
    assert whole == pieces
    assert whole != list(generate_examples(4, 0, 60, "train"))


def test_skills_and_weights_choose_what_is_drawn() -> None:
    drawn = Counter(
        example.skill
        for example in generate_examples(
            1, 0, 400, "train", ["units", "about"], {"units": 3.0, "about": 1.0}
        )
    )
    assert set(drawn) == {"units", "about"}
    assert 240 < drawn["units"] < 360
    with pytest.raises(KeyError):
        next(generate_examples(1, 0, 1, "train", ["cooking"]))


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_lies_in_the_split_of_its_hash(name: str) -> None:
    for split in ("train", "valid", "heldout"):
        for example in sample(name, 60, split):
            assert split_of(example.prompt) == split
            assert not example.heldout_template


def test_the_hash_keeps_one_prompt_in_a_hundred_for_each_small_split() -> None:
    counts = Counter(split_of(f"prompt {i}") for i in range(50_000))
    assert 400 < counts["heldout"] < 600
    assert 400 < counts["valid"] < 600
    assert split_of("What is 17 * 24 + 9? Show the working.") == "train"  # stable for ever


@pytest.mark.parametrize("name", NAMES)
def test_held_out_prompts_never_occur_in_training(name: str) -> None:
    training = {example.prompt for example in sample(name, 3000)}
    held_out = {example.prompt for example in sample(name, 100, "heldout")}
    assert not training & held_out
    assert all(split_of(prompt) != "train" for prompt in held_out)


@pytest.mark.parametrize("name", NAMES)
def test_held_out_phrasings_occur_only_in_their_split(name: str) -> None:
    for task in SKILLS[name].tasks:
        assert task.heldout, f"{task.name} keeps no phrasing back"
        assert not set(task.phrasings) & set(task.heldout)
    unseen = sample(name, 300, "heldout_templates")
    assert all(example.heldout_template for example in unseen)
    seen = sample(name, 1500)
    assert not {e.template for e in unseen} & {e.template for e in seen}
    assert not {e.prompt for e in unseen} & {e.prompt for e in seen}


@pytest.mark.parametrize("name", NAMES)
def test_every_phrasing_of_a_task_fills_the_same_slots_it_is_given(name: str) -> None:
    rng = random.Random(2)
    for task in SKILLS[name].tasks:
        given = set(task.draw(rng).fields)
        for phrasing in (*task.phrasings, *task.heldout):
            used = {field for _, field, _, _ in string.Formatter().parse(phrasing) if field}
            assert used, phrasing
            assert used <= given


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_has_at_least_100_000_distinct_prompts(name: str) -> None:
    """By arithmetic, and by sampling: of n draws from N equally likely prompts n^2 / 2N pairs
    collide; an uneven distribution only collides more."""
    assert distinct_prompts(name) >= 100_000
    draws = 4000
    distinct = len({example.prompt for example in sample(name, draws, seed=77)})
    assert draws - distinct <= draws**2 / (2 * 100_000)


@pytest.mark.parametrize("name", NAMES)
def test_the_claimed_space_of_each_task_is_not_refuted_by_sampling(name: str) -> None:
    rng = random.Random(9)
    skill = SKILLS[name]
    for task in skill.tasks:
        claimed = task.space * len(task.phrasings)
        prompts = [skill.generate(rng, "train", task).prompt for _ in range(150)]
        assert len(set(prompts)) >= min(100, claimed * 0.5), task.name


@pytest.mark.parametrize("name", NAMES)
def test_checks_survive_json_and_tell_nothing_in_the_prompt(name: str) -> None:
    for example in sample(name, 100):
        assert json.loads(json.dumps(example.check)) == example.check
        assert isinstance(example.check["kind"], str)
        assert example.skill == name


def test_answers_have_the_promised_lengths(repo_root: Path) -> None:
    """In tokens of the shipped tokenizer; the whole conversation counts its template."""
    encoder = ChatEncoder.from_folder(repo_root / "assets" / "demo")
    means = []
    for name in NAMES:
        encoded = encoder.encode_examples(sample(name, 400))
        answers = [sum(conversation.answer) for conversation in encoded]
        means.append(sum(answers) / len(answers))
        assert means[-1] >= 48, name
        assert max(len(conversation.ids) for conversation in encoded) <= 320, name
    assert sum(means) / len(means) >= 70
