"""Files as people have them become tasks; rows that are none are named by file and line."""

from __future__ import annotations

import csv
import io
import json
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest

from engine.errors import RequestError
from trainer.data.readers import BadRow, load_tasks, preview, read_tasks
from trainer.data.readers.table import separator_of
from trainer.data.task import Task


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read(path: Path, **columns: str) -> list[Task | BadRow]:
    return list(read_tasks(path, columns))


def said(rows: list[Task | BadRow]) -> list[tuple[str, str | None]]:
    """Prompt and answer of every task; every row must be one."""
    assert [str(row) for row in rows if isinstance(row, BadRow)] == []
    return [(row.messages[-1].content, row.reference) for row in rows if isinstance(row, Task)]


def bad(rows: list[Task | BadRow]) -> list[str]:
    return [str(row) for row in rows if isinstance(row, BadRow)]


SHAPES: list[dict[str, Any]] = [
    {"prompt": "a?", "answer": "b"},
    {"Question": "a?", "Response": "b"},
    {"instruction": "a?", "output": "b", "input": ""},
    {"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]},
    {"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}]},
    {"messages": [{"role": "User", "content": [{"type": "text", "text": "a?"}]},
                  {"role": "model", "content": [{"type": "text", "text": "b"}]}]},
]  # fmt: skip


@pytest.mark.parametrize("row", SHAPES, ids=lambda row: next(iter(row)))
def test_the_shapes_people_have_become_the_same_task(tmp_path: Path, row: dict[str, Any]) -> None:
    assert said(read(write(tmp_path / "x.jsonl", lines(row, row)))) == [("a?", "b")] * 2
    assert (
        said(read(write(tmp_path / "x.json", json.dumps([row, row], indent=2))))
        == [("a?", "b")] * 2
    )
    table = pyarrow.Table.from_pylist([row, row])
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    assert said(read(tmp_path / "x.parquet")) == [("a?", "b")] * 2


def test_a_conversation_is_asked_up_to_its_last_question(tmp_path: Path) -> None:
    talk = [("system", "s"), ("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")]
    row = {"messages": [{"role": role, "content": text} for role, text in talk], "skill": "sums"}
    (task,) = read(write(tmp_path / "x.jsonl", lines(row)))
    assert isinstance(task, Task)
    assert [(m.role, m.content) for m in task.messages] == talk[:-1]
    assert (task.reference, task.skill, task.id) == ("4", "sums", "x.jsonl:1")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends_are_read(tmp_path: Path, encoding: str, end: str) -> None:
    text = end.join(['{"prompt": "Grüße, Welt €", "answer": "é"}'] * 3) + end
    assert said(read(write(tmp_path / "x.jsonl", text, encoding))) == [("Grüße, Welt €", "é")] * 3
    table = end.join(["prompt,answer", "Grüße €,é", '"zwei\nZeilen",b']) + end
    rows = said(read(write(tmp_path / "x.csv", table, encoding)))
    assert rows == [("Grüße €", "é"), ("zwei\nZeilen", "b")]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_tables_are_read_with_their_own_separator_and_quotes(
    tmp_path: Path, separator: str
) -> None:
    text = io.StringIO()
    rows = [("What, is; this|?\t", 'He said "no"'), ("two\nlines", ""), ("x", "0")]
    csv.writer(text, delimiter=separator).writerows([("prompt", "answer"), *rows])
    found = said(read(write(tmp_path / "x.csv", text.getvalue())))
    assert found == [(prompt, answer or None) for prompt, answer in rows]
    assert separator_of(f'"a,b;c|d"{separator}e') == separator


def test_line_ends_of_windows_are_not_taught(tmp_path: Path) -> None:
    table = write(tmp_path / "x.csv", 'prompt,answer\r\n"a\r\nb","c\r\nd"\r\n')
    assert said(read(table)) == [("a\nb", "c\nd")]
    row = {**MBPP, "code": "def add(a, b):\r\n    return a + b"}
    (task,) = read(write(tmp_path / "x.jsonl", lines(row)))
    assert isinstance(task, Task)
    assert task.reference == "```python\ndef add(a, b):\n    return a + b\n```"


def test_plain_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    rows = read(write(tmp_path / "x.txt", "first\n\n  second, really\n"))
    assert said(rows) == [("first", None), ("second, really", None)]
    assert [row.id for row in rows if isinstance(row, Task)] == ["x.txt:1", "x.txt:3"]


def test_bad_rows_are_named_by_file_and_line_and_the_others_kept(tmp_path: Path) -> None:
    text = (
        '{"prompt": "a"}\n\nnot json\n[1]\n{"other": 1}\n{"prompt": "  "}\n{"prompt": {}}\n'
        '{"prompt": "half \\ud800"}\n{"prompt": "b"}\n'
    )
    rows = read(write(tmp_path / "x.jsonl", text))
    assert [line.split(": ", 1) for line in bad(rows)] == [
        ["x.jsonl:3", "is not JSON: Expecting value at character 1"],
        ["x.jsonl:4", "is not an object"],
        ["x.jsonl:5", "has no column 'prompt' (it has other)"],
        ["x.jsonl:6", "column 'prompt' is empty"],
        ["x.jsonl:7", "column 'prompt' is not text"],
        ["x.jsonl:8", "holds half a character (U+D800)"],
    ]
    assert len(rows) == 8


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        ([], "has no list of messages"),
        ("hello", "has no list of messages"),
        (["hello"], "has a message that is no object"),
        ([{"role": "tool", "content": "x"}], "has a message of role 'tool'"),
        ([{"role": "user", "content": None}], "has a message of 'user' without text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "not text alone"),
        ([{"role": "assistant", "content": "x"}], "has no message of a person to answer"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}], "empty answer"),
    ],
)
def test_talks_that_cannot_be_learnt_are_bad_rows(tmp_path: Path, talk: Any, reason: str) -> None:
    good = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    rows = read(write(tmp_path / "x.jsonl", lines(good, good, {"messages": talk})))
    assert len(bad(rows)) == 1
    assert bad(rows)[0].startswith("x.jsonl:3: ")
    assert reason in bad(rows)[0]


def test_rows_of_a_table_that_do_not_fit_the_header_are_bad(tmp_path: Path) -> None:
    text = 'prompt,answer\na,b\na,b,c\nonly\n"x"y,b\n,b\nlast,b\n"never closed,b\nc,d\n'
    rows = read(write(tmp_path / "x.csv", text))
    assert [line.split(":")[1] for line in bad(rows)] == ["3", "4", "5", "6", "8"]
    assert "has 3 fields; the header names 2" in bad(rows)[0]
    tasks = [row for row in rows if isinstance(row, Task)]
    assert [task.messages[0].content for task in tasks] == ["a", "last"]


@pytest.mark.parametrize("header", ["a,a\n1,2\n", ",\n1,2\n", '"a\n'])
def test_a_table_without_a_header_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(write(tmp_path / "x.csv", header))
    assert refused.value.code == "data.header"


def test_bytes_that_are_no_text_cost_one_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n{"prompt": "caf\xe9"}\n{"prompt": "fine"}\n')
    rows = read(path)
    assert bad(rows) == ["x.jsonl:2: is not UTF-8 text: byte 0xe9 at character 16"]
    assert len(rows) == 3


def test_a_list_that_is_cut_off_keeps_what_came_before(tmp_path: Path) -> None:
    whole = json.dumps([{"prompt": f"{n}"} for n in range(5)], indent=1)
    rows = read(write(tmp_path / "x.json", whole[: whole.index('"3"')]))
    assert len(rows) == 4
    assert bad(rows) == ["x.json:11: is not JSON; the list cannot be read further"]


def test_a_line_that_is_too_long_is_one_bad_row(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("trainer.data.readers.text.ROW_LIMIT", 64)
    rows = read(write(tmp_path / "x.jsonl", lines({"prompt": "x" * 500}, {"prompt": "short"})))
    assert [type(row) for row in rows] == [BadRow, Task]
    rows = read(write(tmp_path / "x.csv", "prompt,answer\n" + "x" * 500 + ",a\nshort,b\n"))
    assert [type(row) for row in rows] == [BadRow, Task]


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("x.jsonl", b"", "data.empty", "empty"),
        ("x.csv", b"\xef\xbb\xbf\n \n", "data.empty", "empty"),
        ("x.xlsx", b"PK\x03\x04rest", "data.kind", "workbook"),
        ("x.jsonl", b"\x1f\x8b\x08rest", "data.kind", "gzip"),
        ("x.parquet", b"version https://git-lfs.github.com/spec/v1\n", "data.kind", "git lfs"),
        ("x.jsonl", b"<!doctype html><p>", "data.kind", "web page"),
        ("x.json", b'{\n "data": []\n}', "data.kind", "one object over many lines"),
        ("x.bin", bytes(range(256)) * 8, "data.binary", "not text"),
        ("x.log", b"something happened", "data.kind", "no kind of file"),
        ("x.parquet", b"PAR1 and then nothing", "data.parquet", "x.parquet"),
    ],
)
def test_files_that_are_no_examples_are_refused_with_what_they_are(
    tmp_path: Path, name: str, content: bytes, code: str, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError) as refused:
        read(tmp_path / name)
    assert refused.value.code == code
    assert words in f"{refused.value.message} {refused.value.action}"


def test_parquet_rows_that_are_no_text_are_bad_and_names_must_differ(tmp_path: Path) -> None:
    mixed = pyarrow.array([b"fine", b"\xff", b"fine"])
    options = pyarrow.compute.CastOptions(pyarrow.string(), allow_invalid_utf8=True)
    texts = pyarrow.compute.cast(mixed, options=options)
    pyarrow.parquet.write_table(pyarrow.table({"prompt": texts}), tmp_path / "x.parquet")
    assert bad(read(tmp_path / "x.parquet")) == [
        "x.parquet:2: is not UTF-8 text (invalid start byte)"
    ]
    table = pyarrow.table([texts, texts], names=["prompt", "prompt"])
    pyarrow.parquet.write_table(table, tmp_path / "y.parquet")
    with pytest.raises(RequestError) as refused:
        read(tmp_path / "y.parquet")
    assert refused.value.code == "data.header"


def test_a_damaged_file_ends_in_a_sentence_wherever_it_is_damaged(tmp_path: Path) -> None:
    rng = random.Random(11)
    rows = [{"prompt": f"Frage {n} é?", "answer": str(n)} for n in range(30)]
    whole = {"x.jsonl": lines(*rows).encode(), "x.json": json.dumps(rows, indent=1).encode()}
    whole["x.csv"] = ("prompt,answer\n" + "".join(f'"q {n}",{n}\n' for n in range(30))).encode()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    whole["x.parquet"] = (tmp_path / "x.parquet").read_bytes()
    counted: list[int] = []
    codes: set[str] = set()
    for name, content in whole.items():
        for _ in range(60):
            damaged = bytearray(content)
            for _ in range(rng.choice((1, 3, 20))):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            (tmp_path / name).write_bytes(damaged[: rng.randrange(len(damaged) // 2, len(damaged))])
            try:
                loaded = load_tasks((str(tmp_path / name),))
                counted.append(len(loaded.tasks) + loaded.bad_count - loaded.rows)
            except RequestError as error:
                codes.add(error.code.split(".")[0])
    assert codes == {"data"}
    assert counted
    assert not any(counted)


def test_files_that_are_not_there_and_folders_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(RequestError) as refused:
            read(path)
        assert refused.value.code == "data.unreadable"


def test_columns_that_were_named_are_taken_and_missed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines({"q1": "a", "x": "b"}, {"x": "b"}))
    first, second = read(path, prompt="q1", answer="x")
    assert isinstance(first, Task)
    assert (first.messages[0].content, first.reference) == ("a", "b")
    assert "has no column 'q1'" in str(second)
    for columns in (
        {"answer": "x"},
        {"prompt": "q1", "magic": "x"},
        {"prompt": "q1", "answer": "y"},
    ):
        with pytest.raises(RequestError) as refused:
            read(path, **columns)
        assert refused.value.code == "data.columns"


@pytest.mark.parametrize(
    ("row", "prompt", "answer", "sure"),
    [
        ({"question": "a", "answer": "b"}, "question", "answer", True),
        ({"prompt": "a"}, "prompt", "", True),
        ({"User Message": "a", "Output Text": "b"}, "User Message", "Output Text", True),
        ({"prompt": "a", "chosen": "b", "response": "c"}, "prompt", "response", False),
        ({"question": "a", "context": "c", "answer": "b"}, "question", "answer", False),
        ({"frage": "a", "antwort": "b"}, "frage", "antwort", False),
        ({"text": "a", "sentiment": "b"}, "text", "", False),
        ({"x": 1, "y": 2}, "", "", False),
    ],
)  # fmt: skip
def test_a_guess_says_how_sure_it_is(
    tmp_path: Path, row: dict[str, Any], prompt: str, answer: str, sure: bool
) -> None:
    path = write(tmp_path / "x.jsonl", lines(row, row))
    guess = preview(path).guess
    assert (guess.layout.mapping.prompt, guess.layout.mapping.answer) == (prompt, answer)
    assert guess.sure is sure
    assert guess.columns == tuple(row)
    assert guess.reason
    if not sure:
        with pytest.raises(RequestError) as refused:
            load_tasks((str(path),))
        assert refused.value.code == "data.columns"


GSM8K = {
    "question": "Tom has 2 bags of 3. How many?",
    "answer": "He has 2 * 3 = <<2*3=6>>6.\n#### 6",
}
MATH = {
    "problem": "What is $1+1$?",
    "solution": "We get $\\boxed{2}$.",
    "answer": "2",
    "subject": "Algebra",
    "level": 1,
    "unique_id": "test/1",
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def one():\n    '''One.'''\n",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
    "entry_point": "one",
}
MBPP = {
    "task_id": 601,
    "text": "Write a function to add.",
    "code": "def add(a, b):\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


@pytest.mark.parametrize(
    ("row", "title", "kind", "asked"),
    [
        (GSM8K, "GSM8K", "number", "Tom has"),
        (MATH, "MATH", "math", "What is"),
        (HUMANEVAL, "HumanEval", "unit_tests", "Complete this Python function."),
        (MBPP, "MBPP", "unit_tests", "assert add(1, 2) == 3"),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_benchmarks_are_known_asked_as_usual_and_their_answers_accepted(
    tmp_path: Path, row: dict[str, Any], title: str, kind: str, asked: str, suffix: str
) -> None:
    from trainer.verify.probe import probe
    from trainer.verify.registry import make_verifier

    path = tmp_path / f"x.{suffix}"
    if suffix == "jsonl":
        write(path, lines(row, row))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row]), path)
    found = preview(path)
    assert found.guess.title == title
    assert found.guess.sure
    assert found.guess.verifier is not None
    assert found.guess.verifier.kind == kind
    tasks = load_tasks((str(path),)).tasks
    assert asked in tasks[0].messages[0].content
    assert "<<" not in (tasks[0].reference or "")
    tried = probe(make_verifier(found.guess.verifier), tasks)
    assert (tried.accepted, tried.tried, tried.wrong_accepted) == (2, 2, 0)


def test_bad_rows_are_skipped_and_counted_or_stop_the_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines({"prompt": "a"}) + "oops\n" + lines({"prompt": "b"}))
    loaded = load_tasks((str(path),))
    assert (len(loaded.tasks), loaded.bad_count, loaded.rows) == (2, 1, 3)
    with pytest.raises(RequestError, match=r"x\.jsonl:2") as refused:
        load_tasks((str(path),), on_bad="stop")
    assert refused.value.code == "data.bad_row"


def test_long_texts_are_kept_within_the_memory_meant_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.readers.MOST_CHARACTERS", 10_000)
    path = write(tmp_path / "x.jsonl", lines(*({"prompt": f"{n:0100}"} for n in range(900))))
    loaded = load_tasks((str(path),))
    kept = [int(task.messages[0].content) for task in loaded.tasks]
    assert 25 <= len(kept) <= 100
    assert len(kept) + loaded.left_out == loaded.rows == 900
    assert kept == sorted(kept)
    assert 250 < sum(kept) / len(kept) < 650
    huge = write(tmp_path / "y.jsonl", lines({"prompt": "x" * 20_000}))
    assert len(load_tasks((str(huge),)).tasks) == 1


def test_reading_a_long_file_can_be_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines(*({"prompt": str(n)} for n in range(500))))
    asked: list[int] = []

    def stop() -> None:
        asked.append(1)
        if len(asked) == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_tasks((str(path),), stop=stop)
    assert len(asked) == 10


@pytest.mark.parametrize("text", ["{}\n", "oops\n", '{"prompt": ""}\n', '{"prompt": null}\n'])
def test_a_file_without_one_good_row_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "x.jsonl", text)
    with pytest.raises(RequestError) as refused:
        load_tasks((str(path),), {"prompt": "prompt"})
    assert refused.value.code == "data.nothing"
    assert "x.jsonl:1" in refused.value.message
    with pytest.raises(RequestError):
        load_tasks((str(path),))


def test_of_too_many_rows_a_fair_draw_is_kept_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", lines(*({"prompt": str(n)} for n in range(500))))
    loaded = load_tasks((str(path),), most=50)
    kept = [int(task.messages[0].content) for task in loaded.tasks]
    assert (len(kept), loaded.left_out, loaded.rows) == (50, 450, 500)
    assert kept == sorted(kept)
    assert 150 < sum(kept) / 50 < 350
    assert load_tasks((str(path),), most=50).tasks == loaded.tasks


def test_a_file_of_five_gigabytes_opens_at_once(tmp_path: Path) -> None:
    for name, head in (
        ("x.jsonl", lines(*({"prompt": "p" * 900, "answer": "a"} for _ in range(80)))),
        ("x.json", "[" + ",".join(lines({"prompt": "p" * 900}) for _ in range(600))),
        ("x.csv", "prompt,answer\n" + "question,reply\n" * 5000),
    ):
        with (tmp_path / name).open("wb") as file:
            file.write(head.encode())
            file.truncate(5 << 30)  # sparse: takes no room
        began = time.monotonic()
        assert len(preview(tmp_path / name).tasks) == 50
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_memory_stays_flat_over_a_long_file(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": f"{n} " + "word " * 200, "answer": str(n)} for n in range(12_000)]
    path = tmp_path / f"x.{suffix}"
    if suffix == "jsonl":
        write(path, lines(*rows))
    elif suffix == "json":
        write(path, json.dumps(rows, indent=1))
    elif suffix == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, ["prompt", "answer"])
            table.writeheader()
            table.writerows(rows)
    else:
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows), path, row_group_size=4000, compression="none",
            use_dictionary=False,
        )  # fmt: skip
    assert path.stat().st_size > 11 << 20
    del rows
    preview(path)
    pool = pyarrow.default_memory_pool()
    before, allocated = pool.bytes_allocated(), 0
    tracemalloc.start()
    count = 0
    for row in read_tasks(path):
        assert isinstance(row, Task)
        count += 1
        if count % 1000 == 0:
            allocated = max(allocated, pool.bytes_allocated() - before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 12_000
    assert peak + allocated < 4 << 20
