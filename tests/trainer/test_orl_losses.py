"""The three losses: worked example, gates, caps, and the frozen model beside the trained one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trainer.orl.losses import (
    Said,
    anchor_loss,
    contraction,
    contraction_loss,
    judge_positions,
    mean_entropy,
    prediction_loss,
    uncertain,
)

MASK = 6


def _said(seed: int = 0, chunk: int = 3) -> tuple[Said, Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden, start = torch.randn(8, 4, generator=g), torch.randn(8, 4, generator=g)
    weight = torch.randn(7, 4, generator=g)
    targets = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1])
    hidden.requires_grad_()

    def head(h: Tensor) -> Tensor:
        return h @ weight.T

    return (
        judge_positions(hidden, start, targets, head, head, MASK, chunk),
        hidden,
        start,
        weight,
        targets,
    )


def test_contraction_gives_the_published_worked_example() -> None:
    value = contraction(torch.tensor(0.40), torch.tensor(0.36), 0.25)
    assert float(value) == pytest.approx(0.0036)
    assert float(contraction(torch.tensor(0.40), torch.tensor(0.30), 0.25)) == 0.0


def test_what_is_said_of_a_position_is_that_of_the_whole_distribution_without_the_mask() -> None:
    said, hidden, start, weight, targets = _said()
    logits = (hidden @ weight.T).detach().double()
    logits[:, MASK] = -math.inf
    begun = (start @ weight.T).double()
    begun[:, MASK] = -math.inf
    p, q = logits.softmax(-1), begun.softmax(-1)
    kept = [n for n in range(7) if n != MASK]
    entropy = -(p[:, kept] * p[:, kept].log()).sum(-1)
    divergence = (p[:, kept] * (p[:, kept].log() - q[:, kept].log())).sum(-1)
    torch.testing.assert_close(said.entropy.detach().double(), entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(said.divergence.detach().double(), divergence, atol=1e-5, rtol=1e-5)
    surprise = -p.gather(1, targets[:, None])[:, 0].log()
    torch.testing.assert_close(said.surprise.detach().double(), surprise, atol=1e-5, rtol=1e-5)
    assert torch.equal(said.start_best, q.argmax(-1))
    assert not said.start_entropy.requires_grad


def test_chunks_change_neither_the_loss_nor_its_gradient() -> None:
    grads = []
    for chunk in (3, 100):
        said, hidden, *_ = _said(chunk=chunk)
        (said.surprise.sum() + said.entropy.sum() + said.divergence.sum()).backward()
        grads.append(hidden.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_a_gate_opens_where_the_start_model_was_unsure_or_preferred_another_token() -> None:
    none = torch.zeros(3)
    best = torch.tensor([5, 5, 1])
    said = Said(none, none, none, torch.tensor([0.5, 0.01, 0.01]), best)
    targets = torch.tensor([5, 5, 5])
    assert uncertain(said, targets, "start", 0.1).tolist() == [True, False, False]
    assert uncertain(said, targets, "disagreement", 0.1).tolist() == [False, False, True]
    assert uncertain(said, targets, "either", 0.1).tolist() == [True, False, True]
    assert uncertain(said, targets, "all", 0.1).tolist() == [True, True, True]


def test_prediction_counts_gated_positions_and_the_anchor_the_others_up_to_its_cap() -> None:
    surprise, divergence = torch.tensor([2.0, 3.0]), torch.tensor([0.5, 9.0])
    said = Said(surprise, surprise, divergence, surprise, torch.tensor([0, 0]))
    gated = torch.tensor([True, False])
    weight = torch.tensor([0.25, 0.5])
    assert float(prediction_loss(said, gated, weight)) == pytest.approx(0.5)
    assert float(anchor_loss(said, gated, weight, 1.0)) == pytest.approx(0.5)


def test_contraction_pulls_on_the_next_state_alone() -> None:
    entropy = torch.tensor([0.4, 0.4, 0.39, 0.41], requires_grad=True)
    state = torch.tensor([0, 0, 1, 1])
    pairs = torch.tensor([[0], [1]])
    loss, h = contraction_loss(entropy * math.log(50), 50, state, 2, pairs, 0.25)
    assert h.tolist() == pytest.approx([0.4, 0.4])
    loss.sum().backward()
    assert entropy.grad is not None
    assert entropy.grad[:2].tolist() == [0.0, 0.0]
    assert (entropy.grad[2:] > 0).all()


def test_a_state_without_open_positions_has_no_entropy() -> None:
    h = mean_entropy(torch.tensor([1.0]), 10, torch.tensor([2]), 4)
    assert h.tolist() == pytest.approx([0.0, 0.0, 1.0 / math.log(10), 0.0])


def test_without_the_frozen_model_the_rest_is_said_alike() -> None:
    said, hidden, _, weight, targets = _said()
    alone = judge_positions(hidden, None, targets, lambda h: h @ weight.T, lambda h: h, MASK, 3)
    assert torch.equal(alone.surprise, said.surprise)
    assert torch.equal(alone.entropy, said.entropy)
    assert not alone.divergence.any()
    assert uncertain(alone, targets, "all", 0.1).all()
