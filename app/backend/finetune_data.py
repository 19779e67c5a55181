"""What a person's examples look like before anything is trained: counts, lengths, and rows exactly
as the model will see them.

Knows tasks and a tokenizer. Knows no widgets, no torch and no training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from engine.checkpoint.family import family_from_config
from engine.checkpoint.folder import read_folder
from engine.errors import RequestError
from engine.tokenizer import ChatTokenizer
from engine.types import Message
from trainer.data.readers import BadRow, Guess, Loaded
from trainer.data.task import Task

SHOWN = 5
BUCKETS = (32, 64, 128, 256, 512, 1024)
MEASURED = 2000  # rows whose tokens are counted; more would hold the page up


@dataclass(frozen=True)
class JudgeKind:
    """A verifier that can be chosen: its key, name, a sentence, and whether it needs answers in the
    data."""

    key: str
    title: str
    summary: str
    needs_answers: bool


def judge_kinds() -> tuple[JudgeKind, ...]:
    """Every verifier there is that needs no options. Slow the first time: not for the GUI
    thread."""
    from trainer.verify.registry import KINDS

    return tuple(
        JudgeKind(key, kind.title, kind.summary, kind.reference)
        for key, kind in KINDS.items()
        if _works_alone(kind.options)
    )


def _works_alone(options: type) -> bool:
    """Whether a verifier's options all have defaults."""
    return all(
        f.default is not MISSING or f.default_factory is not MISSING for f in fields(options)
    )


@dataclass(frozen=True)
class SeenRow:
    """A row as the model sees it: what it reads, and what it is taught (with the stop token)."""

    prompt: str
    answer: str
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class DataReport:
    """rows; the first bad rows, and how many there are; what the first file looks like; rows with a
    reference answer; rows that occur more than once. skills: rows of each. lengths: tokens of
    prompt and answer, bucket -> rows, of the `measured` first ones. too_long: of these, those that
    fit no window of `limit` tokens. seen: some rows. sentences: what a person should know before
    going on."""

    rows: int
    bad: tuple[BadRow, ...]
    bad_count: int
    guess: Guess
    answered: int
    repeated: int
    skills: tuple[tuple[str, int], ...]
    lengths: tuple[tuple[str, int], ...]
    measured: int
    too_long: int
    limit: int
    seen: tuple[SeenRow, ...]
    sentences: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether anything would be trained."""
        return self.rows > 0 and self.too_long < self.measured


def report_on(
    loaded: Loaded, guess: Guess, model: Path, limit: int, check: Callable[[], None] = lambda: None
) -> DataReport:
    """Raises CheckpointError where the model has no tokenizer that can be read. check: raises when
    the work is to stop."""
    tokenizer, stops = _opened(model)
    tasks = loaded.tasks
    sizes: list[int] = []
    seen: list[SeenRow] = []
    for task in tasks[:MEASURED]:
        check()
        row = _seen(tokenizer, stops, task)
        sizes.append(row.prompt_tokens + row.answer_tokens)
        if len(seen) < SHOWN:
            seen.append(row)
    counts = Counter((tuple(m.content for m in t.messages), t.reference) for t in tasks)
    repeated = sum(count - 1 for count in counts.values())
    answered = sum(task.reference is not None for task in tasks)
    too_long = sum(size > limit for size in sizes)
    return DataReport(
        rows=len(tasks),
        bad=loaded.bad,
        bad_count=loaded.bad_count,
        guess=guess,
        answered=answered,
        repeated=repeated,
        skills=tuple(Counter(task.skill for task in tasks).most_common()),
        lengths=_histogram(sizes),
        measured=len(sizes),
        too_long=too_long,
        limit=limit,
        seen=tuple(seen),
        sentences=tuple(_sentences(len(tasks), answered, repeated, too_long, limit, loaded)),
    )


def _seen(tokenizer: ChatTokenizer, stops: frozenset[int], task: Task) -> SeenRow:
    """A row through the model's own template, its answer up to and with the stop token."""
    prompt = tokenizer.encode_chat(task.messages)
    answer: Sequence[int] = ()
    if task.reference is not None:
        whole = tokenizer.encode_chat([*task.messages, Message("assistant", task.reference)])
        if whole[: len(prompt)] != prompt:
            raise RequestError(
                "train.template",
                "The model's chat template writes a finished answer differently from one to come.",
                "Choose another model, or train without reference answers.",
            )
        rest = whole[len(prompt) :]
        end = next((n for n, token in enumerate(rest) if token in stops), len(rest) - 1)
        answer = rest[: end + 1]
    text = "".join(tokenizer.piece(token) for token in prompt)
    reply = "".join(tokenizer.piece(token) for token in answer)
    return SeenRow(text, reply, len(prompt), len(answer))


def _opened(model: Path) -> tuple[ChatTokenizer, frozenset[int]]:
    """A model's tokenizer and the tokens that end an answer. Raises CheckpointError."""
    folder = read_folder(model)
    family = family_from_config(folder.config)
    tokenizer = ChatTokenizer.open(model, None if family is None else family.template)
    stops: set[int] = set()
    for config in (folder.config, folder.generation_config):
        found = config.get("eos_token_id")
        for token in found if isinstance(found, list) else [found]:
            if isinstance(token, int):
                stops.add(token)
    return tokenizer, frozenset(stops)


def _histogram(sizes: Sequence[int]) -> tuple[tuple[str, int], ...]:
    bins: dict[str, int] = {}
    for low, high in zip((0, *BUCKETS), (*BUCKETS, 0), strict=True):
        name = f"{low + 1} to {high}" if high else f"over {low}"
        bins[name] = sum(low < size and (not high or size <= high) for size in sizes)
    return tuple(bins.items())


def _sentences(
    rows: int, answered: int, repeated: int, too_long: int, limit: int, loaded: Loaded
) -> list[str]:
    said = []
    if loaded.bad_count:
        said.append(f"{_rows(loaded.bad_count)} no example and left out: the Data step lists them.")
    if loaded.left_out:
        said.append(f"{_rows(loaded.left_out)} beyond what a run takes, left out by a fair draw.")
    if answered < rows:
        said.append(f"{_rows(rows - answered)} without an answer: made faster, not taught.")
    if repeated:
        said.append(f"{_rows(repeated)} the same as an earlier one.")
    if too_long:
        said.append(f"{_rows(too_long)} longer than {limit} tokens, not trained on.")
    if rows < 50:
        said.append("Few rows: held-out figures will be rough.")
    return said


def _rows(count: int) -> str:
    """Some rows, as the beginning of a sentence."""
    return "1 row is" if count == 1 else f"{count:,} rows are"
