"""Bookkeeping in one launch against the torch functions it replaces (Triton's interpreter)."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
import torch
from small import (
    BLOCK,
    CAPACITY,
    MASK,
    STOP,
    eager_for,
    graph_for,
    outcome,
    pieces_for,
    reply,
    request,
    small_model,
)

from engine.decoding.judge import Judgement
from engine.decoding.said import Said
from engine.decoding.steering import Steering
from engine.runtime.pieces import ReplyPieces
from engine.runtime.reply import Control, Reason
from engine.types import DecodeSettings

VOCAB = 64


def random_settings(draw: random.Random) -> DecodeSettings:
    return DecodeSettings(
        threshold=draw.choice([0.0, 0.3, 0.6, 0.9, 1.0]),
        editing_threshold=draw.choice([None, 0.0, 0.3, 0.8]),
        steps=draw.choice([1, 3, 5, 8, 32]),
        min_transfer=draw.choice([1, 2, 5]),
        max_post_steps=draw.choice([0, 1, 3]),
        temperature=draw.choice([0.0, 0.0, 0.8]),
        seed=draw.randrange(1000),
    )


def twin(decoding: str, batch: int, ahead: bool) -> tuple[ReplyPieces, ReplyPieces]:
    model = small_model(decoding)
    plain = pieces_for(model, batch=batch, ahead=ahead, slots=4)
    return plain, pieces_for(model, batch=batch, ahead=ahead, slots=4, one_launch=True)


def buffers(pieces: ReplyPieces) -> dict[str, torch.Tensor]:
    state, reply_state = pieces.program.state, pieces.reply
    found = {field.name: getattr(state, field.name) for field in fields(state)}
    names = ("limits", "counts", "first_stop", "control", "log", "known", "stop_ids")
    found |= {f"reply {name}": getattr(reply_state, name) for name in names}
    found["reply converged"] = reply_state.converged
    found["records"] = pieces.ring.records
    return found


def randomise(one: ReplyPieces, other: ReplyPieces, draw: random.Random) -> Judgement:
    """Any state a reply can be in, and things no correct reply shows, in both; and a judgement."""
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    state, reply_state = one.program.state, one.reply
    batch, length = state.tokens.shape

    def ints(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    def some(chance: float, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator) < chance

    rows = [
        request(
            list(range(draw.randrange(20))),
            draw.randrange(1, 40),
            random_settings(draw),
        )
        for _ in range(batch)
    ]
    variant = one.load(rows, record=draw.random() < 0.7)
    one.select(variant)
    one.reply.first_start.copy_(ints(3, batch, 1) * BLOCK)
    state.tokens.copy_(ints(VOCAB, batch, length))
    full = draw.random() < 0.4
    state.tokens[some(0.0 if full else 0.5, batch, length)] = MASK
    state.tokens[some(0.06, batch, length)] = STOP
    state.prompt.copy_(some(0.2, batch, length))
    state.start.copy_(one.reply.first_start + ints(4, batch, 1) * BLOCK)
    for name in ("step", "post"):
        getattr(state, name).copy_(ints(6, batch, 1))
    chance = draw.choice([0.0, 0.2, 1.0])
    state.finished.copy_(some(chance, batch, 1))
    state.settled.copy_(some(0.5, batch, 1))
    state.converged.copy_(some(0.8, batch, 1))
    state.nonfinite.copy_(some(0.05, batch, 1))
    for name in ("changed", "edited", "original"):
        getattr(state, name).copy_(some(0.3, batch, length))
    for name in ("proposal", "previous"):
        getattr(state, name).copy_(ints(VOCAB, batch, length))
    for name in ("confidence", "entropy"):
        getattr(state, name).copy_(torch.rand(batch, length, generator=generator))
    reply_state.blocks.copy_(ints(4, batch, 1))
    reply_state.max_blocks.copy_(reply_state.blocks + ints(4, batch, 1))
    reply_state.reason.copy_(torch.where(some(0.3, batch, 1), int(Reason.LENGTH), 0))
    reply_state.forwards.copy_(ints(9, batch, 1))
    reply_state.length.copy_(ints(9, batch, 1))
    reply_state.control[Control.STEPS] = draw.randrange(9)
    reply_state.control[Control.BLOCKS] = draw.randrange(5)
    reply_state.control[Control.STOP] = int(draw.random() < 0.2)
    for name, value in buffers(one).items():
        buffers(other)[name].copy_(value)
    other.settings.reals.copy_(one.settings.reals)
    other.settings.counts.copy_(one.settings.counts)
    other.select(variant)
    logits = torch.randn(batch, length, VOCAB, generator=generator) * 3
    logits[some(0.3, batch, length)] = 0.5  # ties in confidence
    log_norm = logits.logsumexp(-1)
    proposal = torch.where(some(0.6, batch, length), logits.argmax(-1), state.tokens)
    proposal = torch.where(proposal == MASK, 3, proposal)
    index = proposal.unsqueeze(-1)
    sure = (logits.gather(-1, index).squeeze(-1) - log_norm).exp()
    if draw.random() < 0.5:
        sure = (sure * 4).round() / 4  # more ties, and values on the thresholds
    # What the proposal's probability is said to be is what its score says.
    scores = logits.scatter(-1, index, (sure.log() + log_norm).unsqueeze(-1))
    sure = (scores.gather(-1, index).squeeze(-1) - log_norm).exp()
    doubt = torch.rand(batch, length, generator=generator)
    finite = ~some(0.05, batch, 1)
    return Judgement(proposal, sure, doubt, scores, log_norm, finite)


def same(one: ReplyPieces, other: ReplyPieces, case: object) -> None:
    theirs = buffers(other)
    for name, value in buffers(one).items():
        assert torch.equal(
            value.view(torch.int32) if value.dtype == torch.float32 else value,
            theirs[name].view(torch.int32) if value.dtype == torch.float32 else theirs[name],
        ), (name, case, value, theirs[name])


@pytest.mark.parametrize("decoding", ["llada2.0", "llada2.1"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_of_any_state_is_the_references(decoding: str, batch: int) -> None:
    draw = random.Random(f"{decoding} {batch}")
    ahead = decoding == "llada2.1"
    plain, fast = twin(decoding, batch, ahead)
    assert fast.books is not None
    for case in range(70):
        judgement = randomise(plain, fast, draw)
        verify = ahead and draw.random() < 0.5
        said = Said.of(judgement, plain.program.state.tokens)
        plain.program.rule.apply(plain.program.state, judgement, plain.settings)
        plain._end_step()
        if verify:
            plain.reply.accept_step_ahead(plain.program.state)
        fast.books.after_step(said, fast.settings, fast.variant.recorded, verify)
        same(plain, fast, case)


@pytest.mark.parametrize("stop_after", [True, False])
def test_a_blocks_end_and_beginning_are_the_references(stop_after: bool) -> None:
    draw = random.Random(stop_after)
    plain, fast = twin("llada2.1", 3, True)
    plain.reply.stop_after_block = fast.reply.stop_after_block = stop_after
    assert fast.books is not None
    for case in range(70):
        randomise(plain, fast, draw)
        plain.reply.end_block(plain.program.state)
        fast.books.end()
        same(plain, fast, ("end", case))
        free = draw.random() < 0.5
        if free:
            plain.reply.count_step_ahead()
        plain.reply.begin_block(plain.program.state)
        fast.books.begin(free)
        same(plain, fast, ("begin", case))


@pytest.mark.parametrize(
    ("decoding", "settings"),
    [
        ("llada2.0", DecodeSettings(threshold=0.6, steps=4)),
        ("llada2.1", DecodeSettings(threshold=0.5, editing_threshold=0.4, max_post_steps=3)),
        ("llada2.1", DecodeSettings(threshold=0.6, editing_threshold=None, temperature=0.7)),
        ("llada2.1", DecodeSettings(threshold=0.6, temperature=0.7, top_k=5, seed=4)),
    ],
)
def test_replies_are_the_same_in_both_runtimes(decoding: str, settings: DecodeSettings) -> None:
    model = small_model(decoding)
    wanted = request([5, 6, 7] * 4, 26, settings)
    marks = reply(eager_for(model, exact=False), wanted)
    for runtime in (
        eager_for(model, exact=False, one_launch=True),
        graph_for(model, one_launch=True, ahead=True),
    ):
        assert runtime.pieces.books is not None
        row = request([5, 6, 7] * 4, 26, settings)
        found = reply(runtime, row)
        assert row.ids == wanted.ids
        assert (row.reason, row.blocks) == (wanted.reason, wanted.blocks)
        assert row.converged == wanted.converged
        assert len(found) == len(marks)
        for mark, other in zip(found, marks, strict=True):
            assert mark.step_taken is not None
            assert other.step_taken is not None
            assert (mark.step_taken.state == other.step_taken.state).all()
            assert (mark.step_taken.ids == other.step_taken.ids).all()


def test_a_steered_reply_is_the_same() -> None:
    model = small_model("llada2.1")
    settings = DecodeSettings(threshold=0.5, editing_threshold=0.5, max_post_steps=3)
    plain = request([5, 6, 7], 20, settings)
    reply(eager_for(model, exact=False), plain)
    banned = [(position, plain.ids[position - 3]) for position in range(4, 14, 3)]
    steering = Steering(banned=banned, remasked={8: 1}, forced={5: 9})
    rows = []
    for options in ({}, {"one_launch": True}):
        row = request([5, 6, 7], 20, settings, steering=steering)
        reply(eager_for(model, exact=False, **options), row)
        rows.append(outcome(row))
    assert rows[0] == rows[1]
    assert rows[0][0] != plain.ids


def test_a_rule_without_a_kernel_keeps_its_torch_functions() -> None:
    pieces = pieces_for(small_model("llada2.2"), one_launch=True)
    assert pieces.books is None
    assert "no kernel covers llada2.2 here" in pieces.words
    assert CAPACITY >= 2 * BLOCK


def test_what_keeps_the_books_can_be_read() -> None:
    model = small_model("llada2.1")
    assert "one kernel launch a step" in pieces_for(model, one_launch=True).words
    assert "no kernels run here" in pieces_for(model).words
