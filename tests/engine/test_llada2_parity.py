"""The LLaDA2 family against values from the published reference code (conformance fixtures, section
1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import DEVICE, load, runtime_for

from engine.decoding.rules import EditingRule, QuotaRule, RuleOptions
from engine.models.layers import MaskAttend, block_causal_mask
from engine.models.llada2 import LLaDA2, SparseMLP
from engine.runtime.rows import Row
from engine.types import DecodeSettings, StepTaken, TokenState

LOGIT_TOLERANCE, CONFIDENCE_TOLERANCE, ROUTER_TOLERANCE = 1e-3, 1e-3, 1e-4


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> LLaDA2:
    return load(tiny_folder)


def full_forward(model: LLaDA2, ids: torch.Tensor) -> torch.Tensor:
    """Logits float32 [N, V] of one uncached forward under the block-causal mask."""
    positions = torch.arange(len(ids), device=DEVICE).unsqueeze(0)
    mask = block_causal_mask(positions, model.spec.block_length)
    with torch.inference_mode():
        hidden = model(model.embed(ids.unsqueeze(0).to(DEVICE)), positions, MaskAttend(mask))
        return model.logits(hidden)[0].cpu()


@pytest.mark.parametrize("case", range(3))
def test_logits_match_the_reference(model: LLaDA2, tiny_folder: Path, case: int) -> None:
    expected = load_file(tiny_folder / "expected" / "logits.safetensors")
    logits = full_forward(model, expected[f"input{case}.input_ids"])
    torch.testing.assert_close(
        logits, expected[f"input{case}.logits"], atol=LOGIT_TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("case", range(3))
def test_router_choices_and_weights_match_the_reference(
    model: LLaDA2, tiny_folder: Path, case: int
) -> None:
    expected = load_file(tiny_folder / "expected" / "logits.safetensors")
    layer = json.loads((tiny_folder / "expected" / "logits.json").read_text())["router_layer"]
    mlp = model.layers[layer].mlp
    assert isinstance(mlp, SparseMLP)
    found = mlp.gate(expected[f"input{case}.router_input"].to(DEVICE))
    ids, weights = (part.cpu() for part in found)
    order, wanted_order = ids.argsort(-1), expected[f"input{case}.router_expert_ids"].argsort(-1)
    wanted = expected[f"input{case}.router_expert_ids"].gather(1, wanted_order)
    assert torch.equal(ids.gather(1, order), wanted)
    torch.testing.assert_close(
        weights.gather(1, order),
        expected[f"input{case}.router_weights"].gather(1, wanted_order),
        atol=ROUTER_TOLERANCE,
        rtol=0,
    )


@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("expand", [True, False])
def test_quantised_checkpoints_match_the_reference(
    shared_fixtures: Path, layout: str, expand: bool
) -> None:
    folder = shared_fixtures / f"llada2-tiny-nvfp4-{layout}"
    quantised = load(folder, expand=expand)
    expected = load_file(folder / "expected" / "logits.safetensors")
    for case in range(3):
        logits = full_forward(quantised, expected[f"input{case}.input_ids"])
        torch.testing.assert_close(
            logits, expected[f"input{case}.logits"], atol=LOGIT_TOLERANCE, rtol=0
        )


def decode_cases(name: str) -> list[dict]:
    root = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures" / "llada2-tiny"
    return json.loads((root / "expected" / f"{name}.json").read_text())["cases"]


def run_case(model: LLaDA2, case: dict, *, editing: bool) -> tuple[Row, list[StepTaken]]:
    args = case["args"]
    options = RuleOptions(
        suppress_mask=case["mask_logit_suppressed"],
        stop_inside_block=args["eos_early_stop"],
        stop_after_block=not editing or args["eos_early_stop"],
    )
    stop_ids = torch.tensor([args["eos_id"]], device=DEVICE)
    if editing:
        settings = DecodeSettings(
            threshold=args["threshold"],
            editing_threshold=args["editing_threshold"],
            max_post_steps=args["max_post_steps"],
            min_transfer=args["num_to_transfer"],
        )
        rule = EditingRule(args["mask_id"], stop_ids, options)
    else:
        steps = min(args["steps"], args["gen_length"] // args["minimal_topk"])
        settings = DecodeSettings(threshold=args["threshold"], steps=steps)
        rule = QuotaRule(args["mask_id"], stop_ids, options)
    runtime = runtime_for(
        model,
        rule,
        suppress=options.suppress_mask,
        stop_after_block=options.stop_after_block,
    )
    row = Row(
        case["prompt_ids"],
        args["gen_length"],
        settings,
        args["block_length"],
        frozenset([args["eos_id"]]),
    )
    runtime.prefill([row])
    return row, [mark.step_taken for mark in runtime.run([row]) if mark.step_taken is not None]


def canvas(step: StepTaken, mask_id: int) -> list[int]:
    """The block's tokens after the step, guesses replaced by the mask they stand for."""
    guesses = (TokenState.MASKED, TokenState.DRAFT)
    return [
        mask_id if state in guesses else int(token)
        for token, state in zip(step.ids, step.state, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in ("decode_20", "decode_21") for case in decode_cases(name)],
    ids=lambda value: value["name"] if isinstance(value, dict) else value,
)
def test_decoding_matches_the_reference_step_for_step(model: LLaDA2, name: str, case: dict) -> None:
    editing = name == "decode_21"
    row, steps = run_case(model, case, editing=editing)
    assert len(steps) == len(case["steps"]) == case["forwards"]
    # A runtime on a GPU takes a block's last look and the next one's first step in one forward.
    saved = row.blocks - 1 if DEVICE.type == "cuda" and editing else 0
    assert case["forwards"] - saved <= row.forwards <= case["forwards"]
    for got, wanted in zip(steps, case["steps"], strict=True):
        start = got.block_start
        assert (start // 32, got.step) == (wanted["block"], wanted["step"])
        assert canvas(got, case["args"]["mask_id"]) == wanted["tokens"]
        confidences = dict(zip(wanted["committed"], wanted["committed_conf"], strict=True))
        confidences |= dict(
            zip(wanted.get("edited", []), wanted.get("edited_conf", []), strict=True)
        )
        for position, confidence in confidences.items():
            assert abs(got.confidence[position - start] - confidence) < CONFIDENCE_TOLERANCE
        edited = {start + at: int(old) for at, old in enumerate(got.edited_from) if old >= 0}
        assert edited == dict(
            zip(wanted.get("edited", []), wanted.get("edited_from", []), strict=True)
        )
    assert row.ids == case["output_ids"]


def test_editing_off_is_not_editing_at_zero(model: LLaDA2) -> None:
    case = next(c for c in decode_cases("decode_21") if c["name"] == "speed_P41")
    assert case["args"]["editing_threshold"] == 0.0
    edits = {}
    for threshold in (0.0, None):
        args = {**case["args"], "editing_threshold": threshold}
        _, steps = run_case(model, {**case, "args": args}, editing=True)
        edits[threshold] = sum(int((step.edited_from >= 0).sum()) for step in steps)
    assert edits[None] == 0
    assert edits[0.0] > 0


def test_decoding_without_a_cache_gives_the_same_ids(model: LLaDA2) -> None:
    """After every block the cached KV equals that of a fresh forward over the final tokens."""
    case = next(c for c in decode_cases("decode_20") if c["name"] == "default_P41")
    args = case["args"]
    rule = QuotaRule(args["mask_id"], torch.tensor([-1], device=DEVICE), RuleOptions())
    runtime = runtime_for(model, rule)
    row = Row(case["prompt_ids"], 60, DecodeSettings(threshold=0.9), 32, frozenset([-1]))
    runtime.prefill([row])
    for _ in runtime.run([row], record=False):
        pass
    final = [*case["prompt_ids"], *row.ids]
    settled = (len(final) - 1) // 32 * 32  # the last block is never committed
    reused = runtime.pieces.program.cache.keys[:, :, :, :settled].clone()
    fresh = runtime_for(model, rule)
    fresh.prefill([Row(final[:settled], 32, row.settings, 32, frozenset([-1]))])
    torch.testing.assert_close(
        reused, fresh.pieces.program.cache.keys[:, :, :, :settled], atol=1e-4, rtol=0
    )


def test_rows_of_a_batch_give_the_ids_they_give_alone(model: LLaDA2) -> None:
    cases = [c for c in decode_cases("decode_20") if c["name"].startswith("few_steps")]
    stop = torch.tensor([500], device=DEVICE)
    rows = {}
    for batch in (1, len(cases)):
        for first in range(0, len(cases), batch):
            rule = QuotaRule(503, stop, RuleOptions())
            runtime = runtime_for(model, rule, batch=batch)
            group = [
                Row(c["prompt_ids"], 40, DecodeSettings(threshold=0.6), 32, frozenset([500]))
                for c in cases[first : first + batch]
            ]
            runtime.prefill(group)
            for _ in runtime.run(group, record=False):
                pass
            for case, row in zip(cases[first : first + batch], group, strict=True):
                rows.setdefault(case["name"], []).append((row.ids, row.forwards, row.reason))
    assert all(alone == together for alone, together in rows.values())
