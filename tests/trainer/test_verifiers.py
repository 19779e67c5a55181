"""The verifiers for people's own data: what they accept, refuse, and survive."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from engine.errors import RequestError
from engine.types import Message
from trainer.data.task import Task
from trainer.spec import DataSpec, TrainSpec
from trainer.verify import CHECKS
from trainer.verify.extract import fenced_blocks, final_number, last_boxed
from trainer.verify.probe import probe
from trainer.verify.registry import KINDS, make_verifier
from trainer.verify.sandbox import MODULES, Limits, shared_sandbox
from trainer.verify.similarity import common_subsequence, rouge_l
from trainer.verify.verdict import Verdict
from trainer.verify.verifier_spec import VerifierSpec


def task(reference: str | None = None, prompt: str = "Question?", **row: Any) -> Task:
    return Task("rows.jsonl:1", (Message("user", prompt),), reference, check=row)


def judge(kind: str, options: dict[str, Any], of: Task, reply: str) -> Verdict:
    return make_verifier(VerifierSpec(kind, options)).check_many([of], [reply])[0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6 * 7 = 42", "42"),
        ("So she has 1,234.50 dollars left.", "1234.5"),
        ("#### -3", "-3"),
        ("#### $18", "18"),
        ("The answer is 5. I checked it 3 times.", "5"),
        ("Answer: 2/3", "2/3"),
        ("it is \\boxed{7} of 9", "7"),
        ("from 10-3", "3"),
        ("about .5", "1/2"),
        ("1e3", "1000"),
        ("\u22124", "-4"),
        ("2, then 1,000,000", "1000000"),
        ("the end is 12.", "12"),
        ("1/0 is not a number but 5/1 is", "5"),
    ],
)
def test_the_final_number_is_found_where_people_put_it(text: str, number: str) -> None:
    assert final_number(text) == final_number(number) is not None


def test_a_number_is_compared_by_value_and_exactly() -> None:
    of = task("He pays 3 * 14 = <<3*14=42>>42 dollars.\n#### 42")
    assert judge("number", {}, of, "That makes 42.0 dollars").ok
    assert judge("number", {}, of, "84/2").ok
    wrong = judge("number", {}, of, "42.001")
    assert (wrong.ok, wrong.reason) == (False, "42001/1000 is not 42")
    assert not judge("number", {}, of, "forty-two").ok
    assert not judge("number", {}, task(None), "42").ok
    assert not judge("number", {"marker": "Total:"}, of, "42").ok
    assert judge("number", {"marker": "Total:"}, of, "3 and Total: 42").ok


def test_absurd_numbers_cost_no_time() -> None:
    began = time.monotonic()
    for reply in ("9" * 200_000, "1e999999999", "1/" * 50_000, "1," * 100_000, "-" * 200_000):
        assert not judge("number", {}, task("42"), reply).ok
    assert time.monotonic() - began < 5


def test_the_last_closed_box_is_the_answer() -> None:
    assert last_boxed(r"\boxed{1} and \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{1} and \boxed{2") == "1"
    assert last_boxed("1") is None
    assert last_boxed(r"\boxed{\{} and \boxed{\boxed{3} + 1}") == "3"
    assert last_boxed(r"\boxed {\\{x}}") == r"\\{x}"


def test_code_is_taken_from_closed_blocks_of_its_language() -> None:
    text = "a\n```python\nx = 1\n```\nb\n```sh\nls\n```\n```\ny\n```\n```py\nopen"
    assert fenced_blocks(text, ("python", "py")) == ["x = 1\n", "y\n"]


def test_texts_made_to_be_slow_are_searched_in_a_moment() -> None:
    began = time.monotonic()
    assert last_boxed("\\boxed{" * 100_000) is None
    assert fenced_blocks("```a\n" * 100_000, ("python",)) == []
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("reference", "reply", "ok"),
    [
        (r"\frac12", r"so $\boxed{0.5}$", True),
        ("x^2+2x+1", r"\boxed{(x+1)^2}", True),
        (r"2\sqrt{3}", r"\boxed{\sqrt{12}}", True),
        (r"\text{(A)}", r"\boxed{A}", True),
        (r"\$18.90", r"\boxed{18.9}", True),
        (r"The work. $\boxed{7}$", r"\boxed{7.0}", True),
        (r"\{1,2\}", r"\boxed{\{2,1\}}", True),
        (r"\frac{1}{3}", r"\boxed{0.3}", False),
        ("5", r"\boxed{6}", False),
        ("5", "5", False),
        ("5", "", False),
    ],
)
def test_mathematics_is_compared_symbolically(reference: str, reply: str, ok: bool) -> None:
    verdict = judge("math", {}, task(reference), reply)
    assert verdict.ok is ok
    assert bool(verdict.reason) is not ok


def test_an_unboxed_result_passes_only_where_that_is_allowed() -> None:
    assert judge("math", {"boxed": False}, task("5"), "The answer is $5$.").ok


def test_mathematics_that_never_ends_is_cut_off_and_the_next_reply_judged() -> None:
    began = time.monotonic()
    verdict = judge("math", {}, task("12"), r"\boxed{9^{9^{9^{9}}}}")
    assert not verdict.ok
    assert "TimeLimit" in verdict.reason
    assert time.monotonic() - began < 12
    assert judge("math", {}, task("12"), r"\boxed{3 \cdot 4}").ok


ADD = {
    "test_list": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"],
    "test_setup_code": "import math",
}


def test_python_is_judged_by_its_tests() -> None:
    good = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
    assert judge("unit_tests", {}, task(**ADD), good).ok
    assert judge("unit_tests", {}, task(**ADD), "def add(a, b):\n    return a + b").ok
    bad = judge("unit_tests", {}, task(**ADD), good.replace("+", "-"))
    assert not bad.ok
    assert "test 1 of 2, assert add(1, 2) == 3: AssertionError" in bad.reason
    assert judge("unit_tests", {}, task(), good).reason == "the row has no tests"
    tests = {"cases": json.dumps(ADD["test_list"])}
    assert judge("unit_tests", {"tests": "cases"}, task(**tests), good).ok


HUMAN = {
    "prompt": "from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    '''Sum.'''\n",
    "entry_point": "total",
    "test": "def check(candidate):\n    assert candidate([1]) == 1\n    assert not candidate([])",
}


@pytest.mark.parametrize(
    ("reply", "ok"),
    [
        ("    return sum(xs)\n", True),
        ("```python\ndef total(xs: List[int]) -> int:\n    return sum(xs)\n```", True),
        ("    return 3\n", False),
        ("I do not know.", False),
    ],
)
def test_a_reply_may_complete_a_function_or_write_it_whole(reply: str, ok: bool) -> None:
    of = Task("f:1", (Message("user", HUMAN["prompt"]),), check=HUMAN)
    assert judge("unit_tests", {}, of, reply).ok is ok


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "import os, json\nos.write(3, json.dumps({'results': ['x', 'x'], 'error': None}).encode())",
        "def run_unblur_test(*a):\n    return a[0]",
        "def add(a, b):\n    while True: pass",
        "def add(a, b):\n    return [0] * 10**10",
        "import os\nos.fork()",
        "import threading\nthreading.Thread(target=print).start()",
        "import socket\nsocket.socket()",
        "def add(a, b):\n    open('stolen', 'w')",
        "def add(a, b):\n    return add(a, b)",
        "",
        "def add(a, b:\n",
    ],
)
def test_code_that_misbehaves_is_wrong_and_harmless(code: str) -> None:
    began = time.monotonic()
    verdict = judge("unit_tests", {"seconds": 1.0}, task(**ADD), f"```python\n{code}\n```")
    assert not verdict.ok
    assert verdict.reason
    assert time.monotonic() - began < 8
    assert judge("unit_tests", {"seconds": 1.0}, task(**ADD), "add = lambda a, b: a + b").ok


def test_the_modules_the_sandbox_names_can_be_imported_inside() -> None:
    code = "".join(f"import {name}\n" for name in MODULES) + "def f():\n    return 1"
    assert shared_sandbox(Limits()).run(code, "f", [[]]).results == [1]
    uses = (
        "import hashlib, datetime, cmath, decimal\n"
        "def f():\n"
        "    datetime.datetime.strptime('2024-02-29', '%Y-%m-%d')\n"
        "    return [hashlib.md5(b'x').hexdigest()[:4], str(decimal.Decimal(1) / 8)]\n"
    )
    assert shared_sandbox(Limits()).run(uses, "f", [[]]).results == [["9dd4", "0.125"]]


def test_a_pattern_searches_or_fits_the_whole_reply() -> None:
    assert judge("pattern", {"pattern": r"\d{4}"}, task(), "in 1999 or so").ok
    assert not judge("pattern", {"pattern": r"\d{4}", "mode": "full"}, task(), "in 1999").ok
    assert judge(
        "pattern", {"pattern": "yes", "mode": "full", "ignore_case": True}, task(), "YES"
    ).ok


def test_a_pattern_that_backtracks_for_ever_is_cut_off() -> None:
    began = time.monotonic()
    verdict = judge("pattern", {"pattern": r"(\w+\s?)*:$"}, task(), "word " * 40 + "!")
    assert not verdict.ok
    assert time.monotonic() - began < 5


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer"}},
    "patternProperties": {"^x_": {"type": "number"}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ('{"name": "Ada", "age": 36}', ""),
        ('Sure:\n```json\n{"name": "Ada"}\n```', ""),
        ('{"name": "ada"}', "does not match"),
        ('{"age": 3}', "'name' is a required property"),
        ('{"name": "Ada", "x_size": "big"}', "x_size: 'big' is not of type 'number'"),
        ('{"name": "Ada", "name": "Bob"}', "a key occurs twice"),
        ('{"name": NaN}', "NaN is not JSON"),
        ("Ada", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_json_must_have_the_shape(reply: str, reason: str) -> None:
    verdict = judge("json_schema", {"schema": SCHEMA}, task(), reply)
    assert verdict.ok is (reason == "")
    assert reason in verdict.reason


def test_a_schema_with_an_endless_pattern_is_cut_off() -> None:
    began = time.monotonic()
    schema = {"type": "string", "pattern": r"^(\w+\s?)*:$"}
    verdict = judge("json_schema", {"schema": schema}, task(), json.dumps("word " * 40 + "!"))
    assert not verdict.ok
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "thing"},
        {"$ref": "https://example.invalid/schema.json"},
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"required": "name"},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_once(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        make_verifier(VerifierSpec("json_schema", {"schema": schema}))
    assert refused.value.code == "verifier.schema"


def test_text_agrees_exactly_or_by_its_words() -> None:
    of = task("The cat sat on the mat.")
    assert judge("text", {}, of, "The cat  sat on\nthe mat. ").ok
    assert not judge("text", {}, of, "the cat sat on the mat.").ok
    assert judge("text", {"ignore_case": True}, of, "the cat sat on the mat.").ok
    assert judge("text", {"mode": "rouge_l", "threshold": 0.8}, of, "A cat sat on the mat").ok
    verdict = judge("text", {"mode": "rouge_l"}, of, "mat the on sat cat the")
    assert not verdict.ok
    assert "similarity 0.50" in verdict.reason


def test_the_common_subsequence_is_that_of_the_textbook_table() -> None:
    import random

    rng = random.Random(5)
    for _ in range(200):
        a = rng.choices("abcd", k=rng.randrange(12))
        b = rng.choices("abcd", k=rng.randrange(12))
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                table[i + 1][j + 1] = (
                    table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
                )
        assert common_subsequence(a, b) == table[-1][-1]


def test_long_texts_are_compared_in_a_moment() -> None:
    began = time.monotonic()
    text = " ".join(str(n % 977) for n in range(20_000))
    assert rouge_l(text, text) == 1.0
    assert rouge_l(text, "") == 0.0
    assert time.monotonic() - began < 3


def own(tmp_path: Path, code: str, **options: Any) -> VerifierSpec:
    file = tmp_path / "mine.py"
    file.write_text(code, encoding="utf-8")
    return VerifierSpec("function", {"file": str(file), **options})


def test_an_own_function_sees_reply_reference_prompt_and_row(tmp_path: Path) -> None:
    code = (
        "import re\n"
        "def check(reply, reference, prompt, row):\n"
        "    if prompt != 'Question?' or row['level'] != 3:\n"
        "        return 'wrong call'\n"
        "    return True if reply == reference else 'not the same'\n"
    )
    verifier = make_verifier(own(tmp_path, code))
    of = task("yes", level=3)
    verdicts = verifier.check_many([of, of], ["yes", "no"])
    assert [(v.ok, v.reason) for v in verdicts] == [(True, ""), (False, "not the same")]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("while True: pass", "TimeLimit"),
        ("raise KeyError('x')", "KeyError"),
        ("return 1", "returned 1, not True"),
        ("return None", "returned None"),
        ("return open('/etc/hostname').read()", "PermissionError"),
        ("import os; os.fork()", "PermissionError"),
    ],
)
def test_an_own_function_that_misbehaves_lets_nothing_pass(
    tmp_path: Path, body: str, reason: str
) -> None:
    code = f"def check(reply, reference, prompt, row):\n    {body}\n"
    verifier = make_verifier(own(tmp_path, code, seconds=0.5))
    verdict = verifier.check_many([task()], ["x"])[0]
    assert not verdict.ok
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "code",
    ["", "def check(reply):\n    return True\n", "def check(:\n", "import numpy\n", "check = 3\n"],
)
def test_an_own_file_that_cannot_judge_is_refused_at_once(tmp_path: Path, code: str) -> None:
    with pytest.raises(RequestError) as refused:
        make_verifier(own(tmp_path, code))
    assert refused.value.code == "verifier.function"
    assert "mine.py" in refused.value.message


def test_an_own_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        make_verifier(VerifierSpec("function", {"file": str(tmp_path / "none.py")}))
    assert refused.value.code == "verifier.file"
    assert "none.py" in refused.value.message


@pytest.mark.parametrize(
    ("kind", "options", "code"),
    [
        ("magic", {}, "verifier.kind"),
        ("number", {"markers": "x"}, "spec.field"),
        ("pattern", {}, "spec.field"),
        ("pattern", {"pattern": "("}, "verifier.pattern"),
        ("pattern", {"pattern": ""}, "verifier.pattern"),
        ("text", {"threshold": 0.0}, "verifier.threshold"),
        ("text", {"mode": "vague"}, "spec.field"),
        ("unit_tests", {"seconds": 1e9}, "verifier.limits"),
        ("json_schema", {"schema": "x"}, "spec.field"),
    ],
)
def test_a_wrong_spec_is_refused_by_name(kind: str, options: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestError) as refused:
        make_verifier(VerifierSpec(kind, options))
    assert refused.value.code == code


def test_a_verifier_survives_the_file_of_a_run() -> None:
    spec = TrainSpec("m", DataSpec(("f",)), VerifierSpec("json_schema", {"schema": SCHEMA}))
    assert TrainSpec.from_json(spec.to_json()).verifier == spec.verifier
    assert set(KINDS) >= {"demo", "accept_all"}


def tasks(count: int) -> list[Task]:
    return [
        Task(f"f:{n}", (Message("user", f"What is {n} + 1?"),), f"It is {n + 1}")
        for n in range(count)
    ]


def test_a_probe_says_how_many_answers_a_verifier_accepts() -> None:
    good = tasks(5)
    answers = [of.reference or "" for of in good[:3]] + ["no", "idea"]
    found = probe(make_verifier(VerifierSpec("number")), good, answers)
    assert found.sentence == (
        "This verifier accepts 3 of 5 reference answers, and 0 of 14 wrong ones."
    )
    assert [refused.id for refused in found.refused] == ["f:3", "f:4"]
    found.refuse_useless()


def test_a_verifier_that_always_fails_or_always_passes_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        probe(make_verifier(VerifierSpec("pattern", {"pattern": "zzz"})), tasks(5)).refuse_useless()
    assert refused.value.code == "verifier.always_fails"
    with pytest.raises(RequestError) as refused:
        probe(make_verifier(VerifierSpec("pattern", {"pattern": "^"})), tasks(5)).refuse_useless()
    assert refused.value.code == "verifier.always_passes"
    with pytest.raises(RequestError) as refused:
        probe(make_verifier(VerifierSpec("demo")), tasks(5)).refuse_useless()
    assert refused.value.code == "verifier.always_fails"


@pytest.mark.parametrize(
    "check",
    [{"kind": kind} for kind in CHECKS] + [{}, {"kind": ["x"]}, {"kind": "json", "value": None}],
)  # fmt: skip
def test_a_row_whose_built_in_check_is_not_whole_passes_nothing(check: dict[str, Any]) -> None:
    reply = "```python\ndef f(x):\n    return x\n```\nAnswer: 1"
    verdict = judge("demo", {}, Task("f:1", (Message("user", "q"),), check=check), reply)
    assert not verdict.ok
    assert verdict.reason


def test_accepting_everything_is_allowed_and_called_what_it_is() -> None:
    found = probe(make_verifier(VerifierSpec("accept_all")), tasks(2))
    found.refuse_useless()
    assert "for speed only" in found.sentence
