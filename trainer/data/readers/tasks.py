"""From a row and its layout to a task.

Knows roles, turns and how the benchmarks are usually asked. Knows no files, no tokens, no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.types import Message, Role
from trainer.data.readers.layout import ColumnMapping, Layout
from trainer.data.readers.rows import BadRow, Row
from trainer.data.readers.text import bad_byte
from trainer.data.task import Task
from trainer.verify.extract import last_boxed
from trainer.verify.unit_tests import row_tests

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
}
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
COMPLETE = "Complete this Python function. Reply with the whole function in one Python block."


def task_of(row: Row, layout: Layout) -> Task | BadRow:
    """A row as a task, or why it is none."""
    try:
        if layout.shape == "columns":
            return _by_columns(row, layout.mapping)
        return _benchmark(row, layout)
    except ValueError as error:
        return BadRow(row.file, row.line, str(error))


def _by_columns(row: Row, mapping: ColumnMapping) -> Task:
    value = row.value
    used = set(mapping.as_columns().values())
    check = value.get("check")
    rest = {name: item for name, item in value.items() if name not in used}
    reference: str | None = None
    if mapping.messages:
        messages, reference = _talk(_field(value, mapping.messages))
    else:
        messages = (Message("user", _prompt(value, mapping)),)
    if mapping.answer:
        reference = _answer(value.get(mapping.answer)) or reference
    system = _optional_text(value, mapping.system)
    if system and messages[0].role != "system":
        messages = (Message("system", system), *messages)
    skill = _optional_text(value, mapping.skill)
    checks = check if isinstance(check, dict) else rest
    return _sound(Task(row.id, messages, reference, skill, checks))


def _sound(task: Task) -> Task:
    """The task with plain line ends: a model would learn to write the others. Raises ValueError for
    text that cannot be encoded."""
    texts = [*(message.content for message in task.messages), task.reference or ""]
    for text in texts:
        if reason := bad_byte(text):
            raise ValueError(reason)
    if not any("\r\n" in text for text in texts):
        return task
    messages = tuple(Message(m.role, m.content.replace("\r\n", "\n")) for m in task.messages)
    reference = None if task.reference is None else task.reference.replace("\r\n", "\n")
    return replace(task, messages=messages, reference=reference)


def _field(value: Mapping[str, Any], column: str) -> Any:
    if column not in value:
        known = ", ".join(map(str, value))
        raise ValueError(f"has no column {column!r} (it has {known[:120]})")
    return value[column]


def _prompt(value: Mapping[str, Any], mapping: ColumnMapping) -> str:
    prompt = _field(value, mapping.prompt)
    if isinstance(prompt, (int, float)) and not isinstance(prompt, bool):
        prompt = str(prompt)
    if not isinstance(prompt, str):
        raise ValueError(f"column {mapping.prompt!r} is not text")
    if not prompt.strip():
        raise ValueError(f"column {mapping.prompt!r} is empty")
    context = _optional_text(value, mapping.context)
    return f"{prompt}\n\n{context}" if context else prompt


def _optional_text(value: Mapping[str, Any], column: str) -> str:
    text = value.get(column) if column else None
    return text if isinstance(text, str) and text.strip() else ""


def _answer(answer: Any) -> str | None:
    """An answer as text; None for an empty one."""
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return None
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _talk(talk: Any) -> tuple[tuple[Message, ...], str | None]:
    """Messages up to a person's last one, and the answer after it where there is one."""
    if not isinstance(talk, list) or not talk:
        raise ValueError("has no list of messages")
    messages = [_turn(turn) for turn in talk]
    reference = None
    if messages[-1].role == "assistant":
        reference = messages.pop().content
        if not reference.strip():
            raise ValueError("has an empty answer")
    if not messages or messages[-1].role != "user" or not messages[-1].content.strip():
        raise ValueError("has no message of a person to answer")
    return tuple(messages), reference


def _turn(turn: Any) -> Message:
    if not isinstance(turn, dict):
        raise ValueError("has a message that is no object")
    name = str(turn.get("role") or turn.get("from") or "")
    role = ROLES.get(name.strip().casefold())
    if role is None:
        raise ValueError(f"has a message of role {name!r:.40}, which no model here knows")
    content = turn.get("content", turn.get("value", turn.get("text")))
    if isinstance(content, list):
        content = _parts(content)
    if not isinstance(content, str):
        raise ValueError(f"has a message of {name!r:.40} without text")
    return Message(role, content)


def _parts(parts: list[Any]) -> str:
    """Content in parts, text alone."""
    texts: list[str] = []
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise ValueError("has a message that is not text alone")
        texts.append(part["text"])
    return "".join(texts)


def _benchmark(row: Row, layout: Layout) -> Task:
    value, mapping = row.value, layout.mapping
    prompt = _prompt(value, mapping)
    answer = value.get(mapping.answer) if mapping.answer else None
    answer = answer if isinstance(answer, str) and answer.strip() else None
    skill = _optional_text(value, mapping.skill)
    check = dict(value)
    if layout.shape == "gsm8k":
        answer = _CALCULATOR.sub("", answer) if answer else None
    elif layout.shape == "math":
        answer = _boxed(answer, value.get("answer"))
    elif layout.shape == "humaneval":
        answer = _block(prompt + answer) if answer else None
        prompt = f"{COMPLETE}\n\n{_block(prompt)}"
    else:
        tests = row_tests(value, "")
        if tests is None:
            raise ValueError("has no tests")
        shown = "\n".join(tests.tests)
        prompt = f"{prompt}\nThe code must pass these tests:\n\n{shown}"
        answer = _block(answer) if answer else None
    task = Task(row.id, (Message("user", prompt),), answer, skill or layout.shape, check)
    return _sound(task)


def _boxed(worked: str | None, result: Any) -> str | None:
    """A solution that ends in a boxed result; the result alone, boxed, where it has none."""
    if worked is not None and last_boxed(worked) is not None:
        return worked
    plain = str(result).strip() if result is not None else (worked or "").strip()
    return f"\\boxed{{{plain}}}" if plain else None


def _block(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
