"""Quantisation in training is the exporter's: the same values as the reference quantiser."""

from __future__ import annotations

import pytest
import torch
from pretrain_tiny import small_config, tiny_model

from engine.kernels.nvfp4 import (
    E2M1_VALUES,
    PackedWeight,
    dequantize,
    encode_e2m1,
    global_scale_of,
    quantize,
)
from trainer.demo_export import checkpoint_matrices, pack_tensors
from trainer.master import MasterWeights
from trainer.qat import PARTS, part_of, quantise_masters, through_nvfp4


def _hard_matrix(rows: int, cols: int) -> torch.Tensor:
    torch.manual_seed(rows)
    weight = torch.randn(rows, cols) * torch.logspace(-4, 1, rows).unsqueeze(1)
    weight[0] = 0.0
    weight[1, :16] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2)
    return weight


def test_a_matrix_goes_through_the_same_grid_as_in_the_exporter() -> None:
    weight = _hard_matrix(24, 64)
    expected = dequantize(quantize(weight), torch.float32)
    assert torch.equal(through_nvfp4(weight), expected)
    stack = torch.stack((weight, 3 * weight, torch.zeros_like(weight)))
    for got, one in zip(through_nvfp4(stack), stack, strict=True):
        assert torch.equal(got, dequantize(quantize(one), torch.float32))


def test_rounding_is_to_the_nearest_value_with_midpoints_to_the_even_code() -> None:
    values = torch.cat((torch.linspace(-7, 7, 2801), torch.tensor([0.25, -0.75, 2.5, -3.5, 5.0])))
    # One block of 16 whose largest value is 6 has scale 1, so values pass the grid unscaled.
    for value in values.tolist():
        block = torch.zeros(1, 16)
        block[0, 0], block[0, 1] = 6.0, max(-6.0, min(6.0, value))
        code = encode_e2m1(block)[0, 1]
        assert float(through_nvfp4(block)[0, 1]) == pytest.approx(E2M1_VALUES[int(code)], abs=1e-6)


def test_gate_and_up_share_their_second_level_scale() -> None:
    gate, up = torch.randn(1, 2, 16, 32), 5 * torch.randn(1, 2, 16, 32)
    names = ("layers.*.mlp.experts.gate", "layers.*.mlp.experts.up")
    out = quantise_masters(dict(zip(names, (gate, up), strict=True)), frozenset({"experts"}))
    for expert in range(2):
        pair = gate[0, expert], up[0, expert]
        scale = torch.maximum(*(global_scale_of(w) for w in pair))
        for name, one in zip(names, pair, strict=True):
            expected = dequantize(quantize(one, scale), torch.float32)
            assert torch.equal(out[name][0, expert], expected)


def test_what_training_computes_with_is_what_the_export_stores() -> None:
    config = small_config()
    model = tiny_model(config)
    master = MasterWeights(model.model, model.spec, config.optimiser, frozenset(config.quantised))
    masters = {name: m.to(torch.bfloat16).float() for name, m in master.masters().items()}
    trained = quantise_masters(masters, frozenset(config.quantised))
    stored = {name: m.to(torch.bfloat16) for name, m in masters.items()}
    parts = frozenset(config.quantised)
    tensors, plain = pack_tensors(stored, model.expert_bias, config.shape, parts)
    expected = {
        name: value
        for _, name, value in checkpoint_matrices(trained, model.expert_bias, config.shape)
    }
    packed = 0
    for name, value in expected.items():
        if f"{name}.weight_scale_2" in tensors:
            got = PackedWeight(
                tensors[f"{name}.weight"],
                tensors[f"{name}.weight_scale"],
                tensors[f"{name}.weight_scale_2"],
            )
            assert torch.equal(dequantize(got, torch.float32), value)
            packed += 1
    assert packed == 2 * 8 * 3 + 2 * 3 + 3 + 3 * 2
    assert set(plain) == {
        "model.word_embeddings",
        "lm_head",
        "model.layers.1.mlp.gate",
        "model.layers.2.mlp.gate",
    }


def test_routers_and_norms_are_never_quantised() -> None:
    assert part_of("layers.*.mlp.gate.weight") is None
    assert part_of("layers.*.input_layernorm.weight") is None
    assert part_of("layers.*.mlp.experts.gate") == "experts"
    assert part_of("layers.*.mlp.gate_proj.weight") == "dense_mlp"
    assert part_of("layers.*.mlp.shared_experts.gate_proj.weight") == "shared_experts"
    assert {"experts", "attention", "embedding", "head"} <= PARTS


def test_the_model_sees_quantised_weights_and_the_masters_stay_fine() -> None:
    config = small_config()
    model = tiny_model(config)
    master = MasterWeights(model.model, model.spec, config.optimiser, frozenset({"experts"}))
    before = {name: m.clone() for name, m in master.masters().items()}
    master.write(quantised=True)
    experts = model.decoder_layers[1].mlp.experts.down  # pyright: ignore
    assert not torch.equal(experts, before["layers.*.mlp.experts.down"][0])
    attention = model.decoder_layers[1].attention.dense.weight
    assert torch.equal(attention, before["layers.*.attention.dense.weight"][1])
    for name, value in master.masters().items():
        assert torch.equal(value, before[name])
