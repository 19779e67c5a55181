"""A tiny recipe, its examples and its model, for the tests of pretraining."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainer.batches import Packer, RowTable, Window
from trainer.demo_config import TINY, DemoConfig, Vocabulary
from trainer.master import MasterWeights
from trainer.pretrain_loop import Data, Pretrainer, new_model
from trainer.pretrain_model import ComputePath, TrainingModel
from trainer.shards import Examples

VOCABULARY = Vocabulary(size=256, mask_id=252, pad_id=251, role_end_id=255)
PLAIN = ComputePath("wide", "dense", compiled=False)
LENGTH = 32


def random_examples(count: int, seed: int = 0, vocabulary: int = 250) -> Examples:
    """Examples of random tokens with prompts of 3..90 and answers of 5..120 tokens."""
    rng = np.random.default_rng(seed)
    answer = rng.integers(3, 91, count)
    stop = answer + rng.integers(5, 121, count)
    blocks = -(-stop // LENGTH)
    tokens = rng.integers(0, vocabulary, (int(blocks.sum()), LENGTH)).astype(np.int16)
    skill = np.zeros(count, np.int16)
    return Examples(
        tokens,
        blocks.astype(np.int32),
        answer.astype(np.int32),
        stop.astype(np.int32),
        skill,
    )


def packer_of(examples: Examples, window: Window, seed: int = 1) -> Packer:
    """A packer over all examples, whose tokens begin at block 0."""
    rows = RowTable()
    rows.append(examples, 0, window.fits(examples))
    return Packer(rows, window, seed)


def tiny_model(
    config: DemoConfig, path: ComputePath = PLAIN, seed: int = 3, spread: float = 0.08
) -> TrainingModel:
    """A float32 CPU model with random weights large enough for attention and routing to matter."""
    model = new_model(config, VOCABULARY, torch.device("cpu"), path)
    master = MasterWeights(model.model, model.spec, config.optimiser, frozenset())
    master.initialise(seed)
    for stack in master.stacks.values():
        if not stack.name.endswith("norm.weight"):
            stack.master.mul_(spread / stack.master.std())
    master.write(quantised=False)
    return model


def small_config(**changes: str) -> DemoConfig:
    """TINY with one window a batch."""
    return TINY.with_changes({"windows": "1", "examples": "96", "shard": "32", **changes})


def pretrainer(config: DemoConfig, run: Path, tokenizer: Path) -> Pretrainer:
    """A run on generated examples, made in this process."""
    from trainer.pretrain import read_vocabulary

    data = Data(config, tokenizer, run / "data", workers=0)
    model = new_model(config, read_vocabulary(tokenizer), torch.device("cpu"), PLAIN)
    return Pretrainer(config, model, data, run, lambda _: None)
