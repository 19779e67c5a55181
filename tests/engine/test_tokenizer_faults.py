"""Tokenizers, templates and messages that are wrong: each ends in a sentence, none loses the model.

What is refused when a folder is opened is a CheckpointError; what shows only on a conversation is a
RequestError, which an engine survives.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.errors import CheckpointError, RequestError
from engine.paths import demo_folder
from engine.tokenizer import ChatTokenizer
from engine.types import Message

HELLO = [Message("user", "Hello")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo_folder() / name, tmp_path / name)
    return tmp_path


def with_template(folder: Path, template: bytes) -> Path:
    (folder / "chat_template.jinja").write_bytes(template)
    return folder


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (b"{% for x in %}{{", "checkpoint.bad_template"),
        (b"{% unheard of %}", "checkpoint.bad_template"),
        (b"{{ (10 ** 5000) | string }}", "checkpoint.bad_template"),
        (bytes(range(256)), "checkpoint.unreadable"),
    ],
)
def test_a_template_that_is_no_template_is_refused_when_the_folder_is_opened(
    folder: Path, template: bytes, code: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        ChatTokenizer.open(with_template(folder, template))
    assert caught.value.code == code
    assert caught.value.file == "chat_template.jinja"
    assert "chat_template.jinja" in caught.value.message


def test_a_template_from_the_tokenizers_config_is_named_by_that_file(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    config = {"chat_template": "{% if %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        ChatTokenizer.open(folder)
    assert caught.value.file == "tokenizer_config.json"


def test_a_folder_in_place_of_the_template_is_not_taken_for_none(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").mkdir()
    with pytest.raises(CheckpointError) as caught:
        ChatTokenizer.open(folder)
    assert caught.value.code == "checkpoint.not_a_file"


@pytest.mark.parametrize(
    "template",
    [
        b"{{ messages + 1 }}",
        b"{{ 1 // 0 }}",
        b"{{ '%d' % 'a' }}",
        b"{{ '{x}'.format(y=1) }}",
        b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        b"{% include '/etc/hostname' %}",
        b"{% for i in range(10 ** 9) %}x{% endfor %}",
        b"{{ messages[5].content }}",
        b"{{ raise_exception('never') }}",
    ],
)
def test_a_template_that_fails_on_a_conversation_refuses_the_request(
    folder: Path, template: bytes
) -> None:
    tokenizer = ChatTokenizer.open(with_template(folder, template))
    with pytest.raises(RequestError) as caught:
        tokenizer.encode_chat(HELLO)
    assert caught.value.code == "request.template"
    assert "chat template" in caught.value.message


@pytest.mark.parametrize("text", ["\ud83d", "caf\udcc3\udca9", "a <|mask|> \udfff"])
def test_half_a_character_refuses_the_request_and_says_where(folder: Path, text: str) -> None:
    tokenizer = ChatTokenizer.open(folder)
    with pytest.raises(RequestError) as caught:
        tokenizer.encode_chat([Message("user", text)])
    assert caught.value.code == "request.not_text"
    place = next(n for n, letter in enumerate(text, start=1) if "\ud800" <= letter <= "\udfff")
    assert f"Character {place} " in caught.value.message
    assert tokenizer.encode_chat(HELLO)


def test_a_tokenizer_that_gives_up_on_a_text_refuses_the_request(folder: Path) -> None:
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    endless = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    steps = [endless, values["pre_tokenizer"]]
    values["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    path.write_text(json.dumps(values), encoding="utf-8")
    tokenizer = ChatTokenizer.open(folder)
    with pytest.raises(RequestError) as caught:
        tokenizer.encode_chat([Message("user", "a" * 50 + "!")])
    assert caught.value.code == "request.tokenizer"
    assert tokenizer.encode_chat(HELLO)
