"""Dream's folders have no tokenizer.json: Qwen2's older files give the same tokens as transformers'
class gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folder_maker import edit_json, refusal
from test_dense_checkpoints import write_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.checkpoint import open_checkpoint
from engine.errors import CheckpointError
from engine.tokenizer import ChatTokenizer
from engine.types import Message

TEXTS = (
    "The model doesn't write from left to right; it's 12 345 steps.",
    "  two  spaces\n\nand a line\r\n\tand more ",
    "Größe, naïve cafe\u0301, 模型は速い, 🙂🙂 and_code(x==1)",
    "x" * 40,
    "",
)
BASE = 300


def write_older(folder: Path) -> None:
    """A byte-level BPE trained on a few lines, in the older files; added tokens follow it."""
    trainer = trainers.BpeTrainer(
        vocab_size=BASE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXTS[:3] * 4, trainer)
    tokenizer.model.save(str(folder))
    added = {BASE: "<|endoftext|>", BASE + 1: "<|im_start|>", BASE + 2: "<|im_end|>"}
    added[BASE + 3] = "<|mask|>"
    config = {
        "tokenizer_class": "DreamTokenizer",
        "mask_token": "<|mask|>",
        "added_tokens_decoder": {
            str(number): {"content": text, "special": True} for number, text in added.items()
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture
def dream(tmp_path: Path) -> Path:
    folder = write_folder(
        tmp_path / "dream", "dream", vocab_size=BASE + 20, mask_token_id=BASE + 3, eos_token_id=BASE
    )
    (folder / "tokenizer.json").unlink()
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8"
    )
    write_older(folder)
    return folder


def test_tokens_are_those_of_transformers(dream: Path) -> None:
    from transformers import Qwen2Tokenizer

    wanted = Qwen2Tokenizer(
        vocab=str(dream / "vocab.json"),
        merges=str(dream / "merges.txt"),
        unk_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )
    tokenizer = ChatTokenizer.open(dream)
    for text in TEXTS:
        ids = tokenizer.encode_chat((Message("user", text),))
        assert ids == wanted.encode(text)
        if "e\u0301" not in text:  # which is composed on the way in
            assert tokenizer.decode(ids) == text
    assert max(len(t) for t in TEXTS) > 40


def test_the_folder_is_checked_like_any_other(dream: Path) -> None:
    checkpoint = open_checkpoint(dream)
    checkpoint.release()
    assert checkpoint.has_tokenizer
    assert checkpoint.spec.stop_ids == (BASE, BASE + 2)
    edit_json(dream, "config.json", mask_token_id=5)
    error = refusal(dream)
    assert error.code == "checkpoint.mask_id_disagrees"
    assert "vocab.json" in error.message
    assert str(BASE + 3) in error.message


def test_files_of_another_kind_of_tokenizer_are_not_taken_for_it(dream: Path) -> None:
    edit_json(dream, "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    with pytest.raises(CheckpointError) as caught:
        ChatTokenizer.open(dream)
    assert caught.value.code == "checkpoint.no_tokenizer"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("merges.txt", "a b\na b c\n", "tokenizer_invalid"),
        ("merges.txt", "zzz qqq\n", "bad_tokenizer"),
        ("vocab.json", "[1]", "json_invalid"),
    ],
)
def test_broken_files_are_named(dream: Path, name: str, text: str, code: str) -> None:
    (dream / name).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        ChatTokenizer.open(dream)
    assert caught.value.code == f"checkpoint.{code}"
    assert caught.value.file in ("merges.txt", "vocab.json")
    if code == "tokenizer_invalid":
        assert "line 2" in caught.value.message
