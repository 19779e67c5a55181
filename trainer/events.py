"""What a run says of itself while it runs: one JSON line an event, the same for window, terminal
and log.

Knows the form of events. Imports no torch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["state", "metrics", "validation", "sample", "notice", "error"]
KINDS: tuple[Kind, ...] = ("state", "metrics", "validation", "sample", "notice", "error")


@dataclass(frozen=True)
class TrainEvent:
    """kind: "state" (data: state, and text: why), "metrics" (an update's figures), "validation"
    (accuracy, tpf, share_of_ceiling, forwards), "sample" (prompt, reply, passed), "notice" (text),
    "error" (code, text, action). update: updates done. time: seconds since the epoch."""

    kind: Kind
    update: int
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def line(self) -> str:
        """One line with its end; a number that is not finite becomes null."""
        data = {
            key: None if isinstance(item, float) and not math.isfinite(item) else item
            for key, item in self.data.items()
        }
        value = {"kind": self.kind, "update": self.update, "time": self.time, "data": data}
        return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def read_event(line: str) -> TrainEvent | None:
    """An event from its line; None for a torn line or one of another program."""
    try:
        value = json.loads(line)
        kind, update, data = value["kind"], value["update"], value["data"]
        if kind not in KINDS or not isinstance(update, int) or not isinstance(data, dict):
            return None
        return TrainEvent(kind, update, data, float(value["time"]))
    except (ValueError, KeyError, TypeError):
        return None
