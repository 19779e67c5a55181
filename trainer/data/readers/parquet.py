"""Rows of Parquet files, a few at a time.

Knows pyarrow and how its values become JSON-able ones. Refuses to know fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from engine.errors import RequestError
from trainer.data.readers.rows import BadRow, Row
from trainer.data.readers.text import bad_byte, unreadable

BATCH = 64  # rows in memory at once
BUFFER = 1 << 20  # bytes of a column read at once


def parquet_rows(path: Path) -> Iterator[Row | BadRow]:
    """Rows in order. Raises RequestError `data.parquet` or `data.unreadable`."""
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            for batch in file.iter_batches(BATCH, use_threads=False):
                for value in batch.to_pylist():
                    number += 1
                    yield _row(path.name, number, value)
    except pyarrow.ArrowException as error:
        raise RequestError(
            "data.parquet",
            f"{path.name} cannot be read as Parquet after row {number}: {str(error)[:160]}.",
            "Fetch or export the file again.",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _row(file: str, number: int, value: dict[str, Any]) -> Row | BadRow:
    try:
        return Row(file, number, {str(name): plain(item) for name, item in value.items()})
    except ValueError as error:
        return BadRow(file, number, str(error))


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has no form for becomes text, and bytes become None.
    Raises ValueError for text that is none."""
    if value is None or isinstance(value, (bool, int, float)):
        return None if value != value else value
    if isinstance(value, str):
        if reason := bad_byte(value):
            raise ValueError(reason)
        return value
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, bytes) else str(value)
