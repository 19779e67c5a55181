"""What was said, as values, and the journal that keeps it through a kill at any moment.

It knows messages and one append-only JSONL file a conversation (`conversations/<id>.jsonl`). Each
line is one record:

    {"kind": "conversation", "version": 1, "id", "created"}            first line of every file
    {"kind": "prompt", "id", "text", "time"}            written before generation starts
    {"kind": "reply", "id", "model", "time"}            an answer was begun
    {"kind": "partial", "id", "keep", "tail"}           text so far = its first `keep` chars + tail
    {"kind": "answer", "id", "text", "reason", "figures", "failure"}   how it ended

Only the last line of a file can be torn by a kill; it is dropped on reading and never glued to the
next record. It refuses to know widgets and engines.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.types import GenerationStats, Role

log = logging.getLogger("unblur.conversations")
VERSION = 1


class MessageStatus(StrEnum):
    """Where a message stands. WAITING and ANSWERING never survive a restart: they come back as
    INTERRUPTED.
    """

    DONE = "done"
    WAITING = "waiting"
    ANSWERING = "answering"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class Failure:
    """An error as a person meets it: what happened and what to do. `during` is "load" or
    "generate".
    """

    code: str
    message: str
    action: str
    during: str


@dataclass(frozen=True)
class Figures:
    """What an answer cost, as the engine measured it (see `engine.types.GenerationStats`)."""

    tokens: int
    forwards: int
    blocks: int
    seconds: float
    time_to_first_block: float
    tpf: float
    ceiling: float
    tokens_per_second: float

    @staticmethod
    def of(stats: GenerationStats) -> Figures:
        return Figures(
            tokens=stats.tokens,
            forwards=stats.forwards,
            blocks=stats.blocks,
            seconds=stats.seconds,
            time_to_first_block=stats.time_to_first_block,
            tpf=stats.tpf,
            ceiling=stats.ceiling,
            tokens_per_second=stats.tokens_per_second,
        )


@dataclass(frozen=True)
class ChatMessage:
    """One message. `text` is its exact source. `reason` is why an answer ended
    (`engine.types.StopReason`).
    """

    id: str
    role: Role
    text: str
    status: MessageStatus = MessageStatus.DONE
    model: str = ""
    reason: str = ""
    figures: Figures | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Conversation:
    id: str
    created: float
    messages: tuple[ChatMessage, ...] = ()

    @property
    def title(self) -> str:
        """The first line of the first prompt, shortened; never empty."""
        for message in self.messages:
            if message.role == "user" and message.text.strip():
                line = message.text.strip().splitlines()[0]
                return line if len(line) <= 60 else line[:59].rstrip() + "…"
        return "New chat"

    def with_message(self, message: ChatMessage) -> Conversation:
        """The same conversation with `message` replaced (same id) or appended."""
        kept = tuple(message if m.id == message.id else m for m in self.messages)
        if all(m.id != message.id for m in self.messages):
            kept += (message,)
        return replace(self, messages=kept)


def new_id() -> str:
    return uuid.uuid4().hex


class Journal:
    """Appends records and reads conversations back. Safe to call from several threads.

    `problem` is None, or a sentence on why nothing can be kept; writing then goes on being tried.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem: str | None = None
        self._lock = threading.Lock()
        self._partial: dict[str, str] = {}

    def begin(self, conversation: Conversation) -> None:
        self._append(
            conversation.id,
            {
                "kind": "conversation",
                "version": VERSION,
                "id": conversation.id,
                "created": conversation.created,
            },
        )

    def prompt(self, conversation: str, message: ChatMessage) -> None:
        self._append(
            conversation,
            {"kind": "prompt", "id": message.id, "text": message.text, "time": time.time()},
        )

    def reply(self, conversation: str, message: ChatMessage) -> None:
        self._append(
            conversation,
            {"kind": "reply", "id": message.id, "model": message.model, "time": time.time()},
        )

    def partial(self, conversation: str, message_id: str, text: str) -> None:
        """The answer so far. Only what changed since its last partial is written."""
        before = self._partial.get(message_id, "")
        keep = _common_prefix(before, text)
        self._partial[message_id] = text
        self._append(
            conversation,
            {"kind": "partial", "id": message_id, "keep": keep, "tail": text[keep:]},
        )

    def answer(self, conversation: str, message: ChatMessage) -> None:
        self._partial.pop(message.id, None)
        self._append(
            conversation,
            {
                "kind": "answer",
                "id": message.id,
                "text": message.text,
                "reason": message.reason,
                "figures": asdict(message.figures) if message.figures else None,
                "failure": asdict(message.failure) if message.failure else None,
            },
        )

    def sync(self, conversation: str) -> None:
        """Waits until the disk has the conversation (power loss, not only a kill). Slow: not for
        the GUI thread.
        """
        try:
            with self._lock, open(self._path(conversation), "rb") as stream:
                os.fsync(stream.fileno())
        except OSError as error:
            self._failed(error)

    def read_all(self) -> list[Conversation]:
        """Every conversation, newest first. Unreadable files are left alone and logged."""
        found: list[Conversation] = []
        for path in self.folder.glob("*.jsonl"):
            try:
                conversation = _read(path)
            except OSError as error:
                log.warning("conversation %s cannot be read: %s", path.name, error)
                continue
            if conversation is not None and conversation.messages:
                found.append(conversation)
        return sorted(found, key=lambda c: c.created, reverse=True)

    def _path(self, conversation: str) -> Path:
        return self.folder / f"{conversation}.jsonl"

    def _append(self, conversation: str, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        try:
            with self._lock:
                self.folder.mkdir(parents=True, exist_ok=True)
                with open(self._path(conversation), "ab+") as stream:
                    if stream.seek(0, os.SEEK_END) > 0:
                        stream.seek(-1, os.SEEK_END)
                        if stream.read(1) != b"\n":  # a kill tore the last record: start a new line
                            line = b"\n" + line
                    stream.write(line)
        except OSError as error:
            self._failed(error)
        else:
            self.problem = None

    def _failed(self, error: OSError) -> None:
        self.problem = (
            f"Conversations cannot be saved in {self.folder} ({error.strerror}). "
            "They are kept until the window is closed."
        )
        log.warning("journal: %s", error)


def _common_prefix(a: str, b: str) -> int:
    """Length of the longest prefix two texts share; a text that only grew is the usual case."""
    if b.startswith(a):
        return len(a)
    return next(i for i, pair in enumerate(zip(a, b + "\0", strict=False)) if pair[0] != pair[1])


def _read(path: Path) -> Conversation | None:
    conversation: Conversation | None = None
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            record = json.loads(raw.decode("utf-8", "surrogatepass"))
            conversation = _applied(conversation, record)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s line %d is damaged and skipped: %s", path.name, number, error)
    if conversation and conversation.messages and conversation.messages[-1].role == "user":
        # killed before its answer began: the place is kept, so that it can be asked for again
        missing = ChatMessage(new_id(), "assistant", "", status=MessageStatus.INTERRUPTED)
        conversation = conversation.with_message(missing)
    return conversation


def _applied(conversation: Conversation | None, record: dict[str, Any]) -> Conversation | None:
    """The conversation after one record. Raises KeyError, TypeError or ValueError for a malformed
    one.
    """
    kind = record["kind"]
    if kind == "conversation":
        return Conversation(id=record["id"], created=float(record["created"]))
    if conversation is None:
        raise ValueError("the first record is not the conversation's")
    if kind == "prompt":
        return conversation.with_message(ChatMessage(record["id"], "user", record["text"]))
    if kind == "reply":
        return conversation.with_message(
            ChatMessage(
                record["id"],
                "assistant",
                "",
                status=MessageStatus.INTERRUPTED,
                model=record["model"],
            )
        )
    message = {m.id: m for m in conversation.messages}[record["id"]]
    if kind == "partial":
        text = message.text[: record["keep"]] + record["tail"]
        return conversation.with_message(replace(message, text=text))
    if kind == "answer":
        figures, failure = record["figures"], record["failure"]
        return conversation.with_message(
            replace(
                message,
                text=record["text"],
                reason=record["reason"],
                status=MessageStatus.FAILED if failure else MessageStatus.DONE,
                figures=Figures(**figures) if figures else None,
                failure=Failure(**failure) if failure else None,
            )
        )
    raise ValueError(f"unknown record kind {kind!r}")
