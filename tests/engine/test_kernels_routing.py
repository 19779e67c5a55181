"""Routing kernels choose what the reference chooses, and sort without the host."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.routing import (
    RouteRule,
    make_routing,
    route,
    route_reference,
    sort_reference,
)

RULES = {
    "mini": RouteRule(256, 8, n_group=8, topk_group=4, scale=2.5),
    "tiny": RouteRule(8, 2, n_group=4, topk_group=2, scale=2.5),
    "ungrouped": RouteRule(16, 4, normalise=False),
    "pool": RouteRule(64, 4, capacity=12, block_length=8, scale=2.5),
}


@pytest.mark.parametrize("name", RULES)
def test_chosen_experts_and_their_order_are_the_references(name: str) -> None:
    rule = RULES[name]
    torch.manual_seed(1)
    tokens = 16 if rule.experts < 256 else 5
    logits, bias = torch.randn(tokens, rule.experts), torch.randn(rule.experts) * 0.3
    got, want = make_routing(tokens, rule, "cpu"), make_routing(tokens, rule, "cpu")
    ids, weights = route_reference(logits, bias, rule)
    sort_reference(ids, want)
    route(logits, bias, rule, got)
    assert torch.equal(got.ids.long(), ids)
    torch.testing.assert_close(got.weights, weights, rtol=1e-6, atol=1e-7)
    assert int(got.active) == int(want.active)
    listed = int(want.active)
    assert torch.equal(got.slots[:listed], want.slots[:listed])
    assert torch.equal(got.pair_token, want.pair_token)
    assert torch.equal(got.pair_place, want.pair_place)


def test_the_bias_moves_the_choice_but_not_the_weights() -> None:
    rule = RouteRule(8, 1, normalise=False)
    logits = torch.zeros(1, 8)
    logits[0, 3] = 2.0
    bias = torch.zeros(8)
    bias[5] = 1.0
    routing = make_routing(1, rule, "cpu")
    route(logits, bias, rule, routing)
    assert int(routing.ids[0, 0]) == 5
    assert float(routing.weights[0, 0]) == pytest.approx(0.5)


def test_equal_scores_fall_to_the_lower_expert() -> None:
    rule = RouteRule(16, 4, n_group=4, topk_group=2)
    routing = make_routing(3, rule, "cpu")
    route(torch.zeros(3, 16), torch.zeros(16), rule, routing)
    assert routing.ids.tolist() == [[0, 1, 2, 3]] * 3


def test_a_pool_is_never_shared_across_a_block_border() -> None:
    """Two blocks with opposite favourites: each token stays within its own block's pool."""
    rule = RouteRule(8, 2, capacity=2, block_length=4)
    logits = torch.full((8, 8), -4.0)
    logits[0, 0] = logits[1, 1] = logits[4, 6] = logits[5, 7] = 4.0
    routing = make_routing(8, rule, "cpu")
    route(logits, torch.zeros(8), rule, routing)
    assert all(set(row) == {0, 1} for row in routing.ids[:4].tolist())
    assert all(set(row) == {6, 7} for row in routing.ids[4:].tolist())


def test_odd_expert_counts_are_refused() -> None:
    rule = RouteRule(12, 2)
    with pytest.raises(ValueError, match="powers of two"):
        route(torch.zeros(1, 12), torch.zeros(12), rule, make_routing(1, rule, "cpu"))
