"""A task as token ids, exactly as the trainer sees it: where the answer begins, and where it ends.

Knows a model folder's tokenizer, template, block and context, without its weights and without
torch. The trainer itself encodes with `encode_answer`, so that what is shown is what is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.family import family_from_config
from engine.checkpoint.folder import read_folder
from engine.checkpoint.tokenizer_ids import read_tokenizer_ids
from engine.errors import RequestError
from engine.models.family import FamilySpec
from engine.models.registry import family_of
from engine.tokenizer import ChatTokenizer
from engine.types import Message
from trainer.data.task import Task


def encode_answer(
    tokenizer: ChatTokenizer, stop_ids: Iterable[int], task: Task
) -> tuple[int, list[int]]:
    """Length of a task's prompt, and the ids of prompt and reference answer up to and with its
    stop token: of these, what stands behind the prompt is trained, and nothing else.

    Raises RequestError `train.template` where the template does not keep the prompt as it is, or
    ends an answer without a stop token (nobody could tell where to stop learning).
    """
    prompt = tokenizer.encode_chat(task.messages)
    answer = Message("assistant", task.reference or "")
    ids = tokenizer.encode_chat([*task.messages, answer])
    stops = frozenset(stop_ids)
    end = next((n for n in range(len(prompt), len(ids)) if ids[n] in stops), None)
    if ids[: len(prompt)] == prompt and end is not None:
        return len(prompt), ids[: end + 1]
    problem = "writes a finished answer differently from one to come"
    if ids[: len(prompt)] == prompt:
        problem = "ends an answer without a token that stops it"
    raise RequestError(
        "train.template",
        f"The model's chat template {problem}.",
        "Train without reference answers (floor 0), or give the model another template.",
    )


@dataclass(frozen=True)
class EncodedTask:
    """ids: of prompt and answer. prompt: tokens of the prompt, which are read and not trained."""

    ids: tuple[int, ...]
    prompt: int

    @property
    def trained(self) -> int:
        """Tokens of the answer, its stop token included."""
        return len(self.ids) - self.prompt


class ModelEncoder:
    """Encodes tasks as one model folder does. spec: of the model, with its block and context."""

    def __init__(self, name: str, title: str, spec: FamilySpec, tokenizer: ChatTokenizer) -> None:
        self.name, self.title, self.spec, self.tokenizer = name, title, spec, tokenizer

    @classmethod
    def open(cls, folder: Path) -> ModelEncoder:
        """Raises CheckpointError. Weights are not read, unless only they tell the family."""
        files = read_folder(folder)
        family = family_from_config(files.config)
        if family is None:
            from engine.checkpoint import open_checkpoint  # imports torch

            checkpoint = open_checkpoint(folder, check_values_now=False)
            try:
                template = family_of(checkpoint.family).template
                title, spec = checkpoint.title, checkpoint.spec
            finally:
                checkpoint.release()
        else:
            ids = read_tokenizer_ids(files)
            template, title = family.template, family.title
            spec = family.read(
                files.config,
                files.generation_config,
                folder_name=files.path.resolve().name,
                special_tokens=ids.added if ids else None,
            )
        name = files.path.resolve().name
        return cls(name, title, spec, ChatTokenizer.open(folder, template))

    def encode(self, task: Task) -> EncodedTask:
        """The prompt, and the answer where there is one. Raises RequestError `request.template`,
        `request.tokenizer` or `train.template`."""
        if task.reference is None:
            ids = self.tokenizer.encode_chat(task.messages)
            return EncodedTask(tuple(ids), len(ids))
        prompt, ids = encode_answer(self.tokenizer, self.spec.stop_ids, task)
        return EncodedTask(tuple(ids), prompt)

    def limit(self, window: int) -> int:
        """Tokens of prompt and answer together that fit `window` blocks and the model's context."""
        length = self.spec.block_length
        return min(window * length, self.spec.max_position_embeddings // length * length)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Display text of tokens, one by one."""
        return [self.tokenizer.piece(token) for token in ids]


@dataclass(frozen=True)
class Unfit:
    """A task that cannot be asked: its row, and why."""

    id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}"


def prompts_that_fit(
    encoder: ModelEncoder, tasks: Iterable[Task], limit: int
) -> tuple[list[Task], list[Unfit]]:
    """Tasks whose prompt leaves room for an answer in `limit` tokens, and the others: a run that
    came upon one of these would have to stop."""
    fit: list[Task] = []
    unfit: list[Unfit] = []
    for task in tasks:
        try:
            length = len(encoder.tokenizer.encode_chat(task.messages))
        except RequestError as error:
            unfit.append(Unfit(task.id, error.message))
            continue
        if length < limit:
            fit.append(task)
        else:
            unfit.append(Unfit(task.id, f"the prompt has {length} tokens, {limit} is the limit"))
    return fit, unfit
