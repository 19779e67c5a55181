"""A row of a file, good or bad, before anyone knows what its fields mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROW_LIMIT = 8 * 2**20  # characters of a row; a longer one is no example


@dataclass(frozen=True)
class Row:
    """line: where it begins, from 1 (in Parquet: the row's number). value: JSON-able."""

    file: str
    line: int
    value: Mapping[str, Any]

    @property
    def id(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: where, and why in words."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"
