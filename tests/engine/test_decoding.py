"""Decoding rules and sampling on hand-made logits."""

from __future__ import annotations

import pytest
import torch

from engine.decoding.judge import judge
from engine.decoding.levenshtein import LevenshteinRule, apply_block_edits
from engine.decoding.rules import EditingRule, QuotaRule, RuleOptions, choose, reply_complete
from engine.decoding.state import BlockState, RowSettings
from engine.kernels.philox import philox4x32, uniform
from engine.types import DecodeSettings

CPU = torch.device("cpu")
MASK, DELETE, SPLIT = 9, 7, 8
A, B, C, D = 1, 2, 3, 4


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.int64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = words(*counter)
    k0, k1 = words(*key)
    assert tuple(philox4x32((c0, c1, c2, c3), (k0, k1)).tolist()) == expected


def test_uniform_draws_depend_on_seed_position_and_step_alone() -> None:
    positions = torch.arange(1000).unsqueeze(0)
    seed, step = torch.tensor([[7]]), torch.tensor([[3]])
    draws = uniform(seed, positions, step)
    assert torch.equal(draws[:, 500:], uniform(seed, positions[:, 500:], step))
    assert not torch.equal(draws, uniform(seed + 1, positions, step))
    assert not torch.equal(draws, uniform(seed, positions, step + 1))
    assert 0.0 < float(draws.min()) < 0.01
    assert 0.99 < float(draws.max()) < 1.0
    assert abs(float(draws.mean()) - 0.5) < 0.03


def settings_of(**changes: float | int | None) -> RowSettings:
    return RowSettings.of([DecodeSettings(**changes)], CPU)


def logits_for(tokens: list[int], sure: float = 12.0, vocab: int = 10) -> torch.Tensor:
    """float32 [1, L, V]: each position strongly prefers the given token."""
    logits = torch.zeros(1, len(tokens), vocab)
    for position, token in enumerate(tokens):
        logits[0, position, token] = sure
    return logits


def begin(tokens: list[int], prompt: int = 0) -> BlockState:
    state = BlockState.allocate(1, len(tokens), CPU)
    is_prompt = torch.arange(len(tokens)).unsqueeze(0) < prompt
    state.begin(torch.tensor([tokens]), is_prompt, torch.tensor([[0]]), MASK)
    state.finished.zero_()
    return state


def test_the_mask_is_never_proposed() -> None:
    logits = logits_for([MASK, MASK])
    judgement = judge(
        logits, settings_of(), torch.tensor([[0, 1]]), torch.tensor([[0]]), suppressed=MASK
    )
    assert MASK not in judgement.proposal.tolist()[0]
    sampled = judge(
        logits_for([MASK] * 400),
        settings_of(temperature=1.5, seed=3),
        torch.arange(400).unsqueeze(0),
        torch.tensor([[0]]),
        suppressed=MASK,
    )
    assert MASK not in sampled.proposal.tolist()[0]


def test_sampling_follows_the_distribution_and_the_seed() -> None:
    count = 20_000
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).expand(1, count, 4)
    positions, step = torch.arange(count).unsqueeze(0), torch.tensor([[0]])

    def draw(**changes: float | int) -> torch.Tensor:
        settings = settings_of(temperature=1.0, **changes)
        return judge(logits.clone(), settings, positions, step, suppressed=None).proposal

    share = torch.bincount(draw(seed=1)[0], minlength=4) / count
    torch.testing.assert_close(share, logits[0, 0].softmax(-1), atol=0.015, rtol=0)
    assert torch.equal(draw(seed=1), draw(seed=1))
    assert not torch.equal(draw(seed=1), draw(seed=2))
    assert set(draw(seed=1, top_k=2)[0].tolist()) == {1, 2}
    assert set(draw(seed=1, top_p=0.6)[0].tolist()) == {2}


def test_entropy_is_in_nats_and_confidence_is_the_probability_of_the_token() -> None:
    judgement = judge(
        torch.zeros(1, 1, 8), settings_of(), torch.zeros(1, 1), torch.tensor([[0]]), None
    )
    assert float(judgement.entropy) == pytest.approx(torch.log(torch.tensor(8.0)).item())
    assert float(judgement.confidence) == pytest.approx(1 / 8)


def test_logits_that_are_not_finite_are_noticed() -> None:
    for bad in (float("nan"), float("inf"), float("-inf")):
        logits = logits_for([A, B])
        logits[0, 1, 3] = bad
        judgement = judge(logits, settings_of(), torch.tensor([[0, 1]]), torch.tensor([[0]]), MASK)
        assert not bool(judgement.finite)


def test_too_few_confident_positions_are_filled_up_from_the_left() -> None:
    masked = torch.tensor([[True, True, True, False]])
    confidence = torch.tensor([[0.5, 0.7, 0.5, 0.9]])
    none = torch.zeros(1, 4, dtype=torch.bool)
    assert choose(masked, confidence, none, torch.tensor([[2]])).tolist() == [
        [True, True, False, False]
    ]
    assert choose(masked, confidence, none, torch.tensor([[9]])).tolist() == [
        [True, True, True, False]
    ]


def test_a_stop_token_ends_the_reply_only_when_nothing_before_it_is_masked() -> None:
    stop = torch.tensor([5])
    prompt = torch.tensor([[True, False, False, False]])

    def complete(tokens: list[int]) -> bool:
        return bool(reply_complete(torch.tensor([tokens]), prompt, stop, MASK))

    assert complete([MASK, A, 5, MASK])
    assert not complete([A, MASK, 5, A])
    assert not complete([5, A, B, C])  # a stop token of the prompt does not count


def apply(
    rule: QuotaRule | EditingRule | LevenshteinRule,
    state: BlockState,
    wanted: list[int],
    **s: float | int | None,
) -> None:
    settings = settings_of(**s)
    judgement = judge(logits_for(wanted), settings, state.positions, state.step, MASK)
    rule.apply(state, judgement, settings)


def test_editing_replaces_an_accepted_token_and_ends_when_nothing_changes() -> None:
    rule = EditingRule(MASK, torch.tensor([5]), RuleOptions())
    state = begin([A, MASK, MASK, D], prompt=1)
    apply(rule, state, [B, B, C, D], threshold=0.5, editing_threshold=0.5)
    assert state.tokens.tolist() == [[A, B, C, D]]  # the prompt is never edited
    apply(rule, state, [A, B, A, D], threshold=0.5, editing_threshold=0.5)
    assert state.tokens.tolist() == [[A, B, A, D]]
    assert state.replaced.tolist() == [[-1, -1, C, -1]]
    assert not bool(state.finished)
    apply(rule, state, [A, B, A, D], threshold=0.5, editing_threshold=0.5)
    assert bool(state.finished)
    assert bool(state.settled)
    assert bool(state.converged)


def test_a_block_that_keeps_changing_is_reported_as_not_converged() -> None:
    rule = EditingRule(MASK, torch.tensor([5]), RuleOptions())
    state = begin([A, B])
    for step in range(3):
        wanted = [B, A] if step % 2 == 0 else [A, B]
        apply(rule, state, wanted, editing_threshold=0.5, max_post_steps=3)
    assert bool(state.finished)
    assert not bool(state.converged)


def test_finished_rows_are_left_alone() -> None:
    rule = QuotaRule(MASK, torch.tensor([5]), RuleOptions())
    state = begin([MASK, MASK])
    state.finished.fill_(True)
    apply(rule, state, [A, B], threshold=0.5)
    assert state.tokens.tolist() == [[MASK, MASK]]
    assert state.step.tolist() == [[0]]


@pytest.mark.parametrize(
    ("written", "before", "expected"),
    [
        ([A, DELETE, C, D], [A, B, C, D], [A, C, D, MASK]),
        ([A, SPLIT, C, D], [A, B, C, D], [A, MASK, B, C]),
        ([SPLIT, SPLIT, SPLIT, SPLIT], [A, B, C, D], [MASK, A, MASK, B]),
        ([DELETE, DELETE, DELETE, DELETE], [A, B, C, D], [MASK] * 4),
        ([DELETE, SPLIT, C, D], [A, B, C, D], [MASK, B, C, D]),
    ],
)
def test_block_edits_delete_and_make_room(
    written: list[int], before: list[int], expected: list[int]
) -> None:
    none = torch.zeros(1, 4, dtype=torch.bool)
    block, _ = apply_block_edits(
        torch.tensor([written]), torch.tensor([before]), none, none, MASK, DELETE, SPLIT
    )
    assert block.tolist() == [expected]


def test_block_edits_leave_prompt_tokens_alone() -> None:
    prompt = torch.tensor([[True, False, False]])
    none = torch.zeros(1, 3, dtype=torch.bool)
    block, _ = apply_block_edits(
        torch.tensor([[DELETE, DELETE, A]]),
        torch.tensor([[DELETE, B, A]]),
        none,
        prompt,
        MASK,
        DELETE,
        SPLIT,
    )
    assert block.tolist() == [[DELETE, A, MASK]]


def levenshtein() -> LevenshteinRule:
    return LevenshteinRule(MASK, DELETE, SPLIT, torch.tensor([5]), RuleOptions())


def test_block_edit_decoding_ends_whole_without_masks_or_edit_tokens() -> None:
    state = begin([MASK] * 4)
    generator = torch.Generator().manual_seed(0)
    settings = settings_of(threshold=0.5, editing_threshold=0.0, max_post_steps=4, steps=4)
    for _ in range(50):
        if bool(state.finished):
            break
        noise = torch.randn(1, 4, 10, generator=generator) * 4
        judgement = judge(noise, settings, state.positions, state.step, MASK)
        levenshtein().apply(state, judgement, settings)
    assert bool(state.finished)
    assert not {MASK, DELETE, SPLIT} & set(state.tokens[0].tolist())


def test_block_edit_decoding_does_not_repeat_a_block_it_has_seen() -> None:
    state = begin([A, B, C, D])
    seen = []
    for step in range(3):
        wanted = [B, B, C, D] if step % 2 == 0 else [A, B, C, D]
        apply(levenshtein(), state, wanted, editing_threshold=0.0, max_post_steps=16)
        seen.append(tuple(state.tokens[0].tolist()))
    assert len(set(seen)) == len(seen)
