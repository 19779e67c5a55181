"""A trace's header as JSON and back: every field by name, type and range.

Knows what a well-formed header is and trusts nothing it reads. The prompt's ids are not in it: they
are an array of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar, get_args

from engine.models.noise_canvas import NoiseCanvas
from engine.trace.errors import TraceError
from engine.trace.header import Change, TraceHeader, TraceParent
from engine.types import (
    CaptureLevel,
    DecodeSettings,
    GenerationStats,
    Message,
    Role,
    StopReason,
)

Json = dict[str, Any]
T = TypeVar("T")
WORD = 2**63  # integers of the seam fit into 64 bits
TOKEN = 2**31


def damaged(problem: str) -> TraceError:
    return TraceError(
        "trace.damaged",
        f"The trace file is damaged: {problem}.",
        "Copy or download it again, or record the reply again.",
    )


def header_to_json(header: TraceHeader) -> Json:
    """What `header_from_json` reads. `prompt_ids` is left out."""
    found = {f.name: getattr(header, f.name) for f in fields(header)}
    del found["prompt_ids"]
    found["messages"] = [asdict(message) for message in header.messages]
    found["settings"] = None if header.settings is None else asdict(header.settings)
    found["stats"] = None if header.stats is None else asdict(header.stats)
    found["stop_ids"] = list(header.stop_ids)
    found["pieces"] = {str(token): text for token, text in sorted(header.pieces.items())}
    found["ancestry"] = [_parent_to_json(parent) for parent in header.ancestry]
    return found


def header_from_json(value: object, prompt_ids: tuple[int, ...]) -> TraceHeader:
    """Raises TraceError `trace.damaged` naming the field."""
    read = _Reader(_object(value, "trace"), "trace")
    stats = read.value("stats")
    settings = read.value("settings")
    revision = read.value("model_revision")
    vocabulary = read.value("vocab_size")
    reason = read.value("reason")
    return TraceHeader(
        format_version=read.integer("format_version", 1, WORD),
        trace_id=read.text("trace_id"),
        created=read.text("created"),
        model_name=read.text("model_name"),
        model_family=read.text("model_family"),
        model_path=read.text("model_path"),
        model_revision=None if revision is None else read.text("model_revision"),
        quantisation=read.text("quantisation"),
        decoding=read.text("decoding"),
        runtime=read.text("runtime"),
        device=read.text("device"),
        messages=tuple(_message(m) for m in read.list("messages")),
        prompt_ids=prompt_ids,
        settings=None if settings is None else _settings(settings, "settings"),
        max_new_tokens=read.integer("max_new_tokens", 0, WORD),
        mask_id=read.integer("mask_id", -1, TOKEN),
        stop_ids=tuple(_integer(i, "stop_ids", 0, TOKEN) for i in read.list("stop_ids")),
        vocab_size=None if vocabulary is None else read.integer("vocab_size", 1, TOKEN),
        block_length=read.integer("block_length", 0, TOKEN),
        capture=read.one_of("capture", CaptureLevel),
        top_k=read.integer("top_k", 0, TOKEN),
        reason=None if reason is None else read.one_of("reason", StopReason),
        text=read.text("text"),
        stats=None if stats is None else _stats(stats),
        pieces=_pieces(read.value("pieces")),
        ancestry=tuple(_parent_from_json(p) for p in read.list("ancestry")),
    )


class _Reader:
    """Typed access to one JSON object."""

    def __init__(self, values: Json, where: str) -> None:
        self._values, self._where = values, where

    def value(self, name: str) -> Any:
        if name not in self._values:
            raise damaged(f"{self._where} has no '{name}'")
        return self._values[name]

    def text(self, name: str) -> str:
        return _text(self.value(name), name)

    def integer(self, name: str, least: int, end: int) -> int:
        return _integer(self.value(name), name, least, end)

    def real(self, name: str) -> float:
        value = self.value(name)
        try:
            number = math.nan if isinstance(value, bool | str) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise damaged(f"'{name}' is not a number")
        return number

    def list(self, name: str) -> list[Any]:
        value = self.value(name)
        if not isinstance(value, list):
            raise damaged(f"'{name}' is not a list")
        return value

    def one_of(self, name: str, choices: Any) -> Any:
        return _one_of(self.value(name), name, choices)


def _object(value: object, name: str) -> Json:
    if not isinstance(value, dict):
        raise damaged(f"'{name}' is not an object")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise damaged(f"'{name}' is not text")
    return value


def _integer(value: object, name: str, least: int, end: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < end:
        raise damaged(f"'{name}' is not a whole number from {least} on")
    return value


def _one_of(value: object, name: str, choices: Any) -> Any:
    known = get_args(choices)
    if value not in known:
        raise damaged(f"'{name}' is none of {', '.join(known)}")
    return value


def _message(value: object) -> Message:
    read = _Reader(_object(value, "messages"), "messages")
    return Message(read.one_of("role", Role), read.text("content"))


def _numbers(kind: type[T], value: object, name: str, found: Mapping[str, Any]) -> T:
    """A dataclass of numbers; `found` are fields already read."""
    read = _Reader(_object(value, name), name)
    values = dict(found)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in values:
            whole = field.type in (int, "int")
            values[field.name] = (
                read.integer(field.name, 0, WORD) if whole else read.real(field.name)
            )
    return kind(**values)


def _settings(value: object, name: str) -> DecodeSettings:
    read = _Reader(_object(value, name), name)
    editing = read.value("editing_threshold")
    noise = _numbers(NoiseCanvas, read.value("noise"), "noise", {})
    held = {"editing_threshold": None, "noise": noise}
    settings = _numbers(DecodeSettings, value, name, held)
    if editing is None:
        return settings
    return replace(settings, editing_threshold=read.real("editing_threshold"))


def _stats(value: object) -> GenerationStats:
    return _numbers(GenerationStats, value, "stats", {})


def _pieces(value: object) -> dict[int, str]:
    found: dict[int, str] = {}
    for key, text in _object(value, "pieces").items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise damaged("'pieces' has a key that is no token id")
        found[int(key)] = _text(text, "pieces")
    return found


def _parent_to_json(parent: TraceParent) -> Json:
    found = {f.name: getattr(parent, f.name) for f in fields(parent)}
    found["change"] = asdict(parent.change)
    return found


def _parent_from_json(value: object) -> TraceParent:
    read = _Reader(_object(value, "ancestry"), "ancestry")
    return TraceParent(
        trace_id=read.text("trace_id"),
        step=read.integer("step", 0, TOKEN),
        block_start=read.integer("block_start", 0, TOKEN),
        block_step=read.integer("block_step", 0, TOKEN),
        change=_change(read.value("change")),
    )


def _change(value: object) -> Change:
    read = _Reader(_object(value, "change"), "change")
    settings = read.value("settings")
    return Change(
        force=tuple(_pair(p, "force", 0) for p in read.list("force")),
        ban=tuple(_pair(p, "ban", -1) for p in read.list("ban")),
        mask=tuple(_integer(p, "mask", 0, TOKEN) for p in read.list("mask")),
        settings=None if settings is None else _settings(settings, "settings"),
    )


def _pair(value: object, name: str, least: int) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise damaged(f"'{name}' holds something else than pairs")
    return _integer(value[0], name, least, TOKEN), _integer(value[1], name, 0, TOKEN)
