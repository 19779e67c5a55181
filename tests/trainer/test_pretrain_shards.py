"""Shards: what a row holds, whoever makes it, and however often it is asked for."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainer.data.skills import SKILLS, generate_examples
from trainer.data.template import ChatEncoder
from trainer.shards import Examples, ShardFeed, ShardPlan, make_shard


@pytest.fixture
def plan(repo_root: Path) -> ShardPlan:
    return ShardPlan(repo_root / "assets" / "demo", 5, "train", 40, 16, 32, 20, chat_share=0.0)


def _same(one: Examples, other: Examples) -> bool:
    names = ("tokens", "blocks", "answer", "stop", "skill")
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in names)


def test_a_row_is_the_templated_example_padded_with_the_end_of_text(plan: ShardPlan) -> None:
    encoder = ChatEncoder.from_folder(plan.tokenizer)
    examples = list(generate_examples(5, 16, 16, "train"))
    shard = make_shard(plan, 1)
    rows = np.split(shard.tokens, np.cumsum(shard.blocks)[:-1])
    for n, (row, example) in enumerate(zip(rows, examples, strict=True)):
        expected = encoder.encode_examples([example])[0]
        flat = row.ravel().tolist()
        assert flat[: shard.stop[n]] == expected.ids
        assert set(flat[shard.stop[n] :]) <= {encoder.end_of_text_id}
        assert flat[shard.stop[n] - 1] == encoder.role_end_id
        assert shard.answer[n] == expected.prompt_length()
        assert sorted(SKILLS)[shard.skill[n]] == example.skill


def test_a_chat_has_earlier_turns_and_only_its_last_answer_is_learnt(plan: ShardPlan) -> None:
    alone, chats = make_shard(plan, 0), make_shard(replace(plan, chat_share=1.0), 0)
    longer = chats.stop > alone.stop
    assert longer[1:].all()  # the first example of a shard has no neighbour before it
    assert (chats.stop - chats.answer == alone.stop - alone.answer).all()
    assert (chats.blocks <= plan.max_blocks).all()


def test_the_last_shard_holds_the_rest_and_then_there_are_no_more(
    plan: ShardPlan, tmp_path: Path
) -> None:
    feed = ShardFeed(plan, tmp_path, workers=0)
    shards = [feed.next() for _ in range(4)]
    assert [len(shard) if shard else None for shard in shards] == [16, 16, 8, None]


def test_files_give_the_same_shards_again(plan: ShardPlan, tmp_path: Path) -> None:
    first = ShardFeed(plan, tmp_path, workers=0).next()
    assert len(list(tmp_path.glob("train-*.npz"))) == 1
    again = ShardFeed(plan, tmp_path, workers=0).next()
    assert first is not None
    assert again is not None
    assert _same(first, again)
    assert _same(first, make_shard(plan, 0))


def test_files_of_another_seed_or_tokenizer_are_not_taken(plan: ShardPlan, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ShardFeed(plan, folder, workers=0).next()
    copy = tmp_path / "tokenizer"
    shutil.copytree(plan.tokenizer, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    moved = replace(plan, tokenizer=copy)
    assert moved.fingerprint() == plan.fingerprint()  # what counts is what the files say
    text = (copy / "tokenizer.json").read_text("utf-8")
    (copy / "tokenizer.json").write_text(text + "\n", "utf-8")
    others = (moved, replace(plan, seed=6), replace(plan, chat_share=0.5))
    for number, other in enumerate(others, start=2):
        made = ShardFeed(other, folder, workers=0).next()
        assert len(list(folder.glob("train-*.npz"))) == number
        assert made is not None
        assert _same(made, make_shard(other, 0))


def test_workers_make_the_same_shards(plan: ShardPlan, tmp_path: Path) -> None:
    feed = ShardFeed(plan, tmp_path, workers=2)
    try:
        for number in range(plan.shards):
            shard = feed.next()
            assert shard is not None
            assert _same(shard, make_shard(plan, number))
    finally:
        feed.close()
