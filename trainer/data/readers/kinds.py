"""What kind of file something is, by its content before its name, and its rows.

Knows the first bytes of what people drop here by mistake, too, and says what to do with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from engine.errors import RequestError
from trainer.data.readers.json_rows import json_lines, json_list
from trainer.data.readers.rows import BadRow, Row
from trainer.data.readers.table import SEPARATORS, csv_rows
from trainer.data.readers.text import bad_byte, encoding_of, head_of, lines_of, open_text

Kind = Literal["jsonl", "json", "csv", "parquet", "txt"]

_MISTAKES = (
    (b"PK\x03\x04", "a zip archive or a workbook", "Unpack it, or save the table as CSV."),
    (b"\x1f\x8b", "packed with gzip", "Unpack it first."),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", "Unpack it first."),
    (b"BZh", "packed with bzip2", "Unpack it first."),
    (b"\xfd7zXZ", "packed with xz", "Unpack it first."),
    (b"%PDF", "a PDF document", "Give rows of examples: JSONL, CSV, Parquet or plain text."),
    (b"\xd0\xcf\x11\xe0", "an old Office document", "Save the table as CSV."),
    (b"SQLite format 3", "a database", "Export the table as CSV."),
    (b"ARROW1", "an Arrow file", "Save it as Parquet."),
    (
        b"version https://git-lfs",
        "a pointer to a file, not the file",
        "Fetch it with git lfs pull.",
    ),
    (b"<!DOCTYPE", "a web page", "Download the file itself, not the page about it."),
    (b"<html", "a web page", "Download the file itself, not the page about it."),
)


def kind_of(path: Path) -> Kind:
    """Raises RequestError `data.unreadable`, `data.empty`, `data.binary` or `data.kind`."""
    if path.is_dir():
        raise RequestError("data.unreadable", f"{path} is a folder.", "Name the files in it.")
    head = head_of(path)
    if head.startswith(b"PAR1"):
        return "parquet"
    for start, what, action in _MISTAKES:
        if head.lstrip()[: len(start)].lower() == start.lower():
            raise RequestError("data.kind", f"{path.name} is {what}.", action)
    encoding = encoding_of(head)
    if encoding is None:
        raise RequestError(
            "data.binary", f"{path.name} is not text.", "Give JSONL, CSV, Parquet or plain text."
        )
    text = head.decode(encoding, errors="replace").strip("\ufeff \t\r\n\0")
    if not text:
        raise RequestError("data.empty", f"{path.name} is empty.", "Name another file.")
    return _text_kind(path, text)


def _text_kind(path: Path, text: str) -> Kind:
    suffix = path.suffix.lower()
    first = text.splitlines()[0]
    if text.startswith("[") and text[1:].lstrip()[:1] in ("{", "]"):
        return "json"
    if suffix in (".jsonl", ".ndjson", ".json") or _is_object(first):
        if text.startswith("{") and suffix == ".json" and first.strip() == "{":
            raise RequestError(
                "data.kind",
                f"{path.name} is one object over many lines.",
                "Give a list of objects, or one object a line.",
            )
        return "jsonl"
    if suffix in (".csv", ".tsv"):
        return "csv"
    if suffix in (".txt", ".md", ""):
        return "txt"
    if any(separator in first for separator in SEPARATORS):
        return "csv"
    raise RequestError(
        "data.kind",
        f"{path.name} is no kind of file that is read here.",
        "Give JSONL, CSV, Parquet or plain text, with its usual ending.",
    )


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def rows_of(path: Path) -> Iterator[Row | BadRow]:
    """Rows of a file of any kind, one at a time. Raises as `kind_of` and the kind's reader."""
    kind = kind_of(path)
    if kind == "parquet":
        from trainer.data.readers.parquet import parquet_rows  # a slow import, often not needed

        return parquet_rows(path)
    readers = {"jsonl": json_lines, "json": json_list, "csv": csv_rows, "txt": _text_rows}
    return readers[kind](path)


def _text_rows(path: Path) -> Iterator[Row | BadRow]:
    """Plain text: every line that is not blank is a prompt."""
    with open_text(path) as text:
        for number, line in enumerate(lines_of(text), start=1):
            if line is None:
                yield BadRow(path.name, number, "is too long for a prompt")
            elif reason := bad_byte(line):
                yield BadRow(path.name, number, reason)
            elif line.strip():
                yield Row(path.name, number, {"prompt": line.strip()})
