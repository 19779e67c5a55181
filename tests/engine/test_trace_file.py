"""A trace file from anywhere: read as it was written, or refused in words, never a crash."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import HEADER, full_trace, plain_trace

from engine.trace import Trace, TraceError, open_trace, save_trace
from engine.trace.file import MAGIC, MAX_FILE, MAX_HEADER

DOCS = Path(__file__).resolve().parents[2] / "docs" / "dntrace.md"
CODES = {
    "trace.not_readable",
    "trace.not_a_trace",
    "trace.newer",
    "trace.truncated",
    "trace.too_large",
    "trace.damaged",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spur é.dntrace"
    save_trace(full_trace(), path)
    return path


def refusal(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    assert caught.value.code in CODES
    assert caught.value.message
    assert caught.value.action
    return caught.value


def parts(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and what comes after it."""
    length = int.from_bytes(raw[8:16], "little")
    return json.loads(raw[16 : 16 + length]), raw[-(-(16 + length) // 64) * 64 :]


def whole(header: bytes, data: bytes) -> bytes:
    begin = MAGIC + len(header).to_bytes(8, "little") + header
    return begin + b"\0" * (-len(begin) % 64) + data


def with_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content, data = parts(path.read_bytes())
    change(content)
    path.write_bytes(whole(json.dumps(content).encode(), data))


def test_the_documents_example_reads_it_with_numpy_alone(file: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 11
    assert set(re.findall(r"^import (\w+)", code, re.MULTILINE)) == {"json", "numpy"}
    names: dict[str, Any] = {"path": str(file)}
    exec(code, names)
    trace = full_trace()
    for name in ("ids", "state", "confidence", "seconds", "top_ids", "top_p", "block_start"):
        np.testing.assert_array_equal(names["arrays"][name], getattr(trace, name))
    assert trace.logits is not None
    np.testing.assert_array_equal(names["arrays"]["logits"], trace.logits.values)
    assert names["head"]["trace"]["pieces"]["9"] == "é"
    assert names["head"]["trace"]["messages"][1]["content"] == HEADER.messages[1].content
    assert names["arrays"]["prompt_ids"].tolist() == list(HEADER.prompt_ids)


def test_every_array_and_field_is_in_the_document(file: Path) -> None:
    text = DOCS.read_text(encoding="utf-8")
    content, _ = parts(file.read_bytes())
    names = [*content, *content["arrays"], *content["trace"]]
    assert [name for name in names if f"`{name}`" not in text and name != "format_version"] == []


def test_it_opens_without_torch(file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['PySide6'] = None\n"
        "from engine.trace import open_trace\n"
        "print(open_trace(sys.argv[1]).header.model_name)"
    )
    import subprocess

    answer = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, encoding="utf-8", check=False
    )
    assert answer.stdout == "made up\n", answer.stderr


def test_a_file_that_was_cut_anywhere_is_refused(file: Path, tmp_path: Path) -> None:
    raw = file.read_bytes()
    cut = tmp_path / "cut.dntrace"
    for size in {*range(200), *range(200, len(raw), 37), len(raw) - 1}:
        cut.write_bytes(raw[:size])
        error = refusal(cut)
        assert error.code in ("trace.truncated", "trace.not_a_trace")
        assert (error.code == "trace.not_a_trace") == (size < len(MAGIC))
    cut.write_bytes(raw + b"\0")
    assert refusal(cut).code == "trace.damaged"


def test_damaged_bytes_are_refused_or_still_a_trace(file: Path, tmp_path: Path) -> None:
    """Whatever opens can be looked at: its values are in range."""
    raw, draw = file.read_bytes(), random.Random(7)
    length = int.from_bytes(raw[8:16], "little")
    refused: list[str] = []
    damaged = tmp_path / "damaged.dntrace"
    for case in range(900):
        changed = bytearray(raw)
        where = draw.randrange(16 + length) if case % 2 else draw.randrange(len(raw))
        for _ in range(draw.choice([1, 1, 2, 30])):
            at = min(where + draw.randrange(4), len(raw) - 1)
            changed[at] = draw.choice([0, 0x30, 0x5B, 0x7F, 0xFF, draw.randrange(256)])
        damaged.write_bytes(changed)
        try:
            trace = open_trace(damaged)
        except TraceError as error:
            refused.append(error.code)
        else:
            assert trace.ids.shape == trace.state.shape
            assert trace.state.max() <= 4
            assert 0 <= trace.ids.min() <= trace.ids.max() < 12
    assert len(refused) > 300
    assert set(refused) <= CODES


def test_random_bytes_behind_the_magic_are_refused(tmp_path: Path) -> None:
    draw = random.Random(1)
    path = tmp_path / "noise.dntrace"
    for _ in range(200):
        path.write_bytes(MAGIC + draw.randbytes(draw.randrange(400)))
        refusal(path)
        header = draw.randbytes(draw.randrange(60))
        path.write_bytes(whole(header, draw.randbytes(64)))
        refusal(path)


def _array(name: str, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["arrays"][name].update(changes)


def _trace(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["trace"].update(changes)


HOSTILE = {
    "a huge shape": _array("ids", shape=[2**40, 2**40]),
    "a shape whose product wraps": _array("ids", shape=[2**32, 2**32 + 1]),
    "an empty array": _array("ids", shape=[0, 4]),
    "a negative extent": _array("ids", shape=[-3, 4]),
    "a shape of fractions": _array("ids", shape=[3.0, 4]),
    "a shape of booleans": _array("block", shape=[True]),
    "a shape that is text": _array("ids", shape="34"),
    "another length": _array("block", shape=[2]),
    "another number of dimensions": _array("ids", shape=[12]),
    "a transposed array": _array("ids", shape=[4, 3]),
    "an offset behind the end": _array("ids", offset=2**50),
    "an offset that wraps": _array("ids", offset=2**64 - 64),
    "a negative offset": _array("ids", offset=-64),
    "an odd offset": _array("ids", offset=4),
    "an object array": _array("ids", dtype="|O"),
    "another type": _array("ids", dtype="<i8"),
    "a dtype that is code": _array("ids", dtype="__import__('os')"),
    "no arrays": lambda content: content.update(arrays=[]),
    "an array that is missing": lambda content: content["arrays"].pop("state"),
    "half of the candidates": lambda content: content["arrays"].pop("top_p"),
    "a size that is negative": lambda content: content.update(data_bytes=-1),
    "a size that is text": lambda content: content.update(data_bytes="9"),
    "a version that is text": lambda content: content.update(version="1"),
    "version 0": lambda content: content.update(version=0),
    "no trace": lambda content: content.pop("trace"),
    "a trace that is a list": lambda content: content.update(trace=[]),
    "a role nobody has": _trace(messages=[{"role": "root", "content": ""}]),
    "a message without content": _trace(messages=[{"role": "user"}]),
    "settings that are infinite": lambda content: content["trace"]["settings"].update(top_p=1e999),
    "settings of text": lambda content: content["trace"]["settings"].update(seed="0"),
    "settings without a field": lambda content: content["trace"]["settings"].pop("seed"),
    "a number beyond 64 bits": lambda content: content["trace"]["settings"].update(seed=2**70),
    "a number of many digits": lambda content: content["trace"]["settings"].update(top_p=10**400),
    "pieces that are a list": _trace(pieces=["a"]),
    "a piece under a name": _trace(pieces={"-1": "a"}),
    "a piece that is a number": _trace(pieces={"1": 2}),
    "a level nobody has": _trace(capture="all"),
    "a level that is a list": _trace(capture=["light"]),
    "an end nobody has": _trace(reason="boredom"),
    "a vocabulary of nothing": _trace(vocab_size=0),
    "a smaller vocabulary": _trace(vocab_size=3),
    "a vocabulary without its prompt": _trace(vocab_size=10),
    "an ancestor that is text": _trace(ancestry=["x"]),
    "an ancestor without a change": _trace(ancestry=[{"trace_id": ""}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies_is_refused(file: Path, name: str) -> None:
    with_header(file, HOSTILE[name])
    assert refusal(file).code == "trace.damaged"


def test_a_newer_format_is_called_newer(file: Path) -> None:
    with_header(file, lambda content: content.update(version=2))
    error = refusal(file)
    assert error.code == "trace.newer"
    assert "Update" in error.action


def test_what_a_later_version_may_add_is_passed_over(file: Path) -> None:
    def add(content: dict[str, Any]) -> None:
        content["arrays"]["attention"] = {"dtype": "<f2", "shape": [1], "offset": 0}
        content["trace"]["mood"] = "good"
        content["more"] = 1

    with_header(file, add)
    assert open_trace(file).header == full_trace().header


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"version": 1, "x": ' + b"9" * 10_000 + b"}",
        b'{"version": NaN}',
        b'{"version": 1e999}',
        b"\xff\xfe",
        b"null",
        b"",
        b'{"version": 1}',
        b'{"version": 1, "data_bytes": 64}',
    ],
)
def test_a_bomb_in_json_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "bomb.dntrace"
    path.write_bytes(whole(header, b"\0" * 64))
    assert refusal(path).code == "trace.damaged"


def test_a_header_that_claims_everything_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "claims.dntrace"
    for length in (2**63, 2**64 - 1, 2**40):
        path.write_bytes(MAGIC + length.to_bytes(8, "little") + b"{}")
        assert refusal(path).code == "trace.truncated"
    with path.open("wb") as file:
        file.write(MAGIC + (MAX_HEADER + 1).to_bytes(8, "little"))
        file.truncate(2 * MAX_HEADER)  # full of holes, so that it takes no disk
    assert "header" in refusal(path).message
    with path.open("r+b") as file:
        file.truncate(MAX_FILE + 1)
    assert refusal(path).code == "trace.too_large"


def changed(trace: Trace, name: str, at: tuple[int, ...] | int, value: float) -> Trace:
    array = getattr(trace, name).copy()
    array[at] = value
    return replace(trace, **{name: array})


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("state", (0, 0), 5),
        ("ids", (0, 0), 12),
        ("ids", (0, 0), -1),
        ("edited_from", (1, 1), -2),
        ("edited_from", (1, 1), 12),
        ("confidence", (0, 1), 1.5),
        ("confidence", (0, 1), -0.1),
        ("confidence", (0, 1), float("inf")),
        ("entropy", (0, 1), -1.0),
        ("entropy", (0, 1), float("inf")),
        ("seconds", 0, float("nan")),
        ("block", 0, 1),
        ("block", 2, 2**30),
        ("step", 1, 0),
        ("step", 0, -1),
        ("block_start", 2, 13),
        ("block_start", 0, -4),
        ("forwards", 0, -1),
        ("top_ids", (0, 1, 0), 12),
        ("top_p", (0, 1, 0), 2.0),
    ],
)
def test_a_value_no_reply_could_give_is_refused(
    tmp_path: Path, name: str, at: tuple[int, ...] | int, value: float
) -> None:
    save_trace(changed(full_trace(), name, at, value), tmp_path / "a.dntrace")
    assert refusal(tmp_path / "a.dntrace").code == "trace.damaged"


def test_a_reply_on_the_far_side_of_any_context_is_refused(tmp_path: Path) -> None:
    """Views make room for all positions up to the last."""
    trace = plain_trace()
    far = replace(trace, block=trace.block * 2**28, block_start=8 + trace.block * 2**30)
    save_trace(far, tmp_path / "a.dntrace")
    assert "positions" in refusal(tmp_path / "a.dntrace").message


def test_logits_outside_their_block_are_refused(tmp_path: Path) -> None:
    trace = full_trace()
    assert trace.logits is not None
    for field, value in (("step", 3), ("step", -1), ("position", 7), ("position", 12)):
        array = getattr(trace.logits, field).copy()
        array[0] = value
        logits = replace(trace.logits, **{field: array})
        save_trace(replace(trace, logits=logits), tmp_path / "a.dntrace")
        assert refusal(tmp_path / "a.dntrace").code == "trace.damaged"


def test_other_files_are_refused(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.dntrace", tmp_path / "text.dntrace"
    empty.write_bytes(b"")
    text.write_text("%PDF-1.7", encoding="utf-8")
    assert "empty" in refusal(empty).message
    assert refusal(text).code == "trace.not_a_trace"
    assert refusal(tmp_path / "nowhere.dntrace").code == "trace.not_readable"
    assert refusal(tmp_path).code == "trace.not_readable"
    assert refusal(tmp_path / "a\0b").code == "trace.not_readable"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are a thing of POSIX")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.dntrace")
    assert refusal(tmp_path / "pipe.dntrace").code == "trace.not_readable"


def test_an_open_trace_takes_at_most_twice_its_file(tmp_path: Path) -> None:
    steps, length = 3000, 256
    shape = (steps, length)
    step = np.arange(steps, dtype=np.int32)
    share = np.full(shape, 0.5, np.float32)
    big = replace(
        plain_trace(),
        block=np.zeros(steps, np.int32),
        step=step,
        block_start=np.zeros(steps, np.int32),
        forwards=step,
        seconds=step * 0.001,
        ids=np.ones(shape, np.int32),
        edited_from=np.full(shape, -1, np.int32),
        state=np.ones(shape, np.uint8),
        confidence=share,
        entropy=share,
    )
    path = tmp_path / "big.dntrace"
    save_trace(big, path)
    size = path.stat().st_size
    tracemalloc.start()
    try:
        trace = open_trace(path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace) == steps
    assert size < kept < 1.1 * size
    assert peak < 1.5 * size


def test_what_was_opened_cannot_be_changed_and_does_not_need_its_file(file: Path) -> None:
    trace = open_trace(file)
    with pytest.raises(ValueError, match="read-only"):
        trace.ids[0, 0] = 1
    save_trace(replace(trace, header=replace(trace.header, text="other")), file)
    assert trace.ids[0, 0] == 9
    assert open_trace(file).header.text == "other"
    file.write_bytes(b"")
    assert trace.confidence[0, 1] == np.float32(0.9)


def test_a_failed_write_leaves_what_was_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def no_room(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.trace.file.os.replace", no_room)
    with pytest.raises(TraceError) as caught:
        save_trace(plain_trace(), file)
    assert caught.value.code == "trace.not_written"
    assert "No space left" in caught.value.message
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        save_trace(plain_trace(), tmp_path / "none" / "a.dntrace")
    assert caught.value.code == "trace.not_written"


def test_a_trace_that_no_file_can_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.trace.file.MAX_HEADER", 100)
    with pytest.raises(TraceError) as caught:
        save_trace(plain_trace(), tmp_path / "a.dntrace")
    assert caught.value.code == "trace.too_large"
    assert list(tmp_path.iterdir()) == []
