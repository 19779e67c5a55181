"""Rows of CSV files: the first line names the columns.

Knows the usual separators and quoting, strictly: a row that does not fit the header is a bad one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from trainer.data.readers.rows import ROW_LIMIT, BadRow, Row
from trainer.data.readers.text import bad_byte, lines_of, open_text

SEPARATORS = ",;\t|"
TOO_LONG = "\0\n"  # stands for a line that was not kept


def separator_of(line: str, suffix: str = "") -> str:
    """The separator of a header: the most frequent outside quotes; a tab for `.tsv`."""
    if suffix == ".tsv":
        return "\t"
    outside = "".join(line.split('"')[::2])
    return max(SEPARATORS, key=outside.count)


def csv_rows(path: Path) -> Iterator[Row | BadRow]:
    """Rows in order. Raises RequestError `data.header`, or as `open_text`."""
    csv.field_size_limit(ROW_LIMIT)
    with open_text(path, newline="") as text:
        lines = (TOO_LONG if line is None else line for line in lines_of(text))
        first = ""
        skipped = 0
        for first in lines:
            if first.strip():
                break
            skipped += 1
        reader = csv.reader(
            _chain(first, lines), delimiter=separator_of(first, path.suffix), strict=True
        )
        names = _header(path.name, reader)
        yield from _rows(path.name, reader, names, skipped)


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _header(file: str, reader: Iterator[list[str]]) -> list[str]:
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise _bad_header(file, str(error)) from error
    if not any(names):
        raise _bad_header(file, "it names no columns")
    twice = [name for n, name in enumerate(names) if name in names[:n]]
    if twice:
        raise _bad_header(file, f"it names {twice[0]!r} twice")
    if reason := bad_byte(" ".join(names)):
        raise _bad_header(file, reason)
    return names


def _bad_header(file: str, reason: str) -> RequestError:
    return RequestError(
        "data.header",
        f"The first line of {file} is no header: {reason}.",
        "Name each column once in the first line, such as prompt,answer.",
    )


def _rows(file: str, reader: Any, names: list[str], skipped: int) -> Iterator[Row | BadRow]:
    while True:
        line = reader.line_num + skipped + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield BadRow(file, line, f"is no CSV: {error}")
            continue
        if fields is None:
            return
        if not any(fields):
            continue
        if fields[0] == TOO_LONG[0]:
            yield BadRow(file, line, f"is longer than {ROW_LIMIT >> 20} MB")
            continue
        if len(fields) != len(names):
            reason = f"has {len(fields)} fields; the header names {len(names)}"
            yield BadRow(file, line, reason)
        elif reason := bad_byte(" ".join(fields)):
            yield BadRow(file, line, reason)
        else:
            yield Row(file, line, dict(zip(names, fields, strict=True)))
