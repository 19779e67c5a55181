"""Text to token ids and back, and the chat template of a checkpoint folder.

Knows `tokenizer.json` (the `tokenizers` library) and Jinja chat templates, which run in a sandbox:
a template is data from somebody else's repository, and nothing it says is executed as code. Knows
nothing of models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from engine.checkpoint.byte_bpe import VOCAB, older_tokenizer
from engine.checkpoint.refusals import DOWNLOAD_AGAIN, plain_file_size, printable, unreadable
from engine.errors import CheckpointError, RequestError
from engine.types import Message

_STAND_IN = chr(0xF8FF)  # private use: in nobody's text


class ChatTokenizer:
    """Tokenizer and template of one folder."""

    def __init__(self, tokenizer: Tokenizer, template: Template, special: dict[str, str]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._template = template
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = {index for index, token in added.items() if token.special}
        self._special_texts = [token.content for token in added.values() if token.special]

    @classmethod
    def open(cls, folder: Path, template: str | None = None) -> ChatTokenizer:
        """Reads tokenizer.json (or the older files of a Qwen2 tokenizer), tokenizer_config.json and
        chat_template.jinja. template: the
        family's own, for a folder that brings none. Raises CheckpointError."""
        name, content = _content_of(folder)
        try:
            tokenizer = Tokenizer.from_str(content)
        except Exception as error:  # the library raises plain Exception for any malformed file
            raise CheckpointError(
                "checkpoint.bad_tokenizer",
                f"{name} cannot be read: {error}",
                "Download the tokenizer again.",
                file=name,
            ) from error
        config = _read_json(folder / "tokenizer_config.json")
        compiled = _compiled(*_template_of(folder, config, template))
        return cls(tokenizer, compiled, _special_tokens(config))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the conversation, ending where the assistant's next reply begins.

        A special token's text inside a message stays text: nobody can end a turn, or unmask
        anything, by typing it. Raises RequestError.
        """
        typed = [m.content for m in messages]
        for content in typed:
            _require_text(content)
        if not any(text in content for text in self._special_texts for content in typed):
            return self._encode(self._render(messages))
        # The template sees stand-ins, so that each message can be encoded apart, as plain text.
        marks = [f"{_STAND_IN}{n}{_STAND_IN}" for n in range(len(typed))]
        stand_ins = [Message(m.role, mark) for m, mark in zip(messages, marks, strict=True)]
        text = self._render(stand_ins)
        ids: list[int] = []
        for mark, content in zip(marks, typed, strict=True):
            before, found, text = text.partition(mark)
            ids += self._encode(before)
            ids += self._encode(content, special=False) if found else []
        return ids + self._encode(text)

    def _render(self, messages: Sequence[Message]) -> str:
        rows = [{"role": m.role, "content": m.content} for m in messages]
        try:
            return self._template.render(messages=rows, add_generation_prompt=True, **self._special)
        except TemplateError as error:
            raise RequestError(
                "request.template",
                f"The model's chat template refuses this conversation: {printable(str(error))}",
                "Start a new chat, or remove the system prompt.",
            ) from error
        except Exception as error:  # a template is a program, and may raise anything
            raise RequestError(
                "request.template",
                "The model's chat template failed on this conversation"
                f" ({type(error).__name__}: {printable(str(error))}).",
                "Start a new chat, or download the model's chat template again.",
            ) from error

    def _encode(self, text: str, special: bool = True) -> list[int]:
        self._tokenizer.encode_special_tokens = not special
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's own: a BaseException
                raise
            raise RequestError(
                "request.tokenizer",
                f"The model's tokenizer failed on this text ({printable(str(error))}).",
                "Change the text, or download the model's tokenizer again.",
            ) from error
        finally:
            self._tokenizer.encode_special_tokens = False

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens dropped."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """Display text of one token: special tokens by name, fragments of a character as the
        replacement sign."""
        if token in self._special_ids:
            return self._tokenizer.id_to_token(token) or f"<{token}>"
        return self._tokenizer.decode([token], skip_special_tokens=False)


def _content_of(folder: Path) -> tuple[str, str]:
    """The file a tokenizer is read from, and its content as a tokenizer.json."""
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return file.name, file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(file.name, error) from error
    older = older_tokenizer(folder)
    if older is not None:
        return VOCAB, json.dumps(older)
    raise CheckpointError(
        "checkpoint.no_tokenizer",
        f"The folder {folder.name} has no tokenizer.json, so it cannot read or write text.",
        "Add the model's tokenizer.json to the folder, or download the model again.",
        file="tokenizer.json",
    )


def _require_text(content: str) -> None:
    """Refuses half a character: a lone surrogate, as undecodable bytes of a command line become."""
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            "request.not_text",
            f"Character {error.start + 1} of the message is not text (bytes that are not UTF-8, or"
            " half of a character).",
            "Delete it. In a terminal, use a UTF-8 locale.",
        ) from error


def _compiled(template: str, file: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise_template_error
    try:
        return environment.from_string(template)
    except (TemplateError, ValueError, RecursionError) as error:  # ValueError: a number too long
        raise CheckpointError(
            "checkpoint.bad_template",
            f"{file}: chat_template is not valid ({printable(str(error))}).",
            DOWNLOAD_AGAIN,
            file=file,
            item="chat_template",
        ) from error


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(
            "checkpoint.bad_json",
            f"{file.name} cannot be read: {error}",
            "Download the file again.",
            file=file.name,
        ) from error
    return value if isinstance(value, dict) else {}


def _template_of(folder: Path, config: dict[str, Any], fallback: str | None) -> tuple[str, str]:
    """The template and the name of the file it is from."""
    file = folder / "chat_template.jinja"
    if os.path.lexists(file):
        plain_file_size(file)
        try:
            return file.read_text(encoding="utf-8"), file.name
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(file.name, error) from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates: the default one is for plain chat
        named = {item.get("name"): item.get("template") for item in template}
        template = named.get("default")
    found = template if isinstance(template, str) else fallback
    if found is None:
        raise CheckpointError(
            "checkpoint.no_template",
            "tokenizer_config.json has no chat_template, and the folder no chat_template.jinja.",
            "Add the model's chat_template.jinja to the folder, or download the model again.",
            file="tokenizer_config.json",
            item="chat_template",
        )
    return found, "tokenizer_config.json"


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like, as templates expect them by name."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found
