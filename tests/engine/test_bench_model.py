"""Random models of `bench`: finite in every form, silent about stops, evenly routed when asked."""

from __future__ import annotations

import pytest
import torch
from small import CPU

from engine.bench.bytes_moved import Forms, even_experts
from engine.bench.even_routing import Noise, counting, routed
from engine.bench.random_model import build_random, check_finite
from engine.bench.shapes import shape_of
from engine.errors import RuntimeFailure
from engine.models.experts import Experts
from engine.models.layers import Linear, MaskAttend, block_causal_mask

PACKED, DENSE = Forms(4), Forms(4, experts_packed=False)
ALL_PACKED = Forms(4, linears_packed=True)


def tiny(forms: Forms = DENSE, kernels: bool = False, name: str = "tiny"):
    spec = shape_of(name).spec
    return build_random(spec, CPU, torch.float32, forms, kernels=kernels, interpret=kernels)


@pytest.mark.parametrize("forms", [PACKED, DENSE, ALL_PACKED], ids=lambda f: f.words)
@pytest.mark.parametrize("name", ["tiny", "tiny-dense"])
def test_activations_keep_their_size(name: str, forms: Forms) -> None:
    model = tiny(forms, name=name).model
    ids = torch.arange(32).unsqueeze(0)
    attend = MaskAttend(block_causal_mask(ids, model.spec.block_length))
    hidden = model(model.embed(ids), ids, attend)
    logits = model.logits(hidden)
    assert 0.2 < logits.std() < 20
    stops = list(model.spec.stop_ids)
    assert logits[..., stops].abs().max() == 0
    assert not bool((logits.argmax(-1) == stops[0]).any())


def test_weights_have_the_form_that_was_asked_for() -> None:
    model = tiny(ALL_PACKED).model
    assert all(m.packed is not None for m in model.modules() if isinstance(m, Linear))
    model = tiny(PACKED).model
    assert all(m.packed is None for m in model.modules() if isinstance(m, Linear))
    assert not any(list(m.parameters()) for m in model.modules() if isinstance(m, Experts))


def test_a_model_that_is_not_finite_is_refused() -> None:
    model = tiny().model
    model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(RuntimeFailure) as caught:
        check_finite(model)
    assert caught.value.code == "bench.nonfinite"


@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
def test_even_routing_meets_as_many_experts_as_chance_and_can_be_undone(kernels: bool) -> None:
    model = tiny(PACKED, kernels).model
    same = torch.full((1, 8), 5)  # one token eight times: two experts if its own router says
    positions = torch.zeros(1, 8, dtype=torch.int64)

    noise = Noise()

    def met(routing) -> float:
        with routed(model, routing, noise), counting(model) as count:
            model(model.embed(same), positions, MaskAttend(None))
        assert list(count.met) == [8]
        assert len(count.met[8]) == 2  # layers of experts
        return count.mean(8)

    assert met("own") == 2
    assert met("uniform") == pytest.approx(even_experts(8, 2, 8), abs=1.0)
    assert met("own") == 2


def test_noise_stays_where_a_captured_graph_reads_it() -> None:
    noise, x = Noise(), torch.zeros(8, 32)
    kept = noise.like(x)
    assert kept.std() > 0.8
    assert noise.like(torch.ones(8, 32)) is kept
    assert noise.like(torch.zeros(16, 32)) is not kept
    again = Noise().like(x)
    assert torch.equal(again, kept)


def test_kernels_and_plain_torch_route_alike_under_noise() -> None:
    ids = torch.arange(8).unsqueeze(0)
    found = []
    for kernels in (False, True):
        model = tiny(PACKED, kernels).model
        with routed(model, "uniform", Noise()):
            found.append(model(model.embed(ids), ids, MaskAttend(None)))
    torch.testing.assert_close(found[0], found[1], atol=2e-4, rtol=2e-4)
