"""Muon on stacks: orthogonal updates, the same for a stack as for its matrices one by one."""

from __future__ import annotations

import pytest
import torch

from trainer.muon import COEFFICIENTS, ROUNDS, matched_scale, muon_step, orthogonalise


def _one_by_one(matrix: torch.Tensor) -> torch.Tensor:
    """The iteration in float64 on the singular values alone: U f(S) V^T."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / s.square().sum().sqrt()
    for _ in range(ROUNDS):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


@pytest.mark.parametrize("shape", [(2, 3, 24, 40), (5, 40, 24), (16, 16)])
def test_a_stack_is_orthogonalised_like_each_of_its_matrices(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    stack = torch.randn(shape)
    out = orthogonalise(stack)
    assert out.shape == stack.shape
    for got, matrix in zip(
        out.reshape(-1, *shape[-2:]), stack.reshape(-1, *shape[-2:]), strict=True
    ):
        torch.testing.assert_close(got.double(), _one_by_one(matrix), atol=2e-4, rtol=2e-3)


def test_singular_values_come_close_to_one() -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(4, 32, 96)))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_a_zero_matrix_stays_zero() -> None:
    assert not orthogonalise(torch.zeros(2, 8, 16)).any()


def test_the_update_has_the_size_of_adam_and_follows_the_gradient() -> None:
    torch.manual_seed(2)
    master = torch.zeros(3, 64, 128)
    grad = torch.randn_like(master)
    muon_step(master, torch.zeros_like(master), grad, lr=0.01, weight_decay=0.0, beta=0.95)
    assert float(master.square().mean().sqrt()) == pytest.approx(0.01 * 0.2, rel=0.2)
    assert float((master * grad).sum()) < 0.0
    assert matched_scale(64, 128) == pytest.approx(0.2 * 128**0.5)


def test_weight_decay_is_decoupled_and_momentum_is_a_running_mean() -> None:
    master, momentum = torch.ones(1, 8, 8), torch.full((1, 8, 8), 2.0)
    muon_step(master, momentum, torch.zeros(1, 8, 8), lr=0.1, weight_decay=0.5, beta=0.75)
    torch.testing.assert_close(momentum, torch.full((1, 8, 8), 1.5))
    # The update is a rank-one direction of norm about 1 spread over 64 entries.
    torch.testing.assert_close(master, torch.full((1, 8, 8), 0.95), atol=0.02, rtol=0)


def test_a_falling_rate_brings_a_linear_map_to_its_target() -> None:
    torch.manual_seed(3)
    target = torch.randn(16, 16)
    x = torch.randn(256, 16) * torch.logspace(-1, 1, 16)  # badly conditioned
    weight = torch.zeros(1, 16, 16)
    momentum = torch.zeros_like(weight)
    before = float((x @ target.t()).square().mean())
    for step in range(300):
        error = x @ weight[0].t() - x @ target.t()
        grad = (error.t() @ x / len(x)).unsqueeze(0)
        rate = 0.2 * (1 - step / 300)
        muon_step(weight, momentum, grad, lr=rate, weight_decay=0.0, beta=0.9)
    after = float((x @ (weight[0] - target).t()).square().mean())
    assert after < 1e-3 * before
