"""Rows of JSON files: one object a line, or one list of objects.

Knows how to read either piece by piece, whatever the file's size. Refuses to know fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from trainer.data.readers.rows import ROW_LIMIT, BadRow, Row
from trainer.data.readers.text import bad_byte, lines_of, open_text

PIECE = 256 << 10  # characters read at once
TOO_LONG = f"is longer than {ROW_LIMIT >> 20} MB"

# NaN is how tables export a missing value: it becomes one.
_DECODER = json.JSONDecoder(parse_constant=lambda name: None)


def json_lines(path: Path) -> Iterator[Row | BadRow]:
    """One object a line, blank lines being none. Raises as `open_text`."""
    with open_text(path) as text:
        for number, line in enumerate(lines_of(text), start=1):
            if line is None:
                yield BadRow(path.name, number, TOO_LONG)
            elif line.strip():
                yield _line(path.name, number, line.strip())


def _line(file: str, number: int, line: str) -> Row | BadRow:
    reason = bad_byte(line)
    if reason:
        return BadRow(file, number, reason)
    try:
        value = _DECODER.decode(line)
    except json.JSONDecodeError as error:
        return BadRow(file, number, f"is not JSON: {error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError) as error:
        return BadRow(file, number, f"is not JSON ({type(error).__name__})")
    return _object(file, number, value)


def _object(file: str, number: int, value: Any) -> Row | BadRow:
    if not isinstance(value, dict):
        return BadRow(file, number, "is not an object")
    return Row(file, number, value)


def json_list(path: Path) -> Iterator[Row | BadRow]:
    """Objects of one list. A place that is no JSON ends it: what follows cannot be told apart.
    Raises as `open_text`."""
    with open_text(path) as text:
        yield from _Elements(path.name, text).rows()


class _Elements:
    """A list's text, read as far as needed; what was parsed is dropped."""

    def __init__(self, file: str, text: TextIO) -> None:
        self.file, self.text = file, text
        self.buffer, self.at = "", 0
        self.line, self.counted = 1, 0  # the line at `counted`, a place in the buffer

    def more(self, count: int = PIECE) -> bool:
        """Reads on; False at the end of the file."""
        piece = self.text.read(count)
        self.here()
        self.buffer, self.at, self.counted = self.buffer[self.at :] + piece, 0, 0
        return bool(piece)

    def skip(self, characters: str) -> str:
        """Goes past white space and `characters`; the character there, empty at the end."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in characters + " \t\r\n":
                self.at += 1
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more():
                return ""

    def here(self) -> int:
        """The line that is being read."""
        self.line += self.buffer.count("\n", self.counted, self.at)
        self.counted = self.at
        return self.line

    def rows(self) -> Iterator[Row | BadRow]:
        self.skip("[")
        while (found := self.skip(",")) != "]":
            line = self.here()
            if not found:
                yield BadRow(self.file, line, "the list does not end: the file is cut off")
                return
            value, reason = self.element()
            if reason:
                yield BadRow(self.file, line, f"{reason}; the list cannot be read further")
                return
            yield _object(self.file, line, value)

    def element(self) -> tuple[Any, str]:
        """The next element, or why there is none."""
        wanted = PIECE
        while True:
            try:
                value, end = _DECODER.raw_decode(self.buffer, self.at)
            except RecursionError:
                return None, "is nested too deep"
            except ValueError as error:
                if len(self.buffer) - self.at > ROW_LIMIT:
                    return None, TOO_LONG if "nterminated" in str(error) else "is not JSON"
                if not self.more(wanted):
                    return None, "is not JSON"
                wanted *= 2  # so that a long element is parsed a few times only
                continue
            reason = bad_byte(self.buffer[self.at : end])
            self.at = end
            return value, reason
