"""Figures of an evaluation by their definitions, intervals, and the command on the demo."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from trainer.__main__ import main
from trainer.data.skills import generate_examples
from trainer.evaluate import Answers, compared, report
from trainer.pareto import COLOURS, SIZE, draw

DEMO = Path(__file__).parents[2] / "assets" / "demo"


def _answers(model: str, verified: list[int], forwards: list[int], threshold: float = 0.9):
    count = len(verified)
    column = np.asarray
    return Answers(
        model,
        threshold,
        column(verified, dtype=float),
        column([20.0] * count),
        column(forwards, dtype=float),
        column([1.0] * count),
        column([2.0] * count),
        2.0,
        tuple("ab"[n % 2] for n in range(count)),
        ("",) * count,
    )


def test_figures_are_those_of_their_definitions() -> None:
    found = _answers("m", [1, 0, 1, 1], [5, 5, 10, 20]).figures
    assert found["accuracy"] == 0.75
    assert found["tpf"] == pytest.approx(80 / 40)
    assert found["tpf_without_commits"] == pytest.approx(80 / 36)
    assert found["ceiling"] == pytest.approx(80 / 12)
    assert found["steps_per_block"] == pytest.approx(36 / 8)
    assert found["tokens_per_second"] == pytest.approx(40.0)


def test_a_comparison_is_paired_and_names_what_got_worse() -> None:
    rng = np.random.default_rng(0)
    right = rng.integers(0, 2, 200).tolist()
    base = _answers("base", right, [10] * 200)
    tuned = _answers("tuned", [0 if n % 2 else v for n, v in enumerate(right)], [5] * 200)
    found = compared(base, tuned)
    assert found["tpf_ratio"] == pytest.approx(2.0)
    assert found["tpf_ratio_interval"] == pytest.approx([2.0, 2.0])
    low, high = found["accuracy_interval"]
    assert low < found["accuracy_change"] < high < 0
    assert list(found["worse_skills"]) == ["b"]
    same = compared(base, base)
    assert same["accuracy_interval"] == [0.0, 0.0]  # paired: the same answers differ by nothing
    assert same["worse_skills"] == {}


def test_the_front_keeps_thresholds_that_nothing_beats() -> None:
    rows = [
        _answers("m", [1, 1], [10, 10], 0.9),
        _answers("m", [1, 0], [5, 5], 0.5),
        _answers("m", [1, 0], [8, 8], 0.7),
    ]
    assert report(rows)["pareto"] == {"m": [0.5, 0.9]}


def test_the_command_measures_the_demo_against_itself(tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.jsonl"
    rows = [
        {"prompt": e.prompt, "answer": e.answer, "skill": e.skill, "check": e.check}
        for e in generate_examples(3, 0, 4, "heldout")
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    out = tmp_path / "out.json"
    demo = str(DEMO)
    common = ["--rows", "4", "--window", "12", "--max-new-tokens", "96", "--device", "cpu"]
    picture = tmp_path / "out.png"
    asked = ["--verifier", '{"kind": "demo"}', "--thresholds", "0.95", "--json", str(out)]
    asked += ["--png", str(picture)]
    assert main(["eval", demo, "--data", str(path), "--tuned", demo, *asked, *common]) == 0
    value = json.loads(out.read_text())
    assert value["compared"][0]["tpf_ratio"] == 1.0
    assert value["measured"][0]["accuracy"] >= 0.5
    assert set(value["pareto"]) == {"demo", "demo (tuned)"}
    assert "TPF x 1.00" in capsys.readouterr().out
    with Image.open(picture) as image:
        assert image.size == SIZE
    assert main(["eval", demo, "--data", str(path), "--verifier", "{"]) == 1


def test_the_picture_puts_the_faster_model_to_the_right_and_the_better_one_above() -> None:
    rows = [_answers("slow", [1, 1], [20, 20]), _answers("fast", [1, 0], [5, 5])]
    found = report(rows)
    image = np.asarray(draw(found["measured"], found["pareto"]))[60:]  # below the legend
    spots = []
    for colour in COLOURS[:2]:
        hits = np.argwhere((image == ImageColor.getrgb(colour)).all(-1))
        assert len(hits) > 100
        spots.append(hits.mean(0))
    (slow_y, slow_x), (fast_y, fast_x) = spots
    assert slow_x < fast_x
    assert slow_y < fast_y


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["--thresholds", "1.5"], "eval.option"),
        (["--thresholds", "a"], "eval.option"),
        (["--tasks", "0"], "eval.option"),
        (["--rows", "0"], "eval.option"),
        (["--window", "2", "--max-new-tokens", "8"], "eval.nothing"),
        (["--verifier", '{"kind": 3}'], "spec.field"),
        (["--tuned", "no-such-folder"], "checkpoint."),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], code: str
) -> None:
    path = tmp_path / "x.jsonl"
    row = {"prompt": "How many? " * 60, "answer": "3"}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert main(["eval", str(DEMO), "--data", str(path), "--device", "cpu", *given]) == 1
    assert f"[{code}" in capsys.readouterr().err
