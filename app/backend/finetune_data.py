"""What a person's examples look like before anything is trained: counts, lengths, and rows exactly
as the model will see them.

Knows tasks and a tokenizer. Knows no widgets, no torch and no training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.family import family_from_config
from engine.checkpoint.folder import read_folder
from engine.errors import RequestError
from engine.tokenizer import ChatTokenizer
from engine.types import Message
from trainer.data.readers import BadRow, Loaded
from trainer.data.task import Task

SHOWN = 5
BUCKETS = (32, 64, 128, 256, 512, 1024)
MEASURED = 2000  # rows whose tokens are counted; more would hold the page up


@dataclass(frozen=True)
class SeenRow:
    """A row as the model sees it: what it reads, and what it is taught (with the stop token)."""

    prompt: str
    answer: str
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class DataReport:
    """rows, bad rows, rows with a reference answer, rows that occur more than once. skills: rows of
    each. lengths: tokens of prompt and answer, bucket -> rows, of the `measured` first ones.
    too_long: of these, those that fit no window of `limit` tokens. seen: some rows. sentences: what
    a person should know before going on."""

    rows: int
    bad: tuple[BadRow, ...]
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
    loaded: Loaded, model: Path, limit: int, check: Callable[[], None] = lambda: None
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
        answered=answered,
        repeated=repeated,
        skills=tuple(Counter(task.skill for task in tasks).most_common()),
        lengths=_histogram(sizes),
        measured=len(sizes),
        too_long=too_long,
        limit=limit,
        seen=tuple(seen),
        sentences=tuple(_sentences(len(tasks), answered, repeated, too_long, limit, loaded.bad)),
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
    rows: int, answered: int, repeated: int, too_long: int, limit: int, bad: Sequence[BadRow]
) -> list[str]:
    said = []
    if bad:
        said.append(f"{len(bad)} rows are no examples and are left out.")
    if answered < rows:
        said.append(f"{rows - answered} rows have no answer: they can be made faster, not taught.")
    if repeated:
        said.append(f"{repeated} rows repeat an earlier one.")
    if too_long:
        said.append(f"{too_long} rows are longer than {limit} tokens and cannot be trained on.")
    if rows < 50:
        said.append("Few rows: held-out figures will be rough.")
    return said
