"""Which verifier a run uses, as it stands in the run's file. Knows no verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class VerifierSpec:
    """kind: a name of `trainer.verify.registry.KINDS`; options: of that kind, JSON-able."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
