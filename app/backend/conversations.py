"""What was said, as values, and the journal that keeps it through a kill at any moment.

It knows messages and one append-only JSONL file a conversation (`conversations/<id>.jsonl`). Each
line is one record:

    {"kind": "conversation", "version": 1, "id", "created"}            first line of every file
    {"kind": "prompt", "id", "text", "time"}            written before generation starts
    {"kind": "reply", "id", "model", "time"}            an answer was begun
    {"kind": "partial", "id", "keep", "tail"}           text so far = its first `keep` chars + tail
    {"kind": "answer", "id", "text", "reason", "figures", "failure"}   how it ended

Only the last line of a file can be torn by a kill; it is dropped on reading and never glued to the
next record. A file is the conversation it is named after, so that a damaged first line costs only
itself. It refuses to know widgets and engines.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
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
class Made:
    """What made an answer: with the same of everything it can be made again.

    model: its name. source: the folder it was loaded from. revision: the published version of its
    files, "" when that is not known. path: which runtime and kernels ran
    (`engine.types.Started.path`). settings: `engine.types.DecodeSettings` as plain values, the seed
    among them.
    """

    model: str
    source: str
    revision: str
    quantisation: str
    device: str
    path: str
    max_new_tokens: int
    settings: Mapping[str, object]


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
    made: Made | None = None


@dataclass(frozen=True)
class Conversation:
    """messages: the branch that is shown. siblings: for each of them that was edited or asked
    again, the ids of all its versions, oldest first. name: a title that a person gave.
    """

    id: str
    created: float
    messages: tuple[ChatMessage, ...] = ()
    siblings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = ""
    pinned: bool = False

    @property
    def title(self) -> str:
        """The name it was given, or the first line of its first prompt, shortened; never empty."""
        first = next((m.text for m in self.messages if m.role == "user" and m.text.strip()), "")
        return self.name or title_of(first) or "New chat"

    def with_message(self, message: ChatMessage) -> Conversation:
        """The same conversation with `message` replaced (same id) or appended."""
        kept = tuple(message if m.id == message.id else m for m in self.messages)
        if all(m.id != message.id for m in self.messages):
            kept += (message,)
        return replace(self, messages=kept)


def title_of(prompt: str) -> str:
    """The first line of a prompt, shortened, "" when there is none."""
    for line in filter(None, map(str.strip, prompt[:2000].split("\n"))):
        return line if len(line) <= 60 else line[:59].rstrip() + "…"
    return ""


def new_id() -> str:
    return uuid.uuid4().hex


class Journal:
    """Appends records and reads conversations back. Safe to call from several threads.

    `problem` is None, or a sentence on why nothing can be kept. What could not be written is kept
    in memory, and written before the next record that can be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem: str | None = None
        self._lock = threading.Lock()
        self._partial: dict[str, str] = {}
        self._unsaved: dict[str, list[bytes]] = {}  # conversation: its records not in the file yet

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
        the GUI thread, which may write meanwhile.
        """
        try:
            # opened for writing: Windows flushes no other file
            with open(self._path(conversation), "r+b") as stream:
                os.fsync(stream.fileno())
        except OSError as error:
            self._failed(error)

    def read_all(self) -> list[Conversation]:
        """Every conversation, newest first. Unreadable files are left alone and logged."""
        found: list[Conversation] = []
        for path in self.folder.glob("*.jsonl"):
            try:
                conversation = read_journal(path) if path.is_file() else None
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
        with self._lock:
            self._unsaved.setdefault(conversation, []).append(line)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                for each in list(self._unsaved):
                    _write(self._path(each), b"".join(self._unsaved[each]))
                    del self._unsaved[each]
            except OSError as error:
                self._failed(error)
            else:
                self.problem = None

    def _failed(self, error: OSError) -> None:
        self.problem = (
            f"Conversations cannot be saved in {self.folder} ({error.strerror or error}). "
            "They are kept until the window is closed."
        )
        log.warning("journal: %s", error)


def _write(path: Path, lines: bytes) -> None:
    """Appends whole records. After a write that was cut short it may be called again with the same
    ones: a record that is there twice reads like one."""
    with open(path, "ab+") as stream:
        if stream.seek(0, os.SEEK_END) > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":  # the last record was torn: start a new line
                lines = b"\n" + lines
        stream.write(lines)


def _common_prefix(a: str, b: str) -> int:
    """Length of the longest prefix two texts share; a text that only grew is the usual case."""
    if b.startswith(a):
        return len(a)
    return next(i for i, pair in enumerate(zip(a, b + "\0", strict=False)) if pair[0] != pair[1])


def read_journal(path: Path) -> Conversation:
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
