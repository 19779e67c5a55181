"""Lines of text files in the encodings people save them in.

Knows byte order marks, UTF-8, UTF-16 and UTF-32, and all three line ends. Refuses to guess older
encodings: a byte that is no UTF-8 makes its row a bad one, by its place.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from engine.errors import RequestError
from trainer.data.readers.rows import ROW_LIMIT

HEAD = 64 << 10  # bytes that the encoding and the kind of a file are judged by
_MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def unreadable(path: Path, error: OSError) -> RequestError:
    """What a file that cannot be read raises."""
    return RequestError(
        "data.unreadable",
        f"{path} cannot be read: {error.strerror or error}.",
        "Name another file.",
    )


def head_of(path: Path) -> bytes:
    """The first `HEAD` bytes. Raises RequestError `data.unreadable`."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError as error:
        raise unreadable(path, error) from error


def encoding_of(head: bytes) -> str | None:
    """By the first bytes; None when they are no text. UTF-16 without a mark is known by its zero
    bytes: in text of any European language every second one is zero."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    zeros = head.count(0)
    if not zeros:
        return "utf-8"
    if head[1::2].count(0) > 0.4 * len(head[1::2]) and head[::2].count(0) < 0.05 * len(head):
        return "utf-16-le"
    if head[::2].count(0) > 0.4 * len(head[::2]) and head[1::2].count(0) < 0.05 * len(head):
        return "utf-16-be"
    return None


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """A file as text; bytes that are no UTF-8 come as surrogates (`bad_byte`). Raises RequestError
    `data.unreadable`, `data.binary` or, for the wider encodings, `data.encoding`."""
    encoding = encoding_of(head_of(path))
    if encoding is None:
        raise RequestError(
            "data.binary", f"{path.name} is not text.", "Give JSONL, CSV, Parquet or plain text."
        )
    errors = "surrogateescape" if encoding.startswith("utf-8") else "strict"
    try:
        with path.open("rb") as raw:
            yield io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline=newline)
    except UnicodeDecodeError as error:
        raise RequestError(
            "data.encoding",
            f"{path.name} is not {encoding.upper()} to its end ({error.reason}).",
            "Save the file as UTF-8.",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def bad_byte(text: str) -> str:
    """Why a text holds characters that are none, as a reason of a bad row; empty when all are."""
    if text.isascii():
        return ""
    for at, character in enumerate(text):
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:
            return f"is not UTF-8 text: byte 0x{code - 0xDC00:02x} at character {at + 1}"
        if 0xD800 <= code <= 0xDFFF:
            return f"holds half a character (U+{code:04X})"
    return ""


def lines_of(text: TextIO) -> Iterator[str | None]:
    """Lines with their ends, None in place of one that is longer than `ROW_LIMIT`."""
    while line := text.readline(ROW_LIMIT):
        if line.endswith("\n") or len(line) < ROW_LIMIT:
            yield line
            continue
        while (rest := text.readline(ROW_LIMIT)) and not rest.endswith("\n"):
            pass
        yield None
