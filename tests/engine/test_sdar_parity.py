"""SDAR against values from the published reference code (conformance fixtures, section 2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dense_models import eager, eager_like_graph, graph
from safetensors.torch import load_file
from tiny import load

from engine.decoding.rules import RuleOptions
from engine.models.layers import MaskAttend, block_causal_mask
from engine.runtime.rows import Row
from engine.types import DecodeSettings

TOLERANCE = 1e-3
ROOT = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures" / "sdar-tiny"
CASES = json.loads((ROOT / "expected" / "decode.json").read_text())["cases"]


@pytest.fixture(scope="module")
def model():
    return load(ROOT)


@pytest.mark.parametrize("case", range(3))
def test_logits_match_the_reference(model, case: int) -> None:
    expected = load_file(ROOT / "expected" / "logits.safetensors")
    ids = expected[f"input{case}.input_ids"].unsqueeze(0)
    positions = torch.arange(ids.shape[1]).unsqueeze(0)
    with torch.inference_mode():
        attend = MaskAttend(block_causal_mask(positions, model.spec.block_length))
        logits = model.logits(model(model.embed(ids), positions, attend))[0]
    torch.testing.assert_close(logits, expected[f"input{case}.logits"], atol=TOLERANCE, rtol=0)


def run(model, case: dict, make) -> tuple[Row, list]:
    args = case["args"]
    stops = args["stopping_criteria_idx"]
    options = RuleOptions(
        suppress_mask=case["mask_logit_suppressed"],
        stop_inside_block=False,
        stop_after_block=stops is not None,
    )
    # A threshold of 1 is the static rule: no confidence is above it.
    settings = DecodeSettings(
        threshold=args.get("confidence_threshold", 1.0), steps=args["denoising_steps"]
    )
    runtime = make(model, capacity=64, options=options)
    # The reference fills whole blocks: its canvas ends at a block's border.
    limit = -(-(len(case["prompt_ids"]) + args["gen_length"]) // 4) * 4 - len(case["prompt_ids"])
    row = Row(case["prompt_ids"], limit, settings, 4, frozenset(stops or [-1]))
    runtime.prefill([row])
    return row, [mark.step_taken for mark in runtime.run([row])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_decoding_matches_the_reference_step_for_step(model, case: dict) -> None:
    row, steps = run(model, case, eager)
    assert len(steps) == len(case["steps"]) == row.forwards
    mask = model.spec.mask_token_id
    for got, wanted in zip(steps, case["steps"], strict=True):
        start = got.block_start
        assert (start // 4, got.step) == (wanted["block"], wanted["step"])
        tokens = [mask if s <= 1 else int(t) for t, s in zip(got.ids, got.state, strict=True)]
        assert tokens == wanted["tokens"]
        for position, confidence in zip(wanted["committed"], wanted["committed_conf"], strict=True):
            assert abs(got.confidence[position - start] - confidence) < TOLERANCE
    prompt = len(case["prompt_ids"])
    wanted_ids = case["canvas"][prompt:]
    assert row.ids == wanted_ids[: len(row.ids)]
    if row.reason == "length":
        assert row.ids == wanted_ids


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case["name"])
def test_a_whole_reply_as_one_graph_takes_the_same_steps(model, case: dict) -> None:
    (row, steps), (other, graph_steps) = (run(model, case, m) for m in (eager_like_graph, graph))
    assert [step.ids.tolist() for step in steps] == [step.ids.tolist() for step in graph_steps]
    assert (row.ids, row.forwards, row.reason) == (other.ids, other.forwards, other.reason)


def test_the_defaults_are_the_references_dynamic_rule(model) -> None:
    defaults = model.spec.defaults
    assert (defaults.threshold, defaults.steps, defaults.temperature) == (0.9, 4, 1.0)
    assert (model.spec.mask_token_id, model.spec.stop_ids) == (389, (378, 380))
