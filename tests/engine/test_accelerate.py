"""A model on its kernels against the same model in plain torch (Triton's interpreter)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from small import BLOCK, CONFIG, CPU, eager_for, outcome, reply, request, small_model

from engine.checkpoint import open_checkpoint
from engine.kernels.nvfp4 import PackedExperts, quantize
from engine.loading import Placement, load_model
from engine.models.accelerate import use_kernels
from engine.models.layers import Linear, MaskAttend, block_causal_mask
from engine.models.llada2 import LLaDA2, SparseMLP
from engine.models.llada2_spec import LLaDA2Spec
from engine.runtime.attention import TritonAttention
from engine.types import DecodeSettings


def packed_model(decoding: str = "llada2.0") -> LLaDA2:
    """The small model with its routed experts in NVFP4."""
    model = small_model(decoding)
    for layer in model.layers:
        mlp = layer.mlp
        if isinstance(mlp, SparseMLP):
            stacks = []
            for stack in (mlp.experts.gate, mlp.experts.up, mlp.experts.down):
                assert isinstance(stack, torch.Tensor)
                each = [quantize(matrix) for matrix in stack]
                stacks.append(
                    PackedExperts(
                        torch.stack([w.codes for w in each]),
                        torch.stack([w.scales for w in each]),
                        torch.stack([w.global_scale for w in each]),
                    )
                )
            mlp.experts.pack(*stacks)
    return model


@pytest.mark.parametrize("decoding", ["llada2.0", "llada2.2"])
def test_hidden_states_are_the_same_with_kernels(decoding: str) -> None:
    plain = packed_model(decoding)
    fast = copy.deepcopy(plain)
    report = use_kernels(fast, interpret=True)
    assert (report.used, report.experts) == (True, "triton")
    ids = torch.randint(0, 60, (2, 3 * BLOCK), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(3 * BLOCK).expand(2, -1)
    attend = MaskAttend(block_causal_mask(positions, BLOCK))
    wanted = plain(plain.embed(ids), positions, attend)
    found = fast(fast.embed(ids), positions, attend)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def test_a_reply_is_the_same_with_kernels() -> None:
    plain = packed_model()
    fast = copy.deepcopy(plain)
    use_kernels(fast, interpret=True)
    settings = DecodeSettings(threshold=0.6, steps=4)
    rows = []
    for model in (plain, fast):
        runtime = eager_for(model, exact=False)
        if model is fast:
            attention = TritonAttention(model.spec.rotary_dim, model.spec.rope_theta)
            runtime.pieces.program.cache.attention = attention
        row = request([5, 6, 7] * 5, 12, settings)
        reply(runtime, row)
        rows.append(outcome(row))
    assert rows[0] == rows[1]


def test_packed_weights_are_not_kept_twice() -> None:
    model = packed_model()
    use_kernels(model, interpret=True)
    for layer in model.layers:
        if isinstance(layer.mlp, SparseMLP):
            assert not hasattr(layer.mlp.experts, "gate")


def test_packed_layers_outside_the_experts_are_expanded_in_a_kernel() -> None:
    plain = packed_model()
    for module in plain.modules():
        if isinstance(module, Linear):
            module.pack(quantize(module.weight))
    fast = copy.deepcopy(plain)
    report = use_kernels(fast, interpret=True)
    assert "Other NVFP4 layers" in " ".join(report.sentences)
    assert all(m.compute is not None for m in fast.modules() if isinstance(m, Linear))
    ids = torch.arange(2 * BLOCK).unsqueeze(0)
    positions = torch.arange(2 * BLOCK).unsqueeze(0)
    attend = MaskAttend(block_causal_mask(positions, BLOCK))
    wanted = plain.logits(plain(plain.embed(ids), positions, attend))
    found = fast.logits(fast(fast.embed(ids), positions, attend))
    torch.testing.assert_close(found, wanted, atol=5e-5, rtol=5e-5)


def test_a_model_in_float32_keeps_plain_torch_and_says_so() -> None:
    model = packed_model()
    report = use_kernels(model)
    assert not report.used
    assert "bfloat16" in report.sentences[0]
    assert all(layer.mlp.compute is None for layer in model.layers)


def test_a_model_on_the_cpu_has_no_kernels(tiny_folder: Path) -> None:
    checkpoint = open_checkpoint(tiny_folder)
    model, report = load_model(checkpoint, Placement(CPU, torch.float32, True, "test"))
    checkpoint.release()
    assert not report.used
    assert all(layer.mlp.compute is None for layer in model.layers)


def test_dense_experts_run_in_grouped_products() -> None:
    plain = small_model()
    fast = copy.deepcopy(plain)
    report = use_kernels(fast, interpret=True)
    assert "bfloat16" in " ".join(report.sentences)
    ids = torch.arange(2 * BLOCK).unsqueeze(0)
    positions = torch.arange(2 * BLOCK).unsqueeze(0)
    attend = MaskAttend(block_causal_mask(positions, BLOCK))
    wanted = plain(plain.embed(ids), positions, attend)
    found = fast(fast.embed(ids), positions, attend)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def test_a_number_of_experts_that_no_kernel_routes_keeps_plain_torch_and_says_so() -> None:
    spec = LLaDA2Spec.from_config(CONFIG | {"num_experts": 6}, {"decoding": "llada2.0"})
    model = LLaDA2(spec)
    report = use_kernels(model, interpret=True)
    assert "6 experts" in " ".join(report.sentences)
    assert (report.used, report.experts) == (True, "torch")
    assert all(
        layer.mlp.compute is None for layer in model.layers if isinstance(layer.mlp, SparseMLP)
    )
