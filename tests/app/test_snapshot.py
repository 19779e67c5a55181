"""Events become immutable snapshots: cells, edits, live figures, and only the latest counts."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np
import pytest

import app.models.snapshot as snapshots
from app.models.snapshot import Snapshot, SnapshotBuilder, SnapshotHolder
from engine.fake import DEFAULT_ANSWER, FakeEngine, FakeScript
from engine.types import (
    BlockFinished,
    Finished,
    GenerateRequest,
    Message,
    Started,
    StepTaken,
    TokenState,
)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes a snapshot for every step, however fast they come."""
    monkeypatch.setattr(snapshots, "PUBLISH_SECONDS", 0.0)


def play(script: FakeScript | None = None, stop_at: int | None = None) -> list[Snapshot]:
    engine, stop = FakeEngine(script), threading.Event()
    builder = SnapshotBuilder("r", engine)
    request = GenerateRequest((Message("user", "What is 17 * 24 + 9?"),), 1024)
    result, steps, event = [], 0, None
    for event in engine.generate(request, stop):
        steps += isinstance(event, StepTaken)
        if stop_at is not None and steps >= stop_at:
            stop.set()
        taken = builder.add(event)
        if taken is not None:
            result.append(taken)
    assert isinstance(event, Finished)
    return result


def test_the_first_snapshot_is_a_block_of_masks(every_step: None) -> None:
    first = play()[0]
    assert len(first.blocks) == 1
    assert {cell.state for cell in first.blocks[0].cells} == {TokenState.MASKED}


def test_no_prompt_and_no_template_token_is_ever_on_the_canvas(every_step: None) -> None:
    """The scripted engine's first block begins with the prompt's end, in `<user>` and the like."""
    engine = FakeEngine()
    prompt = engine.count_tokens((Message("user", "What is 17 * 24 + 9?"),))
    taken = play()
    assert {len(s.blocks[0].cells) for s in taken} == {32 - prompt % 32}
    cells = [cell for s in taken for block in s.blocks for cell in block.cells]
    assert all(cell.state != TokenState.PROMPT for cell in cells)
    assert not any("<" in cell.text for cell in cells if not cell.special)


def test_the_last_snapshot_holds_the_whole_answer(every_step: None) -> None:
    last = play()[-1]
    assert last.text == DEFAULT_ANSWER
    shown = "".join(cell.text for block in last.blocks for cell in block.cells if not cell.special)
    assert shown == DEFAULT_ANSWER
    assert all(block.final for block in last.blocks)


def test_an_edit_keeps_its_mark_and_its_former_text_when_the_block_is_final(
    every_step: None,
) -> None:
    last = play()[-1]
    edited = [c for b in last.blocks for c in b.cells if c.state == TokenState.EDITED]
    assert edited
    assert all(cell.before and cell.before != cell.text for cell in edited)


def test_live_figures_follow_their_definitions(every_step: None) -> None:
    for taken in play():
        figures = taken.figures
        if figures.tokens and figures.forwards:
            assert figures.tpf == pytest.approx(figures.tokens / figures.forwards)
        else:
            assert figures.tpf is None
            assert figures.tokens_per_second is None
    # tokens are kept up to the first stop token, inclusive, never the padding behind it
    assert play()[-1].figures.tokens == len(FakeEngine().encode(DEFAULT_ANSWER)) + 1


def test_a_stopped_reply_keeps_its_unfinished_block_on_the_canvas(every_step: None) -> None:
    last = play(stop_at=11)[-1]
    assert not last.blocks[-1].final
    assert last.blocks[-1].index == 1


def test_fast_steps_are_left_out_but_no_finished_block_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PUBLISH_SECONDS", 1000.0)
    taken = play()
    assert not any(s.blocks[-1].step > 0 and not s.blocks[-1].final for s in taken)
    assert [sum(b.final for b in s.blocks) for s in taken[1:-1]] == list(range(1, len(taken) - 1))


def test_the_holder_keeps_only_the_latest_and_gives_it_once() -> None:
    holder = SnapshotHolder()
    assert holder.take() is None
    holder.put(Snapshot("a"))
    newest = Snapshot("b")
    holder.put(newest)
    assert holder.take() is newest
    assert holder.take() is None
    holder.put(newest)
    holder.clear()
    assert holder.take() is None


class ByteEngine(FakeEngine):
    """Every token is one byte."""

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(bytes([i]).decode("utf-8", "replace") for i in ids)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("masked", "shown"),
    [
        ((), ["a", "😀", "", "", "", "b", "é", ""]),
        ((3,), ["a", "\ufffd", "\ufffd", "", "\ufffd", "b", "é", ""]),  # it is not all there yet
    ],
)
def test_a_character_of_several_tokens_is_shown_once_all_are_there(
    every_step: None, masked: tuple[int, ...], shown: list[str]
) -> None:
    ids = np.array(list("a😀bé".encode()), np.int32)
    state = np.full(8, TokenState.DRAFT, np.uint8)
    state[list(masked)] = TokenState.MASKED
    some, none = np.full(8, 0.5, np.float32), np.full(8, -1, np.int32)
    builder = SnapshotBuilder("r", ByteEngine())
    builder.add(Started(0, 8, 0, 1, 0.0, ""))
    step = builder.add(StepTaken(0, 0, 0, 1, ids, state, some, some, none, 0.1))
    assert step is not None
    assert [cell.text for cell in step.blocks[0].cells] == shown
    end = builder.add(BlockFinished(0, 0, ids, True, "a😀bé", 0.1))
    assert end is not None
    assert "".join(cell.text for cell in end.blocks[0].cells) == "a😀bé"


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Snapshot("a").text = "x"  # pyright: ignore[reportAttributeAccessIssue]
