"""Reads the journals in which earlier versions kept conversations: one JSONL file each.

It knows their records, one a line:

    {"kind": "conversation", "version": 1, "id", "created"}            first line of every file
    {"kind": "prompt", "id", "text", "time"}            written before generation started
    {"kind": "reply", "id", "model", "time"}            an answer was begun
    {"kind": "partial", "id", "keep", "tail"}           text so far = its first `keep` chars + tail
    {"kind": "answer", "id", "text", "reason", "figures", "failure"}   how it ended

The last line can be torn by a kill: any line that cannot be read is skipped and costs only itself.
A file is the conversation it is named after. Nothing writes them any more.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import fields, replace
from pathlib import Path

from app.backend.conversations import (
    ChatMessage,
    Conversation,
    Failure,
    Figures,
    MessageStatus,
    new_id,
)

log = logging.getLogger("unblur.conversations")


def read_journal(path: Path) -> Conversation:
    """Everything of a file that can be read. Raises OSError."""
    conversation = Conversation(id=path.stem, created=path.stat().st_mtime)
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            record = json.loads(raw.decode("utf-8", "surrogatepass"))
            conversation = _applied(conversation, _Record(record))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s line %d is damaged and skipped: %s", path.name, number, error)
    if conversation.messages and conversation.messages[-1].role == "user":
        # killed before its answer began: the place is kept, so that it can be asked for again
        missing = ChatMessage(new_id(), "assistant", "", status=MessageStatus.INTERRUPTED)
        conversation = conversation.with_message(missing)
    return conversation


class _Record:
    """One record whose fields have the types they are asked for, or raise TypeError (KeyError when
    missing): a file can be damaged, or written by somebody else."""

    def __init__(self, values: object) -> None:
        if not isinstance(values, dict):
            raise TypeError(f"an object is expected, not {values!r:.40}")
        self._values: dict[str, object] = values

    def text(self, name: str) -> str:
        value = self._values[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, not {value!r:.40}")
        return value

    def number(self, name: str) -> float:
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number, not {value!r:.40}")
        if not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        return value

    def part(self, name: str) -> _Record | None:
        value = self._values[name]
        return None if value is None else _Record(value)


def _applied(conversation: Conversation, record: _Record) -> Conversation:
    """The conversation after one record. Raises KeyError, TypeError or ValueError for a malformed
    one.
    """
    kind = record.text("kind")
    if kind == "conversation":
        return replace(conversation, created=record.number("created"))
    if kind == "prompt":
        return conversation.with_message(
            ChatMessage(record.text("id"), "user", record.text("text"))
        )
    if kind == "reply":
        return conversation.with_message(
            ChatMessage(
                record.text("id"),
                "assistant",
                "",
                status=MessageStatus.INTERRUPTED,
                model=record.text("model"),
            )
        )
    message = {m.id: m for m in conversation.messages}[record.text("id")]
    if kind == "partial":
        text = message.text[: max(0, int(record.number("keep")))] + record.text("tail")
        return conversation.with_message(replace(message, text=text))
    if kind == "answer":
        figures, failure = record.part("figures"), record.part("failure")
        return conversation.with_message(
            replace(
                message,
                text=record.text("text"),
                reason=record.text("reason"),
                status=MessageStatus.FAILED if failure else MessageStatus.DONE,
                figures=_figures(figures) if figures else None,
                failure=Failure(*(failure.text(f.name) for f in fields(Failure)))
                if failure
                else None,
            )
        )
    raise ValueError(f"unknown record kind {kind!r:.40}")


def _figures(record: _Record) -> Figures:
    counts = (int(record.number(name)) for name in ("tokens", "forwards", "blocks"))
    rates = (record.number(f.name) for f in fields(Figures)[3:])
    return Figures(*counts, *rates)
