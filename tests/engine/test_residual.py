"""The residual input: its maths, when it counts, that a zero adapter changes nothing, and that
every runtime carries the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from dense_models import (
    MASK,
    canvases,
    dense_model,
    eager,
    eager_like_graph,
    graph,
    outcome,
    reply,
    request,
)
from folder_maker import edit_json, edit_tensors, refusal
from test_dense_checkpoints import write_folder
from tiny import load

from engine.models.layers import MaskAttend, block_causal_mask
from engine.models.llada2 import LLaDA2
from engine.models.llada2_spec import LLaDA2Spec
from engine.models.residual import ResidualInput, expected_embedding
from engine.models.residual_spec import ResidualSpec
from engine.types import DecodeSettings

ORL = {"kind": "orl", "top_k": 8, "adapter_size": 6}
RCD = {"kind": "rcd", "top_k": 0}
PROMPT = [3, 1, 4, 1, 5, 9]
SETTINGS = DecodeSettings(threshold=0.9, steps=8)


def with_residual(family: str, residual: dict[str, Any], scale: float):
    """A model whose adapter's last matrix has entries of this size."""
    model = dense_model(family, residual_input=residual)
    if residual["kind"] == "orl":
        fill(model.residual, scale)
    return model


def fill(residual: ResidualInput | None, scale: float) -> None:
    assert residual is not None
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in residual.named_parameters():
            if "proj" in name:
                size = scale if "down" in name else 0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * size)


def step_facts(model, **options: Any) -> tuple[list[list[int]], list[list[float]], list[int]]:
    runtime = eager(model, capacity=64, **options)
    row = request(runtime, PROMPT, 30, SETTINGS)
    marks = reply(runtime, row)
    confidences = [mark.step_taken.confidence.tolist() for mark in marks if mark.step_taken]
    return canvases(marks), [[c for c in row if c == c] for row in confidences], row.ids


@pytest.mark.parametrize("family", ["sdar", "fast_dllm", "dream", "llada"])
def test_a_zero_adapter_leaves_every_step_as_it_was_to_the_last_bit(family: str) -> None:
    assert step_facts(with_residual(family, ORL, 0.0)) == step_facts(dense_model(family))
    assert step_facts(with_residual(family, ORL, 0.4)) != step_facts(dense_model(family))


def test_the_first_step_of_a_block_carries_nothing() -> None:
    """Whatever the block before left in the buffers."""
    plain, carried = (
        step_facts(m)[0] for m in (dense_model("sdar"), with_residual("sdar", ORL, 3))
    )
    assert plain[0] == carried[0]
    model = with_residual("sdar", ORL, 3.0)
    runtime = eager(model, capacity=64)
    for _ in range(2):  # the second reply begins with the first one's last residual
        row = request(runtime, PROMPT, 12, SETTINGS)
        marks = reply(runtime, row)
        assert canvases(marks)[0] == plain[0]


@pytest.mark.parametrize("residual", [ORL, RCD])
def test_a_second_step_sees_what_the_formulas_say(residual: dict[str, Any]) -> None:
    """Against the two forwards written out: one block of SDAR, no cache."""
    model = with_residual("sdar", residual, 0.7)
    runtime = eager(model, capacity=64)
    settings = DecodeSettings(threshold=1.0, steps=4)
    row = request(runtime, PROMPT, 2, settings)
    marks = reply(runtime, row)
    ids = torch.tensor([[*PROMPT, MASK, MASK]])
    positions = torch.arange(8).unsqueeze(0)
    attend = MaskAttend(block_causal_mask(positions, 4))

    def look(embeds: torch.Tensor) -> torch.Tensor:
        logits = model.logits(model(embeds, positions, attend))[0]
        logits[:, MASK] = float("-inf")
        return logits

    with torch.inference_mode():
        logits = look(model.embed(ids))
        p = logits.softmax(-1)
        taken = 6 if p[6].max() > p[7].max() else 7
        ids[0, taken] = int(p[taken].argmax())
        (other,) = {6, 7} - {taken}
        kept = p[other]
        if residual["kind"] == "orl":
            best = kept.topk(8)
            z = (best.values / best.values.sum()) @ model.embedding[best.indices]
        else:
            z = kept @ model.embedding
        embeds = model.embed(ids)
        e = embeds[0, other]
        if residual["kind"] == "orl":
            r = model.residual
            n = r.norm(z)
            added = r.down_proj(torch.nn.functional.silu(r.gate_proj(n)) * r.up_proj(n))
            added = added * min(1.0, 0.5 * float(e.norm() / added.norm()))
            embeds[0, other] = e + added
        else:
            doubt = -(kept[kept > 0] * kept[kept > 0].log()).sum() / torch.log(torch.tensor(64.0))
            embeds[0, other] = (1 - doubt) * e + doubt * z
        wanted = look(embeds).softmax(-1)
    step = marks[1].step_taken
    assert step is not None
    assert int(step.ids[other - 4]) == int(wanted[other].argmax())
    assert abs(float(step.confidence[other - 4]) - float(wanted[other].max())) < 1e-5


@pytest.mark.parametrize("residual", [ORL, RCD])
@pytest.mark.parametrize("family", ["sdar", "fast_dllm", "dream"])
def test_one_graph_per_reply_carries_the_same(family: str, residual: dict[str, Any]) -> None:
    model = with_residual(family, residual, 0.5)
    runtimes = eager_like_graph(model, capacity=64), graph(model, capacity=64)
    for limit, temperature in ((20, 0.0), (9, 0.8), (30, 0.0)):
        settings = DecodeSettings(threshold=0.8, steps=8, temperature=temperature, seed=4)
        rows = [request(runtime, PROMPT, limit, settings) for runtime in runtimes]
        seen = [canvases(reply(r, row)) for r, row in zip(runtimes, rows, strict=True)]
        assert seen[0] == seen[1]
        assert outcome(rows[0]) == outcome(rows[1])


def llada2(residual: dict[str, Any] | None, scale: float) -> LLaDA2:
    plain = small.small_model("llada2.1")
    config = small.CONFIG | ({"residual_input": residual} if residual else {})
    model = LLaDA2(LLaDA2Spec.from_config(config, {"decoding": "llada2.1"}))
    model.load_state_dict(plain.state_dict(), strict=False)
    if residual:
        fill(model.residual, scale)
    return model.eval().requires_grad_(False)


def test_llada2_carries_it_too_and_takes_no_step_ahead() -> None:
    found = []
    for model in (llada2(None, 0), llada2(ORL, 0.0), llada2(ORL, 0.8)):
        rows = []
        for runtime in (small.eager_like_graph(model), small.graph_for(model, ahead=True)):
            assert runtime.pieces.ahead == (
                model.residual is None
                and runtime.pieces.ring.slots > 1
                and isinstance(runtime, small.GraphRuntime)
            )
            row = small.request(PROMPT, 30, DecodeSettings(threshold=0.8, editing_threshold=0.5))
            small.reply(runtime, row)
            rows.append((row.ids, row.reason))
        assert rows[0] == rows[1]
        found.append(rows[0])
    assert found[0] == found[1] != found[2]


def test_the_adapters_output_is_capped_and_autograd_reaches_it() -> None:
    spec = ResidualSpec("orl", norm_cap=0.25, adapter_size=4)
    residual = ResidualInput(spec, 16, 1e-6)
    fill(residual, 50.0)
    embeds, z = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    out = residual(embeds, z, torch.zeros(2, 3, 1))
    share = (out - embeds).norm(dim=-1) / embeds.norm(dim=-1)
    torch.testing.assert_close(share, torch.full((2, 3), 0.25), atol=1e-5, rtol=0)
    out.sum().backward()
    assert residual.down_proj.weight.grad is not None
    assert residual.down_proj.weight.grad.abs().sum() > 0


def test_the_expectation_over_the_best_tokens_nears_that_over_all() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 2, 50, generator=generator) * 3
    scores[..., 7] = float("-inf")
    weight = torch.randn(50, 8, generator=generator)
    whole, doubt = expected_embedding(scores, scores.logsumexp(-1), weight, 0)
    torch.testing.assert_close(whole, scores.softmax(-1) @ weight)
    distances = [
        float((expected_embedding(scores, scores.logsumexp(-1), weight, k)[0] - whole).norm())
        for k in (2, 8, 30, 49)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-5
    uniform = torch.zeros(1, 1, 50)
    assert float(expected_embedding(uniform, uniform.logsumexp(-1), weight, 4)[1]) == pytest.approx(
        1
    )
    assert 0 < float(doubt.min()) < float(doubt.max()) < 1


def test_a_checkpoint_brings_its_adapter(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "sdar", residual_input=ORL)
    loaded = load(folder)
    assert loaded.residual is not None
    assert loaded.residual.spec == ResidualSpec("orl", 8, 0.5, 6)
    written = dense_model("sdar", residual_input=ORL).residual
    assert written is not None
    for name, weight in written.named_parameters():
        assert torch.equal(loaded.residual.get_parameter(name), weight)
    edit_tensors(folder, lambda tensors: tensors.pop("residual.up_proj.weight"))
    assert refusal(folder).item == "residual.up_proj.weight"
    edit_json(folder, "config.json", residual_input=...)
    assert refusal(folder).code == "checkpoint.unexpected_tensor"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"kind": "mystery"}, "mystery"),
        ({"kind": "orl", "warmup": 3}, "warmup"),
        ({"kind": "rcd", "adapter_size": 3}, "adapter_size"),
        ({"kind": "orl", "norm_cap": 0}, "norm_cap"),
        ("orl", "object"),
    ],
)
def test_a_residual_that_is_not_understood_is_refused(
    tmp_path: Path, value: object, words: str
) -> None:
    folder = write_folder(tmp_path / "model", "sdar")
    edit_json(folder, "config.json", residual_input=value)
    error = refusal(folder)
    assert words in error.message
    assert "residual_input" in json.dumps([error.message, error.item])
