"""The tokenizer: remade bit for bit, digits and quoted letters alone, read by both libraries."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from trainer.data.skills import SKILLS, generate_examples
from trainer.data.tokenizer import (
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    save,
    tokenizer_config,
    train,
)


@pytest.fixture(scope="module")
def shipped(repo_root: Path) -> Tokenizer:
    return Tokenizer.from_file(str(repo_root / "assets" / "demo" / "tokenizer.json"))


def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(train(seed=4, count=300, vocab_size=640), tmp_path / name)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_shipped_tokenizer_is_the_one_the_generators_give(repo_root: Path) -> None:
    """When this fails the training text changed: remake the tokenizer, then train the model."""
    shipped = (repo_root / "assets" / "demo" / "tokenizer.json").read_text(encoding="utf-8")
    assert train(seed=0).to_str(pretty=True) == shipped


def test_too_little_text_for_the_size_is_said() -> None:
    with pytest.raises(ValueError, match="were asked for"):
        train(seed=4, count=2, vocab_size=4096)


def test_special_tokens_have_the_last_ids_and_the_size_is_a_multiple_of_64(
    shipped: Tokenizer,
) -> None:
    assert shipped.get_vocab_size() == VOCAB_SIZE
    assert VOCAB_SIZE % 64 == 0
    ids = [shipped.token_to_id(token) for token in SPECIAL_TOKENS]
    assert ids == list(range(VOCAB_SIZE - len(SPECIAL_TOKENS), VOCAB_SIZE))


def test_no_token_holds_a_digit_and_anything_else(shipped: Tokenizer) -> None:
    digits = [token for token in shipped.get_vocab() if any(c in "0123456789" for c in token)]
    assert sorted(digits) == list("0123456789")
    assert shipped.encode("In 2024, 17*24 = 408").tokens[-3:] == ["4", "0", "8"]


def test_words_in_single_quotes_are_spelled_by_letters(shipped: Tokenizer) -> None:
    assert shipped.encode("Reverse 'Banana'.").tokens[1:-1] == ["Ġ'", *"Banana"]
    letters = [f"'{c}'" for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    for quoted in letters:
        assert shipped.encode(quoted).tokens == list(quoted)
    assert "Ġbanana" in shipped.encode("a banana").tokens


def test_frequent_words_are_one_token(shipped: Tokenizer) -> None:
    assert len(shipped.encode(" Answer return threshold numbers words total").tokens) == 6
    assert shipped.encode("HUMAN").tokens == ["HUMAN"]
    assert shipped.encode("ASSISTANT").tokens == ["ASSISTANT"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "plain words, and more",
        "naïve café – “quotes” … 東京 Привет مرحبا 🙂🏳️‍🌈",
        "tabs\tand\r\nlines\n\n\n    indented",
        "'it''s' 'a'b'c' don't",
        "\x00\x01\x7f\u200b\ufeff",
    ],
)
def test_any_text_comes_back(shipped: Tokenizer, text: str) -> None:
    assert shipped.decode(shipped.encode(text).ids) == text


def test_random_unicode_comes_back(shipped: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(200):
        points = [rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))
                  for _ in range(20)]  # fmt: skip
        text = "".join(map(chr, points))
        assert shipped.decode(shipped.encode(text).ids) == text


@pytest.mark.parametrize("skill", SKILLS)
def test_examples_come_back(shipped: Tokenizer, skill: str) -> None:
    for example in generate_examples(8, 0, 40, "heldout_templates", [skill]):
        for text in (example.prompt, example.answer):
            assert shipped.decode(shipped.encode(text).ids) == text


def test_transformers_reads_the_same_tokenizer(repo_root: Path, shipped: Tokenizer) -> None:
    fast = PreTrainedTokenizerFast.from_pretrained(repo_root / "assets" / "demo")
    assert len(fast) == VOCAB_SIZE
    assert (fast.eos_token, fast.pad_token, fast.mask_token) == (
        "<|endoftext|>",
        "<|endoftext|>",
        "<|mask|>",
    )
    text = "Sort 3, 1, 2 and reverse 'cat'."
    assert fast(text)["input_ids"] == shipped.encode(text).ids


def test_the_shipped_configuration_is_what_the_code_writes(repo_root: Path, tmp_path: Path) -> None:
    folder = repo_root / "assets" / "demo"
    save(Tokenizer.from_file(str(folder / "tokenizer.json")), tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / file).read_bytes() == (tmp_path / file).read_bytes()
    assert tokenizer_config()["chat_template"] == (tmp_path / "chat_template.jinja").read_text()
