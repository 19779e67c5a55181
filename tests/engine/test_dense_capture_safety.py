"""No piece of the dense families waits for the device or reads the host, residuals included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_models import CONFIGS, FAMILIES, GENERATION, READERS
from test_capture_safety import THERE, Watch

from engine.compose import make_program, parts_of
from engine.decoding.rules import RuleOptions
from engine.runtime.pieces import Variant, make_pieces

ORL = {"kind": "orl", "top_k": 8}
RCD = {"kind": "rcd", "top_k": 0}
KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((family, {}, {}) for family in FAMILIES),
    *(("dream", {}, {"alg": alg}) for alg in ("origin", "topk_margin", "maskgit_plus")),
    ("qwen_dlm", {"commit_attention": "bidirectional", "residual_input": ORL}, {}),
    ("sdar", {"residual_input": RCD}, {}),
    ("fast_dllm", {"residual_input": ORL}, {}),
    ("llada", {"residual_input": ORL}, {}),
]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("family", "changes", "generation"), KINDS)
def test_no_piece_waits_for_the_device_or_reads_the_host(
    family: str, changes: dict[str, Any], generation: dict[str, Any], sampled: bool
) -> None:
    spec = READERS[family](CONFIGS[family] | changes, GENERATION.get(family, {}) | generation)
    with torch.inference_mode():
        with THERE:
            model = parts_of(spec).build(spec).eval().requires_grad_(False)
        program = make_program(model, 2, 64, RuleOptions(), torch.float32)
        pieces = make_pieces(program, True, slots=8, ahead=True)
        pieces.select(Variant(sampled=sampled, steered=sampled))
        runs = {
            "begin": pieces.begin,
            "first": pieces.first,
            "step": pieces.step,
            "end": pieces.end,
        }
        if program.prefills:
            runs["prefill"] = lambda: pieces.prefill(1)
        for name, run in runs.items():
            with Watch() as watch:
                run()
            assert watch.refused == [], name
            assert watch.calls > 10
