"""A task: what is asked, what answers it, and how a reply is judged. Knows no files, no tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.types import Message


@dataclass(frozen=True)
class Task:
    """id: stable in its data set. messages: the conversation so far, the last one a person's.
    reference: a right answer, where there is one. skill: which group figures are reported by.
    check: what the verifier needs of this task (JSON-able)."""

    id: str
    messages: tuple[Message, ...]
    reference: str | None = None
    skill: str = ""
    check: Mapping[str, Any] = field(default_factory=dict)
