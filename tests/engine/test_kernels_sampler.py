"""The sampler kernels say what `engine.decoding.judge` says, from the head's weights and from
logits alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.decoding.judge import Judgement, judge
from engine.decoding.state import RowSettings
from engine.kernels.sampler import (
    HeadPlan,
    RowInputs,
    Verdict,
    fit_head_plan,
    judge_head,
    judge_logits,
    make_sampler_workspace,
    make_verdict,
)
from engine.types import DecodeSettings

PLAN = HeadPlan(vocab=64, columns=32)
BATCH, LENGTH, VOCAB, HIDDEN, MASK = 2, 4, 500, 48, 7


def inputs_for(settings: list[DecodeSettings], start: int = 32, step: int = 3) -> RowInputs:
    batch = len(settings)
    return RowInputs(
        temperature=torch.tensor([s.temperature for s in settings]),
        seed=torch.tensor([s.seed for s in settings]),
        start=torch.full((batch,), start),
        step=torch.full((batch,), step),
        asked=torch.arange(batch * LENGTH).view(batch, LENGTH) * 37 % VOCAB,
        banned=torch.full((batch, LENGTH, 1), MASK, dtype=torch.int32),
    )


def run(
    settings: list[DecodeSettings], top: int = 0, from_logits: bool = False, keep: bool = True
) -> tuple[Verdict, Judgement]:
    torch.manual_seed(0)
    rows = BATCH * LENGTH
    hidden, weight = torch.randn(rows, HIDDEN), torch.randn(VOCAB, HIDDEN) * 0.3
    logits = hidden @ weight.T
    inputs, verdict = inputs_for(settings), make_verdict(rows, top, "cpu")
    workspace = make_sampler_workspace(rows, VOCAB, top, keep, PLAN, "cpu")
    if from_logits:
        judge_logits(logits, inputs, verdict, workspace, PLAN)
    else:
        judge_head(hidden, weight, inputs, verdict, workspace, PLAN)
    positions = inputs.start.unsqueeze(1) + torch.arange(LENGTH)
    want = judge(
        logits.view(BATCH, LENGTH, VOCAB).clone(),
        RowSettings.of(settings, torch.device("cpu")),
        positions,
        inputs.step.unsqueeze(1),
        MASK,
    )
    return verdict, want


def assert_same(verdict: Verdict, want: Judgement) -> None:
    assert torch.equal(verdict.proposal.long(), want.proposal.flatten())
    close = {"rtol": 2e-5, "atol": 2e-6}
    torch.testing.assert_close(verdict.confidence, want.confidence.flatten(), **close)
    torch.testing.assert_close(verdict.entropy, want.entropy.flatten(), rtol=2e-5, atol=2e-5)
    asked = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) * 37 % VOCAB
    torch.testing.assert_close(verdict.asked, want.probability(asked).flatten(), **close)
    assert int(verdict.nonfinite.sum()) == 0


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_greedy_rows_give_argmax_probability_and_entropy(from_logits: bool, keep: bool) -> None:
    verdict, want = run([DecodeSettings()] * BATCH, from_logits=from_logits, keep=keep)
    assert_same(verdict, want)
    torch.testing.assert_close(verdict.log_norm, want.log_norm.flatten())
    assert MASK not in verdict.proposal.tolist()


@pytest.mark.parametrize("seed", [1, 2**40 + 5, 2**63 - 1])
def test_warm_rows_draw_the_token_the_reference_draws(seed: int) -> None:
    """One warm row of the batch, one cold: the draw depends on the row's own seed, position and
    step."""
    settings = [DecodeSettings(temperature=1.3, seed=seed), DecodeSettings()]
    verdict, want = run(settings)
    assert_same(verdict, want)
    greedy = verdict.greedy[:LENGTH]
    assert not torch.equal(verdict.proposal[:LENGTH], greedy)
    assert torch.equal(verdict.proposal[LENGTH:], verdict.greedy[LENGTH:])


def test_the_best_k_come_sorted_with_their_probabilities() -> None:
    verdict, want = run([DecodeSettings()] * BATCH, top=5)
    probabilities = want.scores.softmax(-1).view(-1, VOCAB)
    values, ids = probabilities.topk(5, dim=-1)
    assert torch.equal(verdict.top_ids.long(), ids)
    torch.testing.assert_close(verdict.top_prob, values, rtol=2e-5, atol=1e-7)


def test_the_best_k_need_kept_logits() -> None:
    with pytest.raises(ValueError, match="kept logits"):
        run([DecodeSettings()] * BATCH, top=5, keep=False)


def test_a_nonfinite_logit_is_counted_in_its_row() -> None:
    logits = torch.randn(BATCH * LENGTH, VOCAB)
    logits[3, 300], logits[3, 400], logits[6, 1] = float("nan"), float("inf"), float("-inf")
    verdict = make_verdict(BATCH * LENGTH, 0, "cpu")
    workspace = make_sampler_workspace(BATCH * LENGTH, VOCAB, 0, True, PLAN, "cpu")
    judge_logits(logits, inputs_for([DecodeSettings()] * BATCH), verdict, workspace, PLAN)
    assert verdict.nonfinite.nonzero().flatten().tolist() == [3, 6]
    assert verdict.nonfinite[[3, 6]].tolist() == [2, 1]
    assert bool(torch.isfinite(verdict.confidence).all())


def test_every_banned_id_of_a_row_is_passed_over() -> None:
    logits = torch.zeros(BATCH * LENGTH, VOCAB)
    logits[:, 10], logits[:, 20], logits[:, 30] = 9.0, 8.0, 7.0
    inputs = inputs_for([DecodeSettings()] * BATCH)
    banned = torch.full((BATCH, LENGTH, 2), -1, dtype=torch.int32)
    banned[0, 0] = torch.tensor([10, 20])
    banned[1, 0, 1] = 10
    inputs = replace(inputs, banned=banned)
    verdict = make_verdict(BATCH * LENGTH, 0, "cpu")
    workspace = make_sampler_workspace(BATCH * LENGTH, VOCAB, 0, False, PLAN, "cpu")
    judge_logits(logits, inputs, verdict, workspace, PLAN)
    assert verdict.proposal[[0, 1, LENGTH]].tolist() == [30, 10, 20]


def test_equal_logits_fall_to_the_lower_id() -> None:
    logits = torch.zeros(BATCH * LENGTH, VOCAB)
    logits[:, [440, 300, 301]] = 4.0
    verdict = make_verdict(BATCH * LENGTH, 0, "cpu")
    workspace = make_sampler_workspace(BATCH * LENGTH, VOCAB, 0, False, PLAN, "cpu")
    judge_logits(logits, inputs_for([DecodeSettings()] * BATCH), verdict, workspace, PLAN)
    assert set(verdict.proposal.tolist()) == {300}


def test_the_heads_pipeline_is_as_deep_as_shared_memory_allows() -> None:
    plan = HeadPlan()  # 40 KiB a stage for 32 rows of bf16
    assert fit_head_plan(plan, 32, 2, 227 * 1024).stages == 4
    assert fit_head_plan(plan, 32, 2, 99 * 1024).stages == 2
