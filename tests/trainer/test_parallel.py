"""Two processes take one process's updates: the same figures and the same weights, within rounding;
what one cannot do, all stop for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trainer.data.skills import generate_examples
from trainer.orl.peers import put_together, share
from trainer.orl.recipe import Recipe
from trainer.run_dir import RunDir
from trainer.spec import DataSpec, Guard, TrainSpec
from trainer.verify.verifier_spec import VerifierSpec

REPO = Path(__file__).parents[2]
RECIPE = Recipe(
    rollouts=6,
    rows=3,
    group=2,
    window=12,
    micro_blocks=24,
    max_new_tokens=48,
    teach=2,
    floor=0.5,
    warmup=1,
    learning_rate=1e-3,
)
FIGURES = ("loss", "prediction", "aec", "grad_norm", "accuracy", "tpf", "taught", "references")


def _spec(path: Path, recipe: Recipe = RECIPE) -> Path:
    data = path / "x.jsonl"
    rows = [
        {"prompt": e.prompt, "answer": e.answer, "skill": e.skill, "check": e.check}
        for e in generate_examples(3, 0, 9, "train", skills=["units", "lists"])
    ]
    data.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    spec = TrainSpec(
        str(REPO / "assets" / "demo"),
        DataSpec((str(data),), validation=0.2, replay=0.3),
        VerifierSpec("demo"),
        recipe,
        updates=5,
        device="cpu",
        guard=Guard(every=5, tasks=3),
    )
    (path / "spec.json").write_text(spec.to_json(), encoding="utf-8")
    return path / "spec.json"


def _run(spec: Path, out: Path, processes: int) -> subprocess.CompletedProcess[str]:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    command = [*(torchrun if processes > 1 else []), "trainer", "run", str(spec), "--out", str(out)]
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=REPO,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def _curve(out: Path) -> list[dict[str, float]]:
    found = [event.data for event in RunDir.open(out).events() if event.kind == "metrics"]
    return [{name: row[name] for name in FIGURES if name in row} for row in found]


def test_shares_put_together_are_the_whole() -> None:
    for count, size, group in ((7, 2, 1), (12, 3, 2), (1, 4, 1), (0, 2, 2)):
        shares = [share(count, rank, size, group) for rank in range(size)]
        assert sorted(n for own in shares for n in own) == list(range(count))
        assert put_together(shares, group) == list(range(count))


def test_two_processes_reproduce_the_curve_of_one(tmp_path: Path) -> None:
    spec = _spec(tmp_path)
    for processes, name in ((1, "one"), (2, "two")):
        answer = _run(spec, tmp_path / name, processes)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    one, two = _curve(tmp_path / "one"), _curve(tmp_path / "two")
    assert len(one) == len(two) == 5
    assert all(row["loss"] > 0 for row in one)
    assert any(row["taught"] > 0 for row in one[2:])
    for mine, other in zip(one, two, strict=True):
        assert other == pytest.approx(mine, rel=1e-3, abs=1e-9)
    masters = []
    for name in ("one", "two"):
        checkpoint = RunDir.open(tmp_path / name).checkpoint("last")
        assert checkpoint is not None
        state = load_file(checkpoint.tensors)
        masters.append(torch.cat([t.flatten() for k, t in state.items() if k.startswith("master")]))
    assert torch.allclose(masters[0], masters[1], rtol=1e-3, atol=1e-4)


def test_what_the_first_process_refuses_ends_them_all(tmp_path: Path) -> None:
    spec = _spec(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"nothing": 1}\n', encoding="utf-8")
    answer = _run(spec, tmp_path / "out", 2)
    assert answer.returncode != 0
    assert "[data." in answer.stderr
    assert not (tmp_path / "out").exists()
