"""How the expert kernel is cut for a card: what fits, and what falls back."""

from __future__ import annotations

import pytest

from engine.kernels.cuda_moe import ExpertOptions, RingSizes, fit_options, route_defines
from engine.kernels.routing import RouteRule
from engine.runtime.attention import plan_attention

H200, RTX_5090 = 227 * 1024, 99 * 1024  # shared memory a block may have


def test_the_released_shape_fills_an_h200s_shared_memory() -> None:
    options = fit_options(2048, 512, ExpertOptions(groups=3), H200)
    assert options == ExpertOptions(ring=True, groups=3, stages=11)
    used = RingSizes.of(2048, 512, 1).total(options.groups, options.stages)
    assert H200 - 18 * 1024 < used <= H200


def test_less_shared_memory_means_fewer_groups() -> None:
    options = fit_options(2048, 512, ExpertOptions(groups=3), RTX_5090)
    assert options.ring
    assert options.stages >= 2 * options.groups


def test_a_ring_that_does_not_fit_gives_the_direct_version() -> None:
    assert not fit_options(2048, 512, ExpertOptions(), 20 * 1024).ring
    assert not fit_options(512, 2048, ExpertOptions(), H200).ring


def test_asking_for_fewer_stages_is_honoured() -> None:
    assert fit_options(2048, 512, ExpertOptions(groups=2, stages=6), H200).stages == 6


def test_shapes_the_routing_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(ValueError, match="does not take"):
        route_defines(RouteRule(24, 2), 128)
    with pytest.raises(ValueError, match="must divide 32"):
        route_defines(RouteRule(32, 2, capacity=4, block_length=5), 128)


@pytest.mark.parametrize(("tokens", "splits"), [(32, 4), (64, 2)])
def test_few_queries_are_cut_into_many_small_programs(tokens: int, splits: int) -> None:
    plan = plan_attention(tokens, 4, 128, 2, H200)
    assert (plan.tokens, plan.heads, plan.splits, plan.stages) == (16, 1, splits, 3)


def test_attention_fits_a_card_with_less_shared_memory() -> None:
    plan = plan_attention(32, 4, 128, 2, 99 << 10)
    assert plan.stages * plan.columns * 128 * 4 < 99 << 10
    assert plan.stages >= 2


def test_many_queries_share_keys_between_the_heads_of_a_group() -> None:
    assert plan_attention(256, 4, 128, 2, H200).heads == 4
    assert plan_attention(256, 6, 64, 2, H200).heads == 2
