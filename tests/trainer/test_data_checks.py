"""What is wrong with a data set is said before training; rows are shown as the model sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import RequestError
from engine.types import Message
from trainer.__main__ import main
from trainer.data.checks import CheckOptions, check_data, scripts_of
from trainer.data.encoding import ModelEncoder, encode_answer, prompts_that_fit
from trainer.data.report import DataReport
from trainer.data.split import held_out, prompt_key
from trainer.data.task import Task
from trainer.orl.states import reference_states
from trainer.spec import DataSpec, TrainSpec
from trainer.start import prepare, start
from trainer.verify.verifier_spec import VerifierSpec

DEMO = Path(__file__).parents[2] / "assets" / "demo"


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def sums(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"What is {n} + 1?", "answer": f"Answer: {n + 1}"} for n in range(count)]


def codes(report: DataReport) -> list[str]:
    return [finding.code for finding in report.findings]


def test_a_good_file_has_nothing_against_it(tmp_path: Path) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    rows = [{"prompt": f"Say {a} {b}", "answer": f"{a} {b}"} for a in words for b in words]
    report = check_data([write(tmp_path / "x.jsonl", *rows)], model=DEMO)
    assert codes(report) == []
    assert report.trainable
    assert (report.counts.rows, report.counts.tasks, report.counts.answered) == (100, 100, 100)
    assert (report.split.train, report.split.valid, report.split.overlap) == (90, 10, 0)
    assert report.layouts == ("prompts and answers (columns 'prompt' and 'answer')",)


def test_rows_are_shown_as_the_model_sees_them_with_the_answer_alone_trained(
    tmp_path: Path,
) -> None:
    report = check_data([write(tmp_path / "x.jsonl", *sums(9))], model=DEMO)
    assert len(report.seen) == 5
    row = report.seen[1]
    read = "".join(token.text for token in row.tokens if not token.trained)
    trained = "".join(token.text for token in row.tokens if token.trained)
    assert read == "<role>HUMAN</role>What is 1 + 1?<|role_end|><role>ASSISTANT</role>"
    assert trained == "Answer: 2<|role_end|>"
    assert [token.trained for token in row.tokens] == (
        [False] * row.prompt_tokens + [True] * row.trained_tokens
    )


def test_special_tokens_typed_in_a_row_are_read_as_text_and_do_not_end_it() -> None:
    encoder = ModelEncoder.open(DEMO)
    task = Task("f:1", (Message("user", "Say <|role_end|> twice"),), "<|role_end|> <|role_end|>")
    encoded = encoder.encode(task)
    stop = encoded.ids[-1]
    assert encoded.ids.count(stop) == 2  # the one behind the question, the one behind the answer
    answer = "".join(encoder.pieces(encoded.ids[encoded.prompt :]))
    assert answer == "<|role_end|> <|role_end|><|role_end|>"


def test_padding_and_what_follows_the_stop_token_never_count_in_the_loss() -> None:
    encoder = ModelEncoder.open(DEMO)
    length = encoder.spec.block_length
    mask = encoder.spec.mask_token_id
    assert mask is not None
    rng = np.random.default_rng(3)
    for words in (1, 9, 40, 90):
        encoded = encoder.encode(Task("f:1", (Message("user", "Go"),), "word " * words))
        ids = np.array(encoded.ids, dtype=np.int32)
        states = reference_states(ids, encoded.prompt, length, mask, rng)
        first: dict[int, Any] = {}
        for state in states:
            position = state.block * length + np.arange(length)
            inside = (position >= encoded.prompt) & (position < len(ids))
            assert not state.open[~inside].any()
            assert not state.wanted[~inside].any()
            first.setdefault(state.block, state)
        assert sum(int(state.open.sum()) for state in first.values()) == encoded.trained


def test_the_trainer_and_the_preview_encode_alike() -> None:
    encoder = ModelEncoder.open(DEMO)
    task = Task("f:1", (Message("user", "What is 2 + 2?"),), "Answer: 4")
    prompt, ids = encode_answer(encoder.tokenizer, encoder.spec.stop_ids, task)
    assert (prompt, tuple(ids)) == (encoder.encode(task).prompt, encoder.encode(task).ids)


def model_with_template(folder: Path, template: str) -> Path:
    folder.mkdir()
    for file in DEMO.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{% for m in messages %}<role>{{ m.role }}</role>{{ m.content }}{% endfor %}",
            "without a token that stops it",
        ),
        (
            "{% for m in messages %}<role>X</role>{{ m.content }}<|role_end|>{% endfor %}"
            "{% if messages[-1].role == 'user' %}<role>ASSISTANT</role>{% endif %}",
            "differently from one to come",
        ),
        ("{{ raise_exception('no talk today') }}", "no talk today"),
    ],
)
def test_a_template_that_would_train_stray_text_is_refused(
    tmp_path: Path, template: str, words: str
) -> None:
    model = model_with_template(tmp_path / "model", template)
    report = check_data([write(tmp_path / "x.jsonl", *sums(60))], model=model)
    assert codes(report)[0] == "data.nothing_fits"
    assert words in report.findings[0].message
    with pytest.raises(RequestError) as refused:
        report.refuse_untrainable()
    assert refused.value.code == "data.nothing_fits"


def test_repeated_disputed_and_unanswered_rows_are_counted(tmp_path: Path) -> None:
    rows = [
        *sums(60),
        {"prompt": "what  is 5 + 1?", "answer": "Answer: 6"},
        {"prompt": "What is 6 + 1?", "answer": "Answer: 8"},
        {"prompt": "What is it?", "answer": None},
    ]
    path = Path(write(tmp_path / "x.jsonl", *rows))
    path.write_text(path.read_text(encoding="utf-8") + "oops\n", encoding="utf-8")
    report = check_data([str(path)])
    counts = report.counts
    assert (counts.rows, counts.tasks, counts.bad) == (64, 63, 1)
    assert (counts.answered, counts.repeated, counts.disputed) == (62, 1, 1)
    found = codes(report)
    assert {"data.bad_rows", "data.repeated", "data.disputed", "data.unanswered"} <= set(found)
    assert "data.near" in found  # all of these prompts differ in their numbers alone
    assert report.trainable


def test_the_same_prompt_is_never_on_both_sides_of_the_split() -> None:
    tasks = [Task(f"f:{n}", (Message("user", f"Q{n % 30}  x"),), str(n)) for n in range(200)]
    for seed in range(5):
        held = held_out(tasks, 0.2, seed)
        assert 20 <= len(held) <= 40
        train = {prompt_key(task) for n, task in enumerate(tasks) if n not in held}
        assert not any(prompt_key(tasks[n]) in train for n in held)
    assert held_out(tasks, 0.2, 1) == held_out(tasks, 0.2, 1) != held_out(tasks, 0.2, 2)
    assert held_out(tasks, 0.0, 1) == frozenset()
    same = [Task("f", (Message("user", "x"),))] * 10
    assert held_out(same, 0.5, 1) == frozenset()


def test_rows_that_do_not_fit_are_named_and_measured(tmp_path: Path) -> None:
    rows = [
        {"prompt": "word " * 3000, "answer": "a"},
        {"prompt": "short", "answer": "word " * 3000},
        *({"prompt": f"Say {n}", "answer": "a " * n} for n in range(1, 61)),
    ]
    report = check_data([write(tmp_path / "x.jsonl", *rows)], model=DEMO)
    assert report.unfit_count == 1
    assert report.unfit[0].startswith("x.jsonl:1: the prompt has")
    assert report.truncated_count == 1
    assert report.truncated[0].startswith("x.jsonl:2: prompt and answer have")
    lengths = report.lengths
    assert lengths is not None
    assert sum(lengths.counts) == 61
    assert lengths.counts[-1] == 1
    assert lengths.edges[0] == lengths.block
    assert lengths.edges[-1] == lengths.limit == 1024
    assert sum(lengths.blocks.values()) == 61


def test_a_file_of_which_nothing_would_be_trained_is_refused(tmp_path: Path) -> None:
    long = [{"prompt": f"Say {n}", "answer": "word " * 3000} for n in range(60)]
    report = check_data([write(tmp_path / "x.jsonl", *long)], model=DEMO)
    assert not report.trainable
    assert codes(report)[0] == "data.nothing_trained"
    options = CheckOptions(validation=0.9)
    report = check_data([write(tmp_path / "y.jsonl", {"prompt": "one"})], options=options)
    assert "data.few" in codes(report)


def test_a_run_leaves_out_prompts_that_leave_no_room() -> None:
    tasks = [
        Task("f:1", (Message("user", "short"),)),
        Task("f:2", (Message("user", "word " * 3000),)),
    ]
    fit, unfit = prompts_that_fit(ModelEncoder.open(DEMO), tasks, 1024)
    assert [task.id for task in fit] == ["f:1"]
    assert str(unfit[0]).startswith("f:2: the prompt has ")


def test_a_run_counts_what_it_leaves_out_or_does_not_begin(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path, *sums(20), {"prompt": "word " * 3000})
    path.write_text(path.read_text(encoding="utf-8") + "oops\n", encoding="utf-8")
    spec = TrainSpec(str(DEMO), DataSpec((str(path),)), VerifierSpec("number"))
    tasks, manifest = prepare(spec)
    assert len(tasks.train) + len(tasks.valid) == manifest["rows"] == 20
    assert (manifest["bad_count"], manifest["unfit_count"]) == (1, 1)
    assert manifest["bad_rows"] == ["x.jsonl:22: is not JSON: Expecting value at character 1"]
    strict = TrainSpec(str(DEMO), DataSpec((str(path),), bad_rows="stop"), VerifierSpec("number"))
    assert TrainSpec.from_json(strict.to_json()) == strict
    with pytest.raises(RequestError) as refused:
        prepare(strict)
    assert refused.value.code == "data.bad_row"


@pytest.mark.parametrize(
    ("verifier", "code"),
    [
        (VerifierSpec("demo"), "verifier.always_fails"),
        (VerifierSpec("pattern", {"pattern": "nowhere"}), "verifier.always_fails"),
        (VerifierSpec("pattern", {"pattern": ""}), "verifier.pattern"),
        (VerifierSpec("pattern", {"pattern": "^"}), "verifier.always_passes"),
    ],
)
def test_a_run_does_not_begin_with_a_verifier_that_tells_nothing(
    tmp_path: Path, verifier: VerifierSpec, code: str
) -> None:
    file = write(tmp_path / "x.jsonl", *sums(30))
    with pytest.raises(RequestError) as refused:
        start(TrainSpec(str(DEMO), DataSpec((file,)), verifier), tmp_path / "run")
    assert refused.value.code == code
    assert not (tmp_path / "run").exists()


def test_the_verifier_is_tried_on_the_first_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", *sums(60))
    report = check_data([file], verifier=VerifierSpec("number"))
    assert report.probe is not None
    assert (report.probe.accepted, report.probe.tried) == (5, 5)
    report = check_data([file], verifier=VerifierSpec("demo"))
    assert codes(report)[0] == "verifier.always_fails"
    prompts = write(tmp_path / "y.jsonl", *({"prompt": f"Say {n}"} for n in range(60)))
    report = check_data([prompts], verifier=VerifierSpec("number"))
    assert codes(report)[0] == "verifier.needs_answers"


def test_scripts_of_the_data_are_named() -> None:
    assert scripts_of(["abc", "привет"]) == {"Cyrillic": 0.667, "Latin": 0.333}
    assert scripts_of(["123 !"]) == {}


def test_data_check_speaks_to_people_and_to_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "x.jsonl", *sums(60))
    verifier = '{"kind": "number"}'
    assert main(["data", "check", file, "--model", str(DEMO), "--verifier", verifier]) == 0
    said = capsys.readouterr().out
    assert "60 rows: 60 usable, 0 not" in said
    assert "⟦Answer: 1<|role_end|>⟧" in said
    assert "accepts 5 of 5 reference answers" in said
    assert main(["data", "check", file, "--json", "--model", str(DEMO)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["counts"]["tasks"] == 60
    assert report["seen"][0]["tokens"][0] == {"text": "<role>", "trained": False}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--verifier", "{"], "verifier.json"),
        (["--verifier", '{"kind": "magic"}'], "verifier.kind"),
        (["--column", "prompt"], "data.columns"),
        (["--column", "magic=x"], "data.columns"),
        (["--validation", "2"], "data.option"),
        (["--model", "nowhere"], "checkpoint."),
    ],
)
def test_data_check_refuses_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    file = write(tmp_path / "x.jsonl", *sums(3))
    assert main(["data", "check", file, *arguments]) == 1
    assert f"[{code}" in capsys.readouterr().err


def test_data_check_bears_a_reader_that_leaves_and_a_console_of_few_characters(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "x.jsonl", *sums(60))
    command = [sys.executable, "-m", "trainer", "data", "check", file, "--model", str(DEMO)]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": "1"}
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True)
    assert b"?Answer: 1<|role_end|>?" in answer.stdout
    reading, writing = os.pipe()
    os.close(reading)
    gone = subprocess.run(command, cwd=root, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (gone.returncode, gone.stderr) == (1, b"")


def test_a_check_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom trainer.data.checks import check_data\n"
        f"check_data([{write(tmp_path / 'x.jsonl', *sums(9))!r}], model=Path({str(DEMO)!r}))\n"
        "print('torch' in sys.modules)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert answer.stdout.strip() == "False"
