"""DiffusionGemma against transformers: its classes with random weights, and values and draws it
recorded (conformance fixtures, section 3)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gemma_models import Passes, eager, graph, per_step, reply, request
from safetensors.torch import load_file
from tiny import load
from torch import Tensor

from engine.decoding import judge
from engine.models.noise_canvas import NoiseCanvas
from engine.runtime import renoising
from engine.types import DecodeSettings, StepTaken, TokenState

TOLERANCE, CARRIED = 1e-3, 3e-3  # README of the fixtures
ROOT = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures" / "diffusion-gemma-tiny"
FORWARD = load_file(ROOT / "expected" / "forward.safetensors")
CASES = json.loads((ROOT / "expected" / "generate.json").read_text())["cases"]
LOGITS = load_file(ROOT / "expected" / "generate_logits.safetensors")


@pytest.fixture(scope="module")
def model():
    return load(ROOT)


def close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=0)


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("chunk", [32, 5])
def test_both_passes_give_the_recorded_values(model, case: int, chunk: int) -> None:
    """chunk: positions of one encoder forward; the longest prefix is five of them."""
    e = {
        n.removeprefix(f"case{case}."): t
        for n, t in FORWARD.items()
        if n.startswith(f"case{case}.")
    }
    passes, prefix = Passes(model, chunk=max(chunk, 16)), e["prefix_ids"]
    pieces = zip(prefix.split(chunk), range(0, len(prefix), chunk), strict=True)
    hidden = torch.cat([passes.encode(ids, start) for ids, start in pieces])
    close(hidden, e["encoder_last_hidden"])
    close(model.logits(hidden), e["encoder_logits"])
    start, soft = len(prefix), e["self_conditioning_logits"]
    close(passes.decode(e["canvas_ids"], start), e["decoder_logits"])
    close(passes.decode(e["canvas_ids"], start, soft), e["decoder_logits_sc"])
    close(passes.encode(e["committed_ids"], start), e["encoder_last_hidden_committed"])
    after = start + len(e["committed_ids"])
    close(passes.decode(e["canvas2_ids"], after, soft), e["decoder_logits_canvas2_sc"])


@pytest.mark.parametrize("case", [0, 2])
def test_what_is_kept_is_what_the_reference_keeps(model, case: int) -> None:
    passes, prefix = Passes(model), FORWARD[f"case{case}.prefix_ids"]
    passes.encode(prefix)
    spec = model.spec
    for layer in range(spec.num_layers):
        wanted = [FORWARD[f"case{case}.cache.layer{layer}.{what}"] for what in ("keys", "values")]
        count = wanted[0].shape[1]
        window = spec.kind_of(layer).window
        assert count == (len(prefix) if window is None else min(len(prefix), window - 1))
        slots = torch.arange(len(prefix) - count, len(prefix)) % passes.cache.ring_slots
        for store, values in zip(passes.cache.of(layer), wanted, strict=True):
            close(store[0][:, slots], values, 1e-4)


def settings_of(args: dict[str, Any]) -> DecodeSettings:
    noise = NoiseCanvas(
        args["entropy_bound"],
        args["t_min"],
        args["t_max"],
        args["stability_threshold"],
        args["confidence_threshold"],
    )
    return DecodeSettings(steps=args["max_denoising_steps"], temperature=1.0, noise=noise)


class Replay:
    """Recorded draws in the order of steps, in place of the engine's own."""

    def __init__(self, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.noise: list[list[int]] = []
        self.drawn: list[list[int]] = []
        for canvas in case["canvases"]:
            fresh = [step["fresh_random"] for step in canvas["steps"]]
            self.noise += [canvas["init_canvas"], *fresh[:-1]]
            self.drawn += [step["sampled_y"] for step in canvas["steps"]]
        self.step = -1
        monkeypatch.setattr(renoising, "noise", self._noise)
        monkeypatch.setattr(judge, "_inverse_cdf", self._draw)

    def _noise(self, *_: Any) -> Tensor:
        self.step += 1
        return torch.tensor([self.noise[self.step]])

    def _draw(self, *_: Any) -> Tensor:
        return torch.tensor([self.drawn[self.step]])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_reply_with_the_recorded_draws_takes_the_recorded_steps(
    model, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    args, length = case["args"], model.spec.block_length
    limit = -(-args["max_new_tokens"] // length) * length  # the reference writes whole canvases
    row = request(model, case["prompt_ids"], limit, settings_of(args), stops=args["eos_token_id"])
    runtime = eager(model, capacity=96)
    Replay(case, monkeypatch)
    logits: list[Tensor] = []
    whole_head = model.logits
    monkeypatch.setattr(
        model, "logits", lambda hidden: logits.append(whole_head(hidden)) or logits[-1]
    )
    taken = [mark.step_taken for mark in reply(runtime, row)]
    wanted = [(canvas, step) for canvas in case["canvases"] for step in canvas["steps"]]
    assert len(taken) == len(wanted)
    for number, (step, (canvas, expected)) in enumerate(zip(taken, wanted, strict=True)):
        assert step is not None
        _same_step(step, canvas, expected, expected is canvas["steps"][-1])
        name = f"{case['name']}.canvas{step.block}.step{step.step}.processed_logits"
        if name in LOGITS:
            close(logits[number][0] / expected["temperature"], LOGITS[name], CARRIED)
    answer = case["sequences"][len(case["prompt_ids"]) :]
    assert row.ids == answer[: len(row.ids)]
    assert all(token == args["pad_token_id"] for token in answer[len(row.ids) :])
    assert (row.commits, row.blocks) == (row.blocks - 1, len(case["canvases"]))
    assert row.forwards == len(wanted) + row.commits


def _same_step(
    step: StepTaken, canvas: dict[str, Any], expected: dict[str, Any], last: bool
) -> None:
    assert [step.block_start, step.block_start + len(step.ids) - 1] == canvas["position_ids"]
    close(torch.tensor(step.entropy), torch.tensor(expected["entropy"]))
    kept = step.state == TokenState.COMMITTED
    best, drawn = expected["argmax_canvas"], expected["sampled_y"]
    if last:  # the canvas is finished, and its best tokens stand on it
        assert kept.all()
        assert step.ids.tolist() == best == canvas["committed_argmax_canvas"]
        return
    assert kept.astype(int).tolist() == expected["accepted"]
    shown = [y if k else a for y, a, k in zip(drawn, best, kept, strict=True)]
    assert step.ids.tolist() == shown


def test_one_graph_per_reply_takes_the_steps_of_eager(model) -> None:
    prompt = CASES[0]["prompt_ids"]
    found = []
    for make in (lambda m, **o: eager(m, exact=False, **o), per_step, graph):
        runtime = make(model, capacity=96)
        settings = replace(settings_of(CASES[0]["args"]), seed=11)
        row = request(model, prompt, 40, settings)
        steps = [mark.step_taken for mark in reply(runtime, row)]
        found.append((row.ids, row.forwards, row.reason, [s.ids.tolist() for s in steps if s]))
    assert found[0] == found[1] == found[2]
    assert len(found[0][0]) == 40
