"""Tasks from JSONL files: one object a line, in the shapes people have, with file:line errors.

Knows the names under which prompts and answers usually stand. Knows no tokens and no model.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.types import Message, Role
from trainer.data.task import Task

ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
PROMPTS = ("prompt", "question", "instruction", "input_text", "problem", "text")
ANSWERS = ("answer", "output", "response", "completion", "solution", "reference")
TALKS = ("messages", "conversations")
ROW_LIMIT = 8 * 2**20  # bytes of a line; a longer one is no example


@dataclass(frozen=True)
class BadRow:
    """A row that is no task: where, and why in words."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def read_jsonl(path: Path, columns: Mapping[str, str]) -> Iterator[Task | BadRow]:
    """Rows of a file in order, one at a time in memory; blank lines are none. columns: see
    `trainer.spec.DataSpec`. Raises RequestError `data.unreadable`."""
    try:
        with path.open("rb") as file:
            encoding = _encoding(file.read(4))
        with path.open(encoding=encoding, errors="strict", newline=None) as text:
            for number, line in enumerate(_lines(text), start=1):
                if line is None:
                    yield BadRow(path.name, number, f"is longer than {ROW_LIMIT // 2**20} MB")
                elif line.strip():
                    yield _row(path.name, number, line, columns)
    except UnicodeDecodeError as error:
        raise RequestError(
            "data.encoding",
            f"{path.name} is not {error.encoding} text: byte {error.start} of a line is wrong.",
            "Save the file as UTF-8.",
        ) from error
    except OSError as error:
        raise RequestError(
            "data.unreadable", f"{path} cannot be read: {error.strerror}.", "Name another file."
        ) from error


def _lines(text: Any) -> Iterator[str | None]:
    """Lines, None in place of one that is too long."""
    while line := text.readline(ROW_LIMIT):
        if line.endswith("\n") or len(line) < ROW_LIMIT:
            yield line
            continue
        while (rest := text.readline(ROW_LIMIT)) and not rest.endswith("\n"):
            pass
        yield None


def _encoding(head: bytes) -> str:
    """By the file's first bytes; UTF-8 without a mark."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def _row(file: str, number: int, line: str, columns: Mapping[str, str]) -> Task | BadRow:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow(file, number, f"is not JSON ({type(error).__name__})")
    if not isinstance(value, dict):
        return BadRow(file, number, "is not an object")
    try:
        return task_of(value, f"{file}:{number}", columns)
    except ValueError as error:
        return BadRow(file, number, str(error))


def task_of(value: Mapping[str, Any], name: str, columns: Mapping[str, str]) -> Task:
    """One object as a task. Raises ValueError saying what is missing."""
    talk = _named(value, columns, "messages", TALKS)
    skill = _named(value, columns, "skill", ("skill", "category"))
    check = value.get("check")
    rest = {
        "skill": skill if isinstance(skill, str) else "",
        "check": check if isinstance(check, dict) else dict(value),
    }
    if talk is not None:
        messages, reference = _talk(talk)
        return Task(name, messages, reference, **rest)
    prompt = _named(value, columns, "prompt", PROMPTS)
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"has no prompt (fields: {', '.join(map(str, value))[:120]})")
    extra = value.get("input")
    if isinstance(extra, str) and extra.strip() and "prompt" not in columns:
        prompt = f"{prompt}\n\n{extra}"
    answer = _named(value, columns, "answer", ANSWERS)
    if answer is not None and not isinstance(answer, str):
        answer = json.dumps(answer, ensure_ascii=False)
    system = _named(value, columns, "system", ("system",))
    messages = (Message("user", prompt),)
    if isinstance(system, str) and system.strip():
        messages = (Message("system", system), *messages)
    return Task(name, messages, answer, **rest)


def _named(
    value: Mapping[str, Any], columns: Mapping[str, str], what: str, usual: tuple[str, ...]
) -> Any:
    """A column by the name the caller gave it, else by the first usual name there is."""
    if what in columns:
        if columns[what] not in value:
            raise ValueError(f"has no column {columns[what]!r}")
        return value[columns[what]]
    return next((value[name] for name in usual if value.get(name) is not None), None)


def _talk(talk: Any) -> tuple[tuple[Message, ...], str | None]:
    """Messages up to a person's last one, and the answer after it where there is one."""
    if not isinstance(talk, list) or not talk:
        raise ValueError("has messages that are no list")
    messages: list[Message] = []
    for turn in talk:
        if not isinstance(turn, dict):
            raise ValueError("has a message that is no object")
        role = ROLES.get(str(turn.get("role", turn.get("from", ""))))
        content = turn.get("content", turn.get("value"))
        if role is None or not isinstance(content, str):
            raise ValueError("has a message without a known role or text")
        messages.append(Message(role, content))
    reference = None
    if messages[-1].role == "assistant":
        reference = messages.pop().content
    if not messages or messages[-1].role != "user" or not messages[-1].content.strip():
        raise ValueError("has no message of a person to answer")
    return tuple(messages), reference


@dataclass(frozen=True)
class Loaded:
    """tasks in order; bad: rows that were left out."""

    tasks: tuple[Task, ...]
    bad: tuple[BadRow, ...]


def load_tasks(files: tuple[str, ...], columns: Mapping[str, str]) -> Loaded:
    """All tasks of all files. Raises RequestError `data.nothing` when there is none."""
    tasks: list[Task] = []
    bad: list[BadRow] = []
    for name in files:
        for row in read_jsonl(Path(name), columns):
            (tasks if isinstance(row, Task) else bad).append(row)  # pyright: ignore[reportArgumentType]
    if not tasks:
        first = f" The first one: {bad[0]}." if bad else ""
        raise RequestError(
            "data.nothing",
            f"There is nothing to train on: {len(bad)} rows are unusable.{first}",
            "Give rows with a prompt (and an answer), or name the columns.",
        )
    return Loaded(tuple(tasks), tuple(bad))
