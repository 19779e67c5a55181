"""Damaged folders give a typed error or open; never anything else, and never a hang.

Draws are derandomised, so a failure here fails again. The base is the smallest intact fixture.
"""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from folder_maker import copy_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.checkpoint import open_checkpoint
from engine.errors import CheckpointError

LIMIT = 5.0  # seconds for a folder of 40 kB; a hang, not a speed test
SETTINGS = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NUMBERS = (-1, 0, 1, 2, 3, 7, 10**6, 2**31, 2**53, 2**64, 10**40, 0.5, 1e308)
OTHERS = (None, True, False, "", "x", "\x1b[31m", "\ud800", "F32", [], [0], [[]], {})
ODD = st.sampled_from([*NUMBERS, *OTHERS, float("nan"), float("inf")])


@pytest.fixture(scope="module")
def base(shared_fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = shared_fixtures / "broken" / "base_ok"
    return copy_folder(source, tmp_path_factory.mktemp("fuzz") / "base ok")


@pytest.fixture(scope="module")
def weights(base: Path) -> bytes:
    return (base / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def config(base: Path) -> str:
    return (base / "config.json").read_text(encoding="utf-8")


def opens_or_refuses(folder: Path) -> bool:
    """True when it opened. Every other outcome than a well-worded refusal fails the test."""
    start = time.monotonic()
    refused: CheckpointError | None = None
    try:
        open_checkpoint(folder).release()
    except CheckpointError as error:
        refused = error
    assert time.monotonic() - start < LIMIT
    if refused is not None:
        assert refused.file
        assert refused.message.isprintable()
        assert str(refused).encode("utf-8")
    return refused is None


def opens_with_weights(folder: Path, intact: bytes, damaged: bytes) -> bool:
    path = folder / "model.safetensors"
    path.write_bytes(damaged)
    try:
        return opens_or_refuses(folder)
    finally:
        path.write_bytes(intact)


def header_of(raw: bytes) -> dict[str, Any]:
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length])


def with_header(raw: bytes, header: dict[str, Any]) -> bytes:
    length = struct.unpack("<Q", raw[:8])[0]
    text = json.dumps(header).encode("ascii")
    return struct.pack("<Q", len(text)) + text + raw[8 + length :]


@SETTINGS
@given(data=st.data())
def test_truncation_anywhere_is_refused(base: Path, weights: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(weights) - 1))
    assert not opens_with_weights(base, weights, weights[:size])


@SETTINGS
@given(data=st.data())
def test_flipped_header_bytes(base: Path, weights: bytes, data: st.DataObject) -> None:
    length = struct.unpack("<Q", weights[:8])[0]
    damaged = bytearray(weights)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    opens_with_weights(base, weights, bytes(damaged))


@SETTINGS
@given(data=st.data())
def test_flipped_bytes_anywhere(base: Path, weights: bytes, data: st.DataObject) -> None:
    damaged = bytearray(weights)
    damaged[data.draw(st.integers(0, len(weights) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    opens_with_weights(base, weights, bytes(damaged))


@SETTINGS
@given(data=st.data())
def test_odd_values_in_the_header(base: Path, weights: bytes, data: st.DataObject) -> None:
    header = header_of(weights)
    name = data.draw(st.sampled_from(sorted(header)))
    field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "entry", "element"]))
    odd = data.draw(ODD)
    if field == "entry" or name == "__metadata__":
        header[name] = odd
    elif field == "element":
        header[name]["data_offsets"][data.draw(st.integers(0, 1))] = odd
    else:
        header[name][field] = odd
    opens_with_weights(base, weights, with_header(weights, header))


@SETTINGS
@given(data=st.data())
def test_tensors_renamed_swapped_or_dropped_in_the_header(
    base: Path, weights: bytes, data: st.DataObject
) -> None:
    header = header_of(weights)
    names = sorted(set(header) - {"__metadata__"})
    first, second = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
    header[first], header[second] = header[second], header[first]
    if data.draw(st.booleans()):
        header[data.draw(st.sampled_from(["", "model.layers.99999999999.x", "é", "a" * 5000]))] = (
            header.pop(first)
        )
    opens_with_weights(base, weights, with_header(weights, header))


@SETTINGS
@given(data=st.data())
def test_odd_values_in_the_config(base: Path, config: str, data: st.DataObject) -> None:
    values = json.loads(config)
    for _ in range(data.draw(st.integers(1, 2))):
        values[data.draw(st.sampled_from(sorted(values)))] = data.draw(ODD)
    path = base / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    try:
        opens_or_refuses(base)
    finally:
        path.write_text(config, encoding="utf-8")


@SETTINGS
@given(data=st.data())
def test_odd_values_in_the_generation_config(base: Path, data: st.DataObject) -> None:
    names = ["threshold", "editing_threshold", "steps", "temperature", "eos_token_id", "decoding"]
    names += ["mask_token_id", "max_post_steps", "top_p", "top_k", "do_sample", "num_to_transfer"]
    path = base / "generation_config.json"
    original = path.read_text(encoding="utf-8")
    values = json.loads(original) | {data.draw(st.sampled_from(names)): data.draw(ODD)}
    path.write_text(json.dumps(values), encoding="utf-8")
    try:
        opens_or_refuses(base)
    finally:
        path.write_text(original, encoding="utf-8")


@SETTINGS
@given(text=st.binary(max_size=64))
def test_any_bytes_as_weights(base: Path, weights: bytes, text: bytes) -> None:
    assert not opens_with_weights(base, weights, text)
    assert not opens_with_weights(base, weights, struct.pack("<Q", len(text)) + text)
