"""The shipped example set is what its script writes, adds up, and can be trained on."""

from __future__ import annotations

from pathlib import Path

from trainer.data.checks import check_data
from trainer.data.example_set import rows, text
from trainer.verify.verifier_spec import VerifierSpec
from trainer.verify.working import equations, false_equation

ROOT = Path(__file__).parents[2]
FILE = ROOT / "assets" / "examples" / "bills.jsonl"


def test_the_file_is_what_the_script_writes() -> None:
    assert FILE.read_text(encoding="utf-8") == text()
    assert text(50, seed=1) != text(50, seed=2)


def test_every_bill_adds_up_and_lists_what_was_ordered() -> None:
    for drawn in rows():
        lines = drawn["answer"].splitlines()
        assert false_equation(drawn["answer"]) is None
        assert len(equations(drawn["answer"])) == len(lines)
        assert all(f" {line.split(':')[0]} at " in drawn["prompt"] for line in lines[:-1])


def test_nothing_stands_against_training_on_it() -> None:
    for kind in ("text", "number"):
        report = check_data([str(FILE)], model=ROOT / "assets/demo", verifier=VerifierSpec(kind))
        assert report.findings == ()
        assert report.probe is not None
        assert report.probe.accepted == report.probe.tried == 5
        assert report.unfit_count == report.truncated_count == 0
