"""The reply's bookkeeping on the device against the same rules written plainly on the host."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from engine.decoding.rules import EditingRule, RuleOptions
from engine.decoding.state import BlockState
from engine.decoding.steering import Steering
from engine.errors import RequestError, RuntimeFailure
from engine.runtime.reply import Control, ReplyState
from engine.runtime.rows import Row, take_ends
from engine.types import DecodeSettings, StopReason

CPU = torch.device("cpu")
BLOCK, CAPACITY, MASK, STOPS = 4, 40, 9, frozenset([7, 8])
RULE = EditingRule(MASK, torch.tensor(sorted(STOPS)), RuleOptions())


@dataclass
class HostRow:
    """The rules in plain Python: the oracle."""

    prompt: list[int]
    max_new_tokens: int
    ids: list[int] = field(default_factory=list)
    blocks: int = 0
    reason: StopReason | None = None
    converged: bool = True

    def generated(self, tokens: list[int]) -> list[int]:
        tail = len(self.prompt) % BLOCK if self.blocks == 0 else 0
        return tokens[tail:]

    def take_block(self, tokens: list[int], max_blocks: int, stop_after_block: bool) -> None:
        self.ids += self.generated(tokens)
        self.blocks += 1
        last = self.blocks == max_blocks
        self.ids = self.ids[: self.max_new_tokens]
        stop = next((n for n, token in enumerate(self.ids) if token in STOPS), None)
        if stop is not None and (stop_after_block or last):
            self.ids = self.ids[: stop + 1]
            self.reason = "stop_token"
        elif last:
            self.reason = "length"
        if MASK in self.ids:
            self.ids = self.ids[: self.ids.index(MASK)]
            self.reason, self.converged = "did_not_converge", False

    def stop(self, tokens: list[int]) -> None:
        generated = self.generated(tokens)
        kept = generated[: generated.index(MASK)] if MASK in generated else generated
        stop = next((n for n, token in enumerate(kept) if token in STOPS), len(kept))
        self.ids = (self.ids + kept[:stop])[: self.max_new_tokens]
        self.reason = "stopped"


def make(batch: int, stop_after_block: bool = True) -> tuple[ReplyState, BlockState]:
    reply = ReplyState(batch, BLOCK, CAPACITY, MASK, stop_after_block, CPU)
    return reply, BlockState.allocate(batch, BLOCK, CPU)


def row_of(prompt: list[int], limit: int, **changes: Steering) -> Row:
    return Row(prompt, limit, DecodeSettings(max_post_steps=3), BLOCK, STOPS, **changes)


def end_of_block(reply: ReplyState) -> list:
    return reply.block_ends(reply.log[int(reply.word(Control.BLOCKS)) - 1].numpy())


@pytest.mark.parametrize("stop_after_block", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_blocks_end_as_the_plain_rules_say(seed: int, stop_after_block: bool) -> None:
    rng = random.Random(seed)
    batch = rng.choice([1, 3])
    reply, state = make(batch, stop_after_block)
    prompts = [[rng.randrange(1, 6) for _ in range(rng.randrange(1, 11))] for _ in range(batch)]
    rows = [row_of(prompt, rng.randrange(1, 20)) for prompt in prompts]
    oracles = [HostRow(row.prompt, row.max_new_tokens) for row in rows]
    reply.load(rows, RULE, level=1)
    stop_at = rng.randrange(8)
    forwards = [0] * batch
    for block in range(CAPACITY // BLOCK):
        reply.begin_block(state)
        words = [rng.choices([1, 2, 3, 7, 8, MASK], [9, 9, 9, 1, 1, rng.choice([0, 1])], k=BLOCK)]
        words += [rng.choices([1, 2, 3, 7], [9, 9, 9, 1], k=BLOCK) for _ in range(batch - 1)]
        written = torch.where(state.prompt, state.tokens, torch.tensor(words))
        state.tokens.copy_(written)
        state.step.fill_(block + 1)
        cut = block == stop_at and rng.random() < 0.5
        state.finished.fill_(not cut)
        state.converged.copy_(torch.tensor([[rng.random() < 0.9] for _ in rows]))
        state.settled.copy_(torch.tensor([[rng.random() < 0.5] for _ in rows]))
        reply.word(Control.STOP).fill_(int(cut))
        live = [oracle.reason is None for oracle in oracles]
        reply.end_block(state)
        for index, oracle in enumerate(oracles):
            if not live[index]:
                continue
            forwards[index] += block + 1
            if cut:
                oracle.stop(written[index].tolist())
            else:
                oracle.converged &= bool(state.converged[index])
                oracle.take_block(written[index].tolist(), rows[index].max_blocks, stop_after_block)
        assert take_ends(rows, end_of_block(reply)) == (any(live) and not cut)
        for row, oracle, count in zip(rows, oracles, forwards, strict=True):
            wanted = (oracle.ids, oracle.reason, oracle.blocks, oracle.converged, count)
            assert (row.ids, row.reason, row.blocks, row.converged, row.forwards) == wanted
        going_on = [oracle.reason is None for oracle in oracles]
        assert bool(reply.word(Control.KEEP_BLOCK)) == any(going_on)
        unsettled = [on and not bool(s) for on, s in zip(going_on, state.settled, strict=True)]
        assert bool(reply.word(Control.COMMIT)) == any(unsettled)
        if not any(going_on):
            return
    raise AssertionError("the reply did not end")


def test_a_block_begins_with_what_is_known_of_it_and_masks() -> None:
    reply, state = make(1)
    steering = Steering(forced={7: 3, 9: 5})
    reply.load([row_of([1, 2, 3, 4, 5, 6], 8, steering=steering)], RULE, level=1)
    reply.begin_block(state)
    assert state.start.tolist() == [[4]]
    assert state.tokens.tolist() == [[5, 6, MASK, 3]]
    assert state.prompt.tolist() == [[True, True, False, True]]
    assert state.initial_masks.tolist() == [[1]]
    state.tokens.copy_(torch.tensor([[5, 6, 1, 3]]))
    state.finished.fill_(True)
    reply.end_block(state)
    reply.begin_block(state)
    assert state.previous.tolist() == [[5, 6, 1, 3]]
    assert state.tokens.tolist() == [[MASK, 5, MASK, MASK]]


def test_a_forced_token_belongs_to_the_answer() -> None:
    reply, state = make(1)
    row = row_of([1, 2, 3], 3, steering=Steering(forced={4: 7}))
    reply.load([row], RULE, level=1)
    for tokens in ([1, 2, 3, 5], [7, 2, 2, 2]):
        reply.begin_block(state)
        state.tokens.copy_(torch.tensor([tokens]))
        state.finished.fill_(True)
        reply.end_block(state)
        take_ends([row], end_of_block(reply))
    assert (row.ids, row.reason) == ([5, 7], "stop_token")


def test_a_row_at_its_step_cap_is_finished_and_the_others_go_on() -> None:
    reply, state = make(2)
    reply.load([row_of([1], 4), row_of([1], 4)], RULE, level=1)
    cap = RULE.step_cap(DecodeSettings(max_post_steps=3), BLOCK)
    assert reply.step_cap.tolist() == [[cap], [cap]]
    reply.begin_block(state)
    state.step.copy_(torch.tensor([[cap], [cap - 1]]))
    reply.end_step(state)
    assert state.finished.tolist() == [[True], [False]]
    assert bool(reply.word(Control.KEEP_STEP))
    state.step.fill_(cap)
    reply.end_step(state)
    assert not bool(reply.word(Control.KEEP_STEP))


def test_logits_that_are_not_finite_end_the_reply_and_keep_earlier_blocks() -> None:
    reply, state = make(1)
    row = row_of([1, 2, 3, 4], 20)
    reply.load([row], RULE, level=1)
    reply.begin_block(state)
    state.tokens.copy_(torch.tensor([[1, 2, 3, 1]]))
    state.finished.fill_(True)
    reply.end_block(state)
    take_ends([row], end_of_block(reply))
    reply.begin_block(state)
    state.step.fill_(2)
    state.nonfinite.fill_(True)
    reply.end_step(state)
    assert not bool(reply.word(Control.KEEP_STEP))
    reply.end_block(state)
    assert not bool(reply.word(Control.KEEP_BLOCK))
    with pytest.raises(RuntimeFailure) as caught:
        take_ends([row], end_of_block(reply))
    assert caught.value.code == "runtime.nonfinite"
    assert "block 1" in caught.value.message
    assert row.ids == [1, 2, 3, 1]


def test_a_row_that_is_over_stays_inside_the_cache() -> None:
    reply, state = make(2)
    full, short = row_of([1] * 32, 8), row_of([1], 3)
    full.reason = "stopped"
    reply.load([full, short], RULE, level=1)
    reply.blocks.fill_(3)
    reply.begin_block(state)
    assert int(state.positions.max()) < CAPACITY
    assert state.finished.tolist() == [[True], [False]]


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (row_of([1] * 30, 20), "positions"),
        (row_of([1], 4, steering=Steering(forced={0: 2})), "forced"),
        (row_of([1], 4, steering=Steering(banned=[(3, 2)] * 40)), "banned"),
        (row_of([1], 4, steering=Steering(remasked={400: 2})), "outside"),
    ],
)
def test_what_does_not_fit_the_buffers_is_refused(row: Row, word: str) -> None:
    reply, _ = make(1)
    with pytest.raises(RequestError, match=word):
        reply.load([row], RULE, level=1)


def test_loading_a_request_leaves_nothing_of_the_one_before() -> None:
    reply, state = make(1)
    reply.load([row_of([1] * 6, 9, steering=Steering(forced={8: 2}, remasked={9: 1}))], RULE, 1)
    for _ in range(2):
        reply.begin_block(state)
        state.tokens.fill_(7)
        state.finished.fill_(True)
        reply.end_block(state)
    reply.load([row_of([2, 2], 5)], RULE, level=0)
    fresh, _ = make(1)
    fresh.load([row_of([2, 2], 5)], RULE, level=0)
    for name in ("known", "limits", "stop_ids", "counts", "first_stop", "converged", "control"):
        assert torch.equal(getattr(reply, name), getattr(fresh, name)), name
    assert torch.equal(reply.steering.remasked, fresh.steering.remasked)
