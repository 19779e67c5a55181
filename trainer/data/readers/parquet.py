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
    """Rows in order. Raises RequestError `data.parquet`, `data.header` or `data.unreadable`."""
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            _require_names(path.name, file.schema_arrow.names)
            for batch in file.iter_batches(BATCH, use_threads=False):
                for at in range(batch.num_rows):
                    number += 1
                    yield _row(path.name, number, batch.slice(at, 1))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from error
        raise RequestError(
            "data.parquet",
            f"{path.name} cannot be read as Parquet after row {number}: {str(error)[:160]}.",
            "Fetch or export the file again.",
        ) from error


def _require_names(file: str, names: list[str]) -> None:
    twice = [name for n, name in enumerate(names) if name in names[:n]]
    if twice:
        raise RequestError(
            "data.header",
            f"{file} has two columns named {twice[0]!r}.",
            "Give each column its own name.",
        )


def _row(file: str, number: int, batch: pyarrow.RecordBatch) -> Row | BadRow:
    """The one row of a batch."""
    try:
        (value,) = batch.to_pylist()
    except UnicodeDecodeError as error:
        return BadRow(file, number, f"is not UTF-8 text ({error.reason})")
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
