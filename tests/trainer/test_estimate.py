"""A trial's figures are those of the run it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.data.skills import generate_examples
from trainer.estimate import estimate
from trainer.orl.recipe import Recipe
from trainer.spec import DataSpec, Guard, TrainSpec
from trainer.verify.verifier_spec import VerifierSpec

DEMO = Path(__file__).parents[2] / "assets" / "demo"
RECIPE = Recipe(rollouts=2, rows=2, group=1, window=12, micro_blocks=24, max_new_tokens=32, teach=2)


def test_a_trial_measures_what_the_whole_run_is_made_of(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [
        {"prompt": e.prompt, "answer": e.answer, "skill": e.skill, "check": e.check}
        for e in generate_examples(3, 0, 6, "train", skills=["units", "strings"])
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    spec = TrainSpec(
        str(DEMO),
        DataSpec((str(path),), validation=0.2),
        VerifierSpec("demo"),
        RECIPE,
        updates=10,
        device="cpu",
        guard=Guard(every=5, tasks=1),
    )
    found = estimate(spec)
    assert found.device == "cpu"
    assert min(found.load, found.teach, found.update, found.validation) > 0
    assert found.peak_bytes > 50_000_000
    assert 100_000 < found.checkpoint_bytes < 100_000_000
    parts = found.load + 2 * found.teach + 8 * found.update + 3 * found.validation
    assert found.total == pytest.approx(parts)
