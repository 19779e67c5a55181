"""Rows people have, in the encodings they save them, and rows that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import RequestError
from trainer.data.jsonl import BadRow, load_tasks, read_jsonl
from trainer.data.task import Task


def _rows(path: Path, text: str, encoding: str = "utf-8", **columns: str) -> list[Task | BadRow]:
    path.write_bytes(text.encode(encoding))
    return list(read_jsonl(path, columns))


def test_the_shapes_people_have_become_the_same_task(tmp_path: Path) -> None:
    lines = (
        '{"prompt": "a?", "answer": "b"}\n'
        '{"instruction": "a?", "output": "b", "input": ""}\n'
        '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'
        '{"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}]}\n'
    )
    rows = _rows(tmp_path / "x.jsonl", lines)
    found = [(r.messages[-1].content, r.reference) for r in rows if isinstance(r, Task)]
    assert found == [("a?", "b")] * 4


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_and_line_ends_are_read(tmp_path: Path, encoding: str, end: str) -> None:
    text = end.join(['{"prompt": "Grüße 你好", "answer": "é"}'] * 2) + end
    rows = _rows(tmp_path / "x.jsonl", text, encoding)
    assert [r.messages[0].content for r in rows if isinstance(r, Task)] == ["Grüße 你好"] * 2


def test_bad_rows_are_named_by_file_and_line_and_the_others_kept(tmp_path: Path) -> None:
    text = '{"prompt": "a"}\n\nnot json\n[1]\n{"other": 1}\n{"messages": []}\n{"prompt": "  "}\n'
    rows = _rows(tmp_path / "x.jsonl", text)
    bad = [str(row) for row in rows if isinstance(row, BadRow)]
    assert [line.split(": ")[0] for line in bad] == [f"x.jsonl:{n}" for n in (3, 4, 5, 6, 7)]
    assert sum(isinstance(row, Task) for row in rows) == 1


def test_named_columns_are_taken_and_missed(tmp_path: Path) -> None:
    text = '{"q": "a", "a": "b"}\n{"a": "b"}\n'
    first, second = _rows(tmp_path / "x.jsonl", text, prompt="q", answer="a")
    assert isinstance(first, Task)
    assert (first.messages[0].content, first.reference) == ("a", "b")
    assert "has no column 'q'" in str(second)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"prompt": "\xff\xfe\xff"}\n')
    with pytest.raises(RequestError, match=r"data\.encoding"):
        list(read_jsonl(path, {}))
    with pytest.raises(RequestError, match=r"data\.unreadable"):
        list(read_jsonl(tmp_path / "none.jsonl", {}))


def test_a_line_that_is_too_long_is_one_bad_row(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("trainer.data.jsonl.ROW_LIMIT", 64)
    text = '{"prompt": "' + "x" * 500 + '"}\n{"prompt": "short"}\n'
    rows = _rows(tmp_path / "x.jsonl", text)
    assert isinstance(rows[0], BadRow)
    assert isinstance(rows[1], Task)


def test_a_file_without_one_good_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"data\.nothing.*x\.jsonl:1"):
        load_tasks((str(path),), {})
