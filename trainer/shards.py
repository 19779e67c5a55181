"""Training examples as arrays, made shard by shard in worker processes and kept as files.

Knows the generators and the tokenizer, and nothing of models: it imports no torch, so that workers
start quickly. A shard's content follows from its plan, the tokenizer's file and its number. Files
are .npz without pickles, named after all three: a run that is cut and resumed finds its shards
again, and never those of another seed or tokenizer. It does not know when a generator changed.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.skills import SKILLS, Example, Split, generate_examples
from trainer.data.template import ChatEncoder, EncodedConversation

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Examples:
    """Tokenised examples as a table.

    tokens int16 [blocks, L]: all examples one after another, each padded to whole blocks. blocks,
    answer, stop int32 [n]: an example's number of blocks; the position (from the example's start)
    of its last answer's first token; the position after that answer's stop token. skill int16 [n]:
    index into the sorted names of the skills.
    """

    tokens: npt.NDArray[np.int16]
    blocks: Ints
    answer: Ints
    stop: Ints
    skill: npt.NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.blocks)

    def first_blocks(self) -> npt.NDArray[np.int64]:
        """Index of each example's first block in `tokens`."""
        ends = np.cumsum(self.blocks, dtype=np.int64)
        return ends - self.blocks

    def save(self, path: Path) -> None:
        """Writes the table; a file that exists is complete."""
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as out:
            np.savez(
                out,
                tokens=self.tokens,
                blocks=self.blocks,
                answer=self.answer,
                stop=self.stop,
                skill=self.skill,
            )
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Examples:
        with np.load(path, allow_pickle=False) as file:
            return cls(*(file[name] for name in ("tokens", "blocks", "answer", "stop", "skill")))


@dataclass(frozen=True)
class ShardPlan:
    """What a sequence of shards holds.

    tokenizer: folder with tokenizer.json. examples: how many in all; shard: how many in one.
    chat_share: share of examples that get one or two earlier turns. max_blocks: an example may not
    get longer than this by earlier turns. weights: relative frequency of skills by name.
    """

    tokenizer: Path
    seed: int
    split: Split
    examples: int
    shard: int
    block_length: int
    max_blocks: int
    chat_share: float
    weights: tuple[tuple[str, float], ...] = ()

    @property
    def shards(self) -> int:
        return -(-self.examples // self.shard)

    def fingerprint(self) -> str:
        """Short name of everything that a shard's content follows from, but its number."""
        facts = (*astuple(replace(self, tokenizer=Path())), tokenizer_fingerprint(self.tokenizer))
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def tokenizer_fingerprint(folder: Path) -> str:
    """Hash of the file that says which ids a text becomes."""
    return hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()


def make_shard(plan: ShardPlan, number: int) -> Examples:
    """Generates and encodes shard `number` of a plan."""
    start = number * plan.shard
    count = min(plan.shard, plan.examples - start)
    examples = list(
        generate_examples(plan.seed, start, count, plan.split, weights=dict(plan.weights) or None)
    )
    encoder = ChatEncoder.from_folder(plan.tokenizer)
    encoded = encoder.encode_examples(examples)
    rng = np.random.default_rng((plan.seed, number, len(plan.split)))
    longest = plan.max_blocks * plan.block_length
    chats = [_with_history(encoded, n, rng, plan.chat_share, longest) for n in range(count)]
    return tabulate(examples, chats, plan.block_length, encoder.end_of_text_id)


def _with_history(
    encoded: list[EncodedConversation],
    index: int,
    rng: np.random.Generator,
    share: float,
    longest: int,
) -> EncodedConversation:
    """The example after one or two turns (its neighbours in the shard), or alone."""
    turns = int(rng.integers(1, 3)) if rng.random() < share else 0
    mine = encoded[index]
    history = [token for turn in encoded[max(0, index - turns) : index] for token in turn.ids]
    if not history or len(history) + len(mine.ids) > longest:
        return mine
    return EncodedConversation(history + mine.ids, [False] * len(history) + mine.answer)


def tabulate(
    examples: list[Example], encoded: list[EncodedConversation], block_length: int, pad_id: int
) -> Examples:
    """One table from encoded conversations; the last block of each is filled with `pad_id`."""
    names = sorted(SKILLS)
    sizes = np.asarray([len(item.ids) for item in encoded], dtype=np.int64)
    blocks = -(-sizes // block_length)
    tokens = np.full(int(blocks.sum()) * block_length, pad_id, dtype=np.int16)
    first = (np.cumsum(blocks) - blocks) * block_length
    for start, item in zip(first.tolist(), encoded, strict=True):
        tokens[start : start + len(item.ids)] = item.ids
    return Examples(
        tokens.reshape(-1, block_length),
        blocks.astype(np.int32),
        np.asarray([item.prompt_length() for item in encoded], dtype=np.int32),
        sizes.astype(np.int32),
        np.asarray([names.index(example.skill) for example in examples], dtype=np.int16),
    )


def _make_file(plan: ShardPlan, number: int, path: Path) -> Path:
    """Worker: makes one shard's file unless it is there."""
    if not path.exists():
        make_shard(plan, number).save(path)
    return path


class ShardFeed:
    """The shards of a plan in order; workers make them ahead. workers = 0: made when asked for."""

    def __init__(self, plan: ShardPlan, folder: Path, workers: int) -> None:
        self.plan = plan
        self.folder = folder
        self.given = 0
        self._name = f"{plan.split}-{plan.fingerprint()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._pool: ProcessPoolExecutor | None = None
        self._files: dict[int, Future[Path]] = {}
        missing = [n for n in range(plan.shards) if not self._path(n).exists()]
        if workers and missing:
            # Each worker encodes on one thread; the pool is the parallelism.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(min(workers, len(missing)), mp_context=spawn)
            for number in missing:
                self._files[number] = self._pool.submit(
                    _make_file, plan, number, self._path(number)
                )

    def _path(self, number: int) -> Path:
        return self.folder / f"{self._name}-{number:05d}.npz"

    def ready(self) -> bool:
        """Whether the next shard can be had without waiting."""
        future = self._files.get(self.given)
        return self.given < self.plan.shards and (future is None or future.done())

    def next(self) -> Examples | None:
        """The next shard, waiting for it; None when all were given."""
        if self.given == self.plan.shards:
            self.close()
            return None
        number = self.given
        future = self._files.pop(number, None)
        path = self._path(number)
        examples = Examples.load(future.result() if future else _make_file(self.plan, number, path))
        self.given += 1
        return examples

    def rewind(self) -> None:
        """Begins again with the first shard; files that were made are read again."""
        self.given = 0

    def close(self) -> None:
        """Ends the workers; what they had begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
