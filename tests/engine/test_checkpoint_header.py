"""Malformed safetensors headers: each kind has its own code and message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folder_maker import copy_folder, raw_file, refusal


@pytest.fixture
def model(shared_fixtures: Path, tmp_path: Path) -> Path:
    return copy_folder(shared_fixtures / "llada2-tiny", tmp_path / "model")


def entry(dtype: str, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


F32_2 = entry("F32", [2], 0, 8)
HEADERS: dict[str, tuple[bytes, str]] = {
    "seven bytes": (b"1234567", "header_too_long"),
    "length 2^64-1": (b"\xff" * 8 + b"{}", "header_too_long"),
    "no header at all": (raw_file(""), "header_invalid"),
    "not JSON": (raw_file("weights"), "header_invalid"),
    "not an object": (raw_file("[]"), "header_invalid"),
    "not text": (raw_file(b"\xff\xfe\x00"), "header_invalid"),
    "too deep": (raw_file("[" * 100_000), "header_invalid"),
    "huge number": (raw_file('{"a": ' + "9" * 6000 + "}"), "header_invalid"),
    "duplicate key": (
        raw_file('{"a": %s, "a": %s}' % ((json.dumps(F32_2),) * 2), bytes(8)),
        "duplicate_key",
    ),
    "no description": (raw_file({"a": 1}), "header_invalid"),
    "no dtype": (raw_file({"a": {"shape": [], "data_offsets": [0, 0]}}), "unknown_dtype"),
    "negative size": (raw_file({"a": entry("F32", [-2], 0, 8)}, bytes(8)), "header_invalid"),
    "float size": (raw_file({"a": entry("F32", [2.0], 0, 8)}, bytes(8)), "header_invalid"),
    "flag as size": (raw_file({"a": entry("U8", [True], 0, 1)}, bytes(1)), "header_invalid"),
    "shape is text": (raw_file({"a": entry("F32", "2", 0, 8)}, bytes(8)), "header_invalid"),
    "offsets backwards": (raw_file({"a": entry("F32", [2], 8, 0)}, bytes(8)), "header_invalid"),
    "offsets too few": (
        raw_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, bytes(8)),
        "header_invalid",
    ),
    "size against shape": (raw_file({"a": entry("F32", [3], 0, 8)}, bytes(8)), "header_invalid"),
    "shape beyond 64 bits": (
        raw_file({"a": entry("F32", [2**40, 2**40], 0, 8)}, bytes(8)),
        "header_invalid",
    ),
    "overlap": (
        raw_file({"a": F32_2, "b": entry("F32", [2], 4, 12)}, bytes(12)),
        "header_invalid",
    ),
    "hole": (raw_file({"a": F32_2, "b": entry("F32", [2], 12, 20)}, bytes(20)), "header_invalid"),
    "starts late": (raw_file({"a": entry("F32", [2], 4, 12)}, bytes(12)), "header_invalid"),
    "short data": (raw_file({"a": F32_2}, bytes(7)), "truncated"),
    "trailing data": (raw_file({"a": F32_2}, bytes(9)), "trailing_bytes"),
    "control characters in a name": (raw_file({"a\x1b[2J": F32_2}, bytes(8)), "header_invalid"),
    "lone surrogate in a name": (raw_file('{"\\ud800": 1}'), "header_invalid"),
    "git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha", "lfs_pointer"),
    "HTML page": (b"<!DOCTYPE html><html>404</html>", "header_too_long"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_malformed_headers_are_refused_each_with_its_code(model: Path, case: str) -> None:
    content, code = HEADERS[case]
    (model / "model.safetensors").write_bytes(content)
    error = refusal(model)
    assert error.code == f"checkpoint.{code}"
    assert error.file == "model.safetensors"
    assert error.message.isprintable()


def test_an_empty_header_has_no_model_in_it(model: Path) -> None:
    (model / "model.safetensors").write_bytes(raw_file({"__metadata__": {"format": "pt"}}))
    error = refusal(model)
    assert error.code == "checkpoint.missing_tensor"
    assert error.file == "model.safetensors"
