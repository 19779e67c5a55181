"""Many replies through few rows: the ids, forwards and reasons of replies that ran alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.checkpoint import open_checkpoint
from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.engine import TorchEngine, load_engine
from engine.errors import RuntimeFailure
from engine.loading import Placement, build_model
from engine.models.backbone import AnyBackbone
from engine.runtime.rows import Row
from engine.runtime.stream import ReplyStream
from engine.tokenizer import ChatTokenizer
from engine.types import DecodeSettings, Message

DEMO = Path(__file__).parents[2] / "assets" / "demo"
ASKED = (
    "What is 17 * 24 + 9? Show the working.",
    "Hi",
    "Reverse the word lantern.",
    "Sort these numbers from small to large: 9, 3, 27, 14, 5, 81, 40, 2",
    "Tell a short story. Hero: Mia. Animal: owl. Place: garden. Object: lamp. Mood: calm. "
    "Ending: all are friends.",
    "Is 1996 a leap year?",
)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return load_engine(DEMO, device="cpu")


def _model() -> AnyBackbone:
    checkpoint = open_checkpoint(DEMO)
    try:
        place = Placement(torch.device("cpu"), torch.float32, True, "expanded")
        return build_model(checkpoint, place)
    finally:
        checkpoint.release()


@pytest.fixture(scope="module")
def model() -> AnyBackbone:
    return _model()


def _rows(engine: TorchEngine, settings: list[DecodeSettings]) -> list[Row]:
    stops = frozenset(engine.info.stop_ids)
    rows = []
    tokenizer = ChatTokenizer.open(DEMO)
    for text, chosen in zip(ASKED, settings, strict=True):
        prompt = tokenizer.encode_chat((Message("user", text),))
        rows.append(Row(prompt, 96, chosen, engine.info.block_length, stops))
    return rows


def _stream(model: AnyBackbone, batch: int) -> ReplyStream:
    program = make_program(model, batch, 512, RuleOptions(), torch.float32)
    return ReplyStream(program, True)


def _settings(engine: TorchEngine) -> list[DecodeSettings]:
    base = engine.info.defaults
    return [
        replace(
            base,
            threshold=0.7 + 0.05 * n,
            temperature=0.0 if n % 3 else 0.7,
            editing_threshold=None if n % 2 else 0.9,
            seed=n,
        )
        for n in range(len(ASKED))
    ]


def test_rows_that_advance_apart_give_the_replies_they_give_alone(
    engine: TorchEngine, model: AnyBackbone
) -> None:
    settings = _settings(engine)
    rows = _rows(engine, settings)
    _stream(model, 2).run(rows)
    for row, chosen in zip(rows, settings, strict=True):
        (alone,) = engine.generate_batch([row.prompt], chosen, 96, 1)
        assert tuple(row.ids) == alone.ids
        assert (row.forwards, row.blocks, row.reason) == (
            alone.forwards,
            alone.blocks,
            alone.reason,
        )


def test_every_turn_says_which_reply_each_row_holds(
    engine: TorchEngine, model: AnyBackbone
) -> None:
    rows = _rows(engine, _settings(engine))
    held: list[list[int]] = []
    stream = _stream(model, 2)
    stream.run(rows, lambda holds: held.append(list(holds)))
    assert len(held) == stream.turns
    assert {index for turn in held for index in turn} - {-1} == set(range(len(rows)))
    steps = [sum(n in turn for turn in held) for n in range(len(rows))]
    assert all(taken >= row.forwards for taken, row in zip(steps, rows, strict=True))


def test_numbers_that_are_not_finite_end_a_stream_with_a_typed_error(engine: TorchEngine) -> None:
    broken = _model()
    with torch.no_grad():
        broken.norm.weight.fill_(float("nan"))
    with pytest.raises(RuntimeFailure, match=r"runtime\.nonfinite"):
        _stream(broken, 2).run(_rows(engine, _settings(engine)))
