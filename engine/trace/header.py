"""What a trace says of itself beside its arrays: the model, the prompt, the settings, the outcome,
and of which trace it is a fork.

Knows names and meanings. How it is written is the file's business (`engine.trace.file`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from engine.types import (
    CaptureLevel,
    DecodeSettings,
    GenerationStats,
    Message,
    StopReason,
)

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Change:
    """What a fork does otherwise from its step on. Positions are absolute.

    force: (position, token) pairs; the token stands there from the step on and is never edited.
    ban: (position, token) pairs that may not be proposed from the step on. mask: positions whose
    token is taken back at the step. settings: replace the parent's from the step on; None = they
    stay. A change without any of them is an unchanged fork.
    """

    force: tuple[tuple[int, int], ...] = ()
    ban: tuple[tuple[int, int], ...] = ()
    mask: tuple[int, ...] = ()
    settings: DecodeSettings | None = None

    def __bool__(self) -> bool:
        return bool(self.force or self.ban or self.mask or self.settings is not None)


@dataclass(frozen=True)
class TraceParent:
    """Where a fork left its parent. step: row of the parent's arrays at whose start the change was
    made (rows before it are the parent's own). block_start, block_step: the same place as the
    loop counts it."""

    trace_id: str
    step: int
    block_start: int
    block_step: int
    change: Change


def new_trace_id() -> str:
    return uuid.uuid4().hex


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class TraceHeader:
    """Of one reply. Empty strings and None mean "not known", never "none".

    trace_id: 32 hex digits. created: UTC, ISO 8601. model_path: the folder as it was named on the
    machine that recorded. model_revision: commit on the hub. runtime: the path in words, e.g.
    "eager, float32". messages: the conversation; prompt_ids: the same, templated. settings: those
    of the first step. mask_id: -1 for a canvas that is not made of masks. block_length: positions
    of one row of the arrays. capture, top_k: level, and candidates kept a position (0 = none).
    reason, text, stats: how the reply ended; None while it has not. pieces: display text of every
    id that occurs in the trace. parent: the trace this is a fork of, and `ancestry` all forks from
    the root to this one (`parent` last), since each of their changes is in force here.
    """

    format_version: int = FORMAT_VERSION
    trace_id: str = field(default_factory=new_trace_id)
    created: str = field(default_factory=now)
    model_name: str = ""
    model_family: str = ""
    model_path: str = ""
    model_revision: str | None = None
    quantisation: str = ""
    decoding: str = ""
    runtime: str = ""
    device: str = ""
    messages: tuple[Message, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    settings: DecodeSettings | None = None
    max_new_tokens: int = 0
    mask_id: int = -1
    stop_ids: tuple[int, ...] = ()
    vocab_size: int | None = None
    block_length: int = 0
    capture: CaptureLevel = "light"
    top_k: int = 0
    reason: StopReason | None = None
    text: str = ""
    stats: GenerationStats | None = None
    pieces: Mapping[int, str] = field(default_factory=dict)
    ancestry: tuple[TraceParent, ...] = ()

    @property
    def parent(self) -> TraceParent | None:
        return self.ancestry[-1] if self.ancestry else None
