"""Messages as rows of the file, and back: strict in what is written, forgiving in what is read.

It knows columns and their JSON. A file may be damaged, or written by somebody else: a field that
cannot be read is dropped and logged, the message stays.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TypeVar, get_args

from app.backend.conversations import ChatMessage, Failure, Figures, Made, MessageStatus
from engine.types import Role

log = logging.getLogger("unblur.conversations")
COLUMNS = "id, parent, role, text, status, model, reason, figures, failure, made"
Row = tuple[object, ...]
Value = TypeVar("Value")
ROLES = get_args(Role)


def text_value(text: str) -> str | bytes:
    """Text as SQLite keeps it. Half of a surrogate pair is no Unicode and goes in as bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def text_of(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass" if _is_ours(value) else "replace")
    return value if isinstance(value, str) else ""


def _is_ours(value: bytes) -> bool:
    try:
        value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def kept_status(message: ChatMessage) -> str:
    """WAITING and ANSWERING never survive a restart: they are kept as what they would then be."""
    passing = message.status in (MessageStatus.WAITING, MessageStatus.ANSWERING)
    return (MessageStatus.INTERRUPTED if passing else message.status).value


def json_value(value: Figures | Failure | Made | None) -> str | None:
    return None if value is None else json.dumps(asdict(value))


def message_of(row: Row) -> tuple[ChatMessage, str | None]:
    """(message, its parent's id) of COLUMNS."""
    identity, parent, role, text, status, model, reason, figures, failure, made = row
    known = status in [s.value for s in MessageStatus]
    kind: Role = "user" if role == "user" else "system" if role == "system" else "assistant"
    message = ChatMessage(
        id=str(identity),
        role=kind,
        text=text_of(text),
        status=MessageStatus(status) if known else MessageStatus.INTERRUPTED,
        model=str(model),
        reason=str(reason),
        figures=_read(figures, figures_of),
        failure=_read(failure, failure_of),
        made=_read(made, made_of),
    )
    return message, parent if isinstance(parent, str) else None


def _read(value: object, reader: Callable[[object], Value]) -> Value | None:
    if not isinstance(value, str):
        return None
    try:
        return reader(json.loads(value))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        log.warning("a field of a message cannot be read: %s", type(error).__name__)
        return None


def figures_of(value: object) -> Figures:
    """Raises KeyError, TypeError or ValueError, as the others here do."""
    record = _object(value)
    counts = (whole(record[name]) for name in ("tokens", "forwards", "blocks"))
    return Figures(*counts, *(number(record[f.name]) for f in fields(Figures)[3:]))


def failure_of(value: object) -> Failure:
    record = _object(value)
    return Failure(*(string(record[field.name]) for field in fields(Failure)))


def made_of(value: object) -> Made:
    record = _object(value)
    settings = _object(record["settings"])
    plain = json.loads(json.dumps(settings, allow_nan=False))
    texts = {f.name: string(record[f.name]) for f in fields(Made) if f.type == "str"}
    return Made(**texts, max_new_tokens=whole(record["max_new_tokens"]), settings=plain)


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return value


def string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text is expected")
    return value


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("a number is expected")
    if not math.isfinite(value):
        raise ValueError("a finite number is expected")
    return value


def whole(value: object) -> int:
    found = number(value)
    if isinstance(found, float) or not -(2**63) <= found < 2**63:
        raise ValueError("a whole number of 64 bits is expected")
    return found
