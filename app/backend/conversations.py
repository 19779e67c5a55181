"""What was said, as values.

It knows messages and conversations. It refuses to know files (`app.backend.chat_store`), widgets
and engines.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from engine.types import GenerationStats, Role


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
    again, the ids of all its versions, oldest first. name: a title that a person gave. begins: the
    title that its first prompt gave, where the messages are not read yet.
    """

    id: str
    created: float
    messages: tuple[ChatMessage, ...] = ()
    siblings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = ""
    pinned: bool = False
    begins: str = ""

    @property
    def title(self) -> str:
        """The name it was given, or the first line of its first prompt, shortened; never empty."""
        first = next((m.text for m in self.messages if m.role == "user" and m.text.strip()), "")
        return self.name or title_of(first) or self.begins or "New chat"

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
