"""What a check of a data set found, as values: for the window, the terminal and JSON alike.

Knows sentences and no data: `trainer.data.checks` fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.errors import RequestError
from trainer.data.readers import BadRow
from trainer.verify.probe import Probe

Level = Literal["stop", "warn"]


@dataclass(frozen=True)
class Finding:
    """Something a person should know. stop: nothing could be learnt until it is changed."""

    level: Level
    code: str
    message: str
    action: str


@dataclass(frozen=True)
class Counts:
    """rows of all files; tasks: the good ones that are kept; bad; left_out: good ones beyond what
    is kept. answered: tasks with an answer. repeated: tasks that are an earlier one again.
    disputed: prompts that have different answers. skills: tasks of each."""

    rows: int
    tasks: int
    bad: int
    left_out: int
    answered: int
    repeated: int
    disputed: int
    skills: Mapping[str, int]


@dataclass(frozen=True)
class Split:
    """train, valid: tasks. overlap: validation tasks whose prompt trains, too; near: those whose
    prompt differs from one that trains in its numbers alone."""

    train: int
    valid: int
    overlap: int
    near: int


@dataclass(frozen=True)
class Spread:
    """Of token counts."""

    median: int
    p95: int
    longest: int


@dataclass(frozen=True)
class Lengths:
    """Of the `measured` first tasks, in tokens. blocks: how many blocks an answer spans -> answers.
    edges, counts: histogram of prompt and answer together, counts[n] being those of at most
    edges[n] tokens (and more than the edge before), the last one those above. block, context,
    limit: of the model and of training."""

    measured: int
    prompt: Spread
    answer: Spread
    blocks: Mapping[int, int]
    edges: tuple[int, ...]
    counts: tuple[int, ...]
    block: int
    context: int
    limit: int


@dataclass(frozen=True)
class SeenToken:
    """A token as it is shown, and whether the model learns to write it."""

    text: str
    trained: bool


@dataclass(frozen=True)
class SeenRow:
    """A row as the model will see it; tokens behind the last one are padding, never trained."""

    id: str
    tokens: tuple[SeenToken, ...]
    prompt_tokens: int
    trained_tokens: int


@dataclass(frozen=True)
class Template:
    """model: name of the folder; family: in words. system: whether the template takes a system
    prompt. scripts: of the letters of the data, as shares. characters_per_token: of the data with
    this tokenizer; near 1 means that it does not know the language."""

    model: str
    family: str
    system: bool
    scripts: Mapping[str, float]
    characters_per_token: float


@dataclass(frozen=True)
class DataReport:
    """unfit: rows whose prompt leaves no room or that the template refuses (the first ones;
    unfit_count of all that were measured); truncated: rows whose answer does not fit, which is then
    not taught. lengths, template, seen: with a model. probe: with a verifier, of the first rows."""

    files: tuple[str, ...]
    layouts: tuple[str, ...]
    counts: Counts
    split: Split
    bad: tuple[BadRow, ...]
    lengths: Lengths | None
    template: Template | None
    unfit: tuple[str, ...]
    unfit_count: int
    truncated: tuple[str, ...]
    truncated_count: int
    seen: tuple[SeenRow, ...]
    probe: Probe | None
    findings: tuple[Finding, ...]

    @property
    def trainable(self) -> bool:
        """Whether anything could be learnt."""
        return not any(finding.level == "stop" for finding in self.findings)

    def refuse_untrainable(self) -> None:
        """Raises RequestError with the first finding that stops."""
        for finding in self.findings:
            if finding.level == "stop":
                raise RequestError(finding.code, finding.message, finding.action)
