"""Reads people's files of examples: preview a file, or load all its tasks.

Knows the order of things: kind of file, rows, layout, tasks. Each is in its own module.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from engine.errors import RequestError
from trainer.data.readers.kinds import Kind, kind_of, rows_of
from trainer.data.readers.layout import ColumnMapping, Guess, Layout, guess_layout
from trainer.data.readers.rows import BadRow, Row
from trainer.data.readers.tasks import task_of
from trainer.data.task import Task

__all__ = ["BadRow", "ColumnMapping", "Guess", "Loaded", "Preview", "load_tasks", "preview"]

HEAD_ROWS = 50  # good rows that a layout is guessed from
HEAD_SEARCHED = 2000  # rows among which they are looked for
MOST_TASKS = 200_000  # kept in memory; of more rows, a fair draw of so many
MOST_CHARACTERS = 2**29  # kept in memory, too
MOST_BAD = 1000  # bad rows that are kept to be shown

OnBad = Literal["skip", "stop"]


@dataclass(frozen=True)
class Preview:
    """What a file's first rows are. tasks, bad: of these rows, by the layout."""

    kind: Kind
    guess: Guess
    rows: tuple[Row, ...]
    tasks: tuple[Task, ...]
    bad: tuple[BadRow, ...]


@dataclass(frozen=True)
class Loaded:
    """tasks in order. bad: the first rows that were left out; bad_count: of all of them. rows: of
    all files, blank lines not counted. left_out: good rows beyond `MOST_TASKS`."""

    tasks: tuple[Task, ...]
    bad: tuple[BadRow, ...]
    bad_count: int
    rows: int
    left_out: int


def preview(
    path: Path, columns: Mapping[str, str] | None = None, count: int = HEAD_ROWS
) -> Preview:
    """The first rows of a file, whatever its size. columns: see `load_tasks`. Raises RequestError
    as `rows_of`, and `data.columns`."""
    kind = kind_of(path)
    rows: list[Row] = []
    bad: list[BadRow] = []
    for row in islice(rows_of(path), HEAD_SEARCHED):
        (rows if isinstance(row, Row) else bad).append(row)  # pyright: ignore[reportArgumentType]
        if len(rows) == count:
            break
    guess = guess_layout([row.value for row in rows])
    layout = _chosen(guess, columns)
    tasks: list[Task] = []
    if layout.mapping.as_columns():
        for row in rows:
            task = task_of(row, layout)
            (tasks if isinstance(task, Task) else bad).append(task)  # pyright: ignore[reportArgumentType]
    bad.sort(key=lambda row: row.line)
    return Preview(kind, guess, tuple(rows), tuple(tasks), tuple(bad))


def _chosen(guess: Guess, columns: Mapping[str, str] | None) -> Layout:
    """What was named, else what was guessed."""
    if not columns:
        return guess.layout
    return Layout("columns", ColumnMapping.from_columns(columns))


def layout_of(path: Path, columns: Mapping[str, str] | None) -> Layout:
    """Raises RequestError `data.columns` where columns must be named, because a guess would not be
    safe."""
    found = preview(path)
    if columns:
        mapping = ColumnMapping.from_columns(columns)
        absent = [c for c in mapping.as_columns().values() if c not in found.guess.columns]
        if absent and found.guess.columns:
            raise RequestError(
                "data.columns",
                f"{path.name} has no column {absent[0]!r}; it has "
                f"{', '.join(found.guess.columns)[:200]}.",
                "Name one of these.",
            )
        return Layout("columns", mapping)
    if found.guess.columns and not found.guess.sure:
        raise RequestError(
            "data.columns",
            f"{path.name} has columns {', '.join(found.guess.columns)[:200]}, and which one is the "
            f"prompt is not plain: {found.guess.reason}.",
            "Name the columns of the prompt and of the answer.",
        )
    return found.guess.layout


def read_tasks(path: Path, columns: Mapping[str, str] | None = None) -> Iterator[Task | BadRow]:
    """Tasks of a file, one at a time."""
    layout = layout_of(path, columns)
    for row in rows_of(path):
        if isinstance(row, BadRow):
            yield row
        elif layout.mapping.as_columns():
            yield task_of(row, layout)
        else:  # of the first rows, none is good and has a field
            yield BadRow(row.file, row.line, "stands behind too many rows without a field")


def load_tasks(
    files: tuple[str, ...],
    columns: Mapping[str, str] | None = None,
    on_bad: OnBad = "skip",
    most: int = MOST_TASKS,
    stop: Callable[[], None] = lambda: None,
) -> Loaded:
    """All tasks of all files; of more than `most`, a draw in which each has the same chance, the
    same for the same files. columns: role -> column (`ColumnMapping`), empty = as guessed from each
    file's first rows. on_bad: what a bad row does. stop: called for every row; raises to end it.

    Raises RequestError `data.bad_row` (on_bad `stop`), `data.nothing` without a good row, and as
    `layout_of` and `rows_of`."""
    draw = _Draw(most)
    bad: list[BadRow] = []
    bad_count = 0
    for name in files:
        for row in read_tasks(Path(name), columns):
            stop()
            if isinstance(row, BadRow):
                if on_bad == "stop":
                    raise _stopped(row)
                bad_count += 1
                if len(bad) < MOST_BAD:
                    bad.append(row)
                continue
            draw.offer(row)
    tasks = draw.tasks()
    if not tasks:
        raise _nothing(bad, bad_count)
    rows = draw.offered + bad_count
    return Loaded(tasks, tuple(bad), bad_count, rows, draw.offered - len(tasks))


class _Draw:
    """Keeps tasks within two limits, their number and their text; each that was offered has the
    same chance to be kept. Source: Vitter 1985, algorithm R."""

    def __init__(self, most: int) -> None:
        self.most, self.offered, self.characters = most, 0, 0
        self.kept: list[tuple[int, Task]] = []
        self._rng = random.Random(0)

    def offer(self, task: Task) -> None:
        self.offered += 1
        pair = (self.offered, task)
        if len(self.kept) < self.most:
            self.kept.append(pair)
        elif (place := self._rng.randrange(self.offered)) < self.most:
            self.characters -= _characters(self.kept[place][1])
            self.kept[place] = pair
        else:
            return
        self.characters += _characters(task)
        while self.characters > MOST_CHARACTERS and len(self.kept) > 1:
            self._halve()

    def _halve(self) -> None:
        """A fair half of a fair draw is a fair draw."""
        self.most = len(self.kept) // 2
        self.kept = self._rng.sample(self.kept, self.most)
        self.characters = sum(_characters(task) for _, task in self.kept)

    def tasks(self) -> tuple[Task, ...]:
        """In the order they were offered."""
        return tuple(task for _, task in sorted(self.kept, key=lambda pair: pair[0]))


def _characters(task: Task) -> int:
    texts = (*(m.content for m in task.messages), task.reference or "", *task.check.values())
    return sum(len(text) for text in texts if isinstance(text, str))


def _stopped(row: BadRow) -> RequestError:
    return RequestError(
        "data.bad_row",
        f"A row cannot be used. {row}.",
        "Correct the row, or let bad rows be skipped and counted.",
    )


def _nothing(bad: list[BadRow], count: int) -> RequestError:
    words = "there are no rows." if not bad else f"{count} rows are unusable. The first: {bad[0]}."
    return RequestError(
        "data.nothing",
        f"There is nothing to train on: {words}",
        "Give rows with a prompt (and an answer), or name the columns.",
    )
