"""The dense backbone on kernels (Triton's interpreter), and with packed weights, against plain
torch."""

from __future__ import annotations

import copy

import pytest
import torch
from dense_models import dense_model, eager, outcome, reply, request

from engine.kernels.nvfp4 import dequantize, quantize
from engine.models.accelerate import use_kernels
from engine.models.layers import Linear, MaskAttend, block_causal_mask
from engine.runtime.attention import TritonAttention
from engine.types import DecodeSettings

POSITIONS = torch.arange(24).expand(2, -1)
ATTEND = MaskAttend(block_causal_mask(POSITIONS, 4))
IDS = torch.randint(0, 60, (2, 24), generator=torch.Generator().manual_seed(1))


def hidden(model) -> torch.Tensor:
    with torch.inference_mode():
        return model(model.embed(IDS), POSITIONS, ATTEND)


@pytest.mark.parametrize("family", ["sdar", "fast_dllm", "llada"])
def test_hidden_states_are_the_same_with_kernels(family: str) -> None:
    plain = dense_model(family)
    fast = copy.deepcopy(plain)
    report = use_kernels(fast, interpret=True)
    assert (report.used, report.experts) == (True, "torch")
    assert fast.layers[0].self_attn.compute is not None
    torch.testing.assert_close(hidden(fast), hidden(plain), atol=2e-5, rtol=2e-5)


def test_packed_projections_keep_scales_of_their_own() -> None:
    packed, dense = dense_model("sdar"), dense_model("sdar")
    for module in packed.layers.modules():
        if isinstance(module, Linear):
            module.pack(quantize(module.weight.detach()))
    for name, module in dense.layers.named_modules():
        if isinstance(module, Linear):
            weight = packed.layers.get_submodule(name).packed
            module.weight = torch.nn.Parameter(dequantize(weight, torch.float32))
    torch.testing.assert_close(hidden(packed), hidden(dense), atol=1e-6, rtol=0)
    use_kernels(packed, interpret=True)
    assert packed.layers[0].self_attn.compute is None
    torch.testing.assert_close(hidden(packed), hidden(dense), atol=2e-5, rtol=2e-5)


def test_a_reply_is_the_same_with_kernels() -> None:
    plain = dense_model("sdar", num_hidden_layers=1)
    fast = copy.deepcopy(plain)
    use_kernels(fast, interpret=True)
    rows = []
    for model in (plain, fast):
        runtime = eager(model, capacity=16)
        if model is fast:
            runtime.program.cache.attention = TritonAttention(16, model.spec.rope_theta)
        row = request(runtime, [3, 1, 4, 1, 5], 8, DecodeSettings(threshold=0.6, steps=4))
        reply(runtime, row)
        rows.append(outcome(row))
    assert rows[0] == rows[1]
