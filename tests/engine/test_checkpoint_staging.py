"""Reading ahead through staging buffers gives the file's bytes, whatever is asked for and when."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.checkpoint import staging
from engine.checkpoint.staging import StagedReader
from engine.checkpoint.tensor_file import Bytes, TensorFile
from engine.errors import CheckpointError, RuntimeFailure

CPU = torch.device("cpu")


def random_file(path: Path, size: int, seed: int) -> TensorFile:
    """A file with one tensor of random bytes."""
    header = {"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    raw = json.dumps(header).encode()
    data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data.tobytes())
    return TensorFile(path)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LARGEST", 4096)
    monkeypatch.setattr(staging, "SMALLEST", 256)


@pytest.mark.usefixtures("small_windows")
def test_random_and_sequential_reads_give_the_files_bytes(tmp_path: Path) -> None:
    files = [random_file(tmp_path / f"{n}.safetensors", 50_000, n) for n in range(2)]
    whole = [np.frombuffer(file.path.read_bytes(), np.uint8) for file in files]
    reader = StagedReader(CPU)
    draw = random.Random(3)
    position = 0
    for turn in range(2000):
        which = draw.random() < 0.1
        size = draw.choice([1, 4, 100, 3000, 9000])
        if draw.random() < 0.2 or position + size > files[which].size:
            position = draw.randrange(files[which].size - size)
        out = torch.zeros(size, dtype=torch.uint8)
        reader.copy(files[which], position, out)
        wanted = whole[which][position : position + size]
        assert np.array_equal(out.numpy(), wanted), turn
        position += size
    reader.close()


@pytest.mark.usefixtures("small_windows")
def test_a_file_that_shrinks_is_named(tmp_path: Path) -> None:
    file = random_file(tmp_path / "a.safetensors", 50_000, 1)
    with file.path.open("r+b") as handle:
        handle.truncate(20_000)
    reader = StagedReader(CPU)
    with pytest.raises(CheckpointError, match=r"a\.safetensors shrank") as caught:
        reader.copy(file, 10_000, torch.zeros(30_000, dtype=torch.uint8))
    assert caught.value.code == "checkpoint.changed"
    reader.close()


def test_a_short_tail_is_read_to_the_end(tmp_path: Path) -> None:
    file = random_file(tmp_path / "a.safetensors", 10, 1)
    reader = StagedReader(CPU)
    out = torch.zeros(10, dtype=torch.uint8)
    reader.copy(file, file.size - 10, out)
    assert out.numpy().tobytes() == file.path.read_bytes()[-10:]
    reader.close()


@pytest.fixture
def read_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads from files."""
    counts: list[int] = []
    pread = TensorFile.pread

    def counted(file: TensorFile, out: Bytes, start: int) -> None:
        counts.append(len(out))
        pread(file, out, start)

    monkeypatch.setattr(TensorFile, "pread", counted)
    return counts


@pytest.mark.usefixtures("small_windows")
def test_strands_read_in_turn_are_read_once(tmp_path: Path, read_counts: list[int]) -> None:
    """As a layer is: its scales, its codes, and now and then a small tensor from elsewhere."""
    file = random_file(tmp_path / "a.safetensors", 400_000, 1)
    whole = np.frombuffer(file.path.read_bytes(), np.uint8)
    reader = StagedReader(CPU)
    strands = {0: 10, 20_000: 1_500, 80_000: 12_000}  # where each begins: what a layer takes of it
    for layer in range(20):
        for begin, size in strands.items():
            start = begin + layer * size
            out = torch.zeros(size, dtype=torch.uint8)
            reader.copy(file, start, out)
            assert np.array_equal(out.numpy(), whole[start : start + size]), (layer, begin)
    reader.close()
    asked = 20 * sum(strands.values())
    ahead = staging.AHEAD * staging.LARGEST  # at the end of each strand, nobody knows it is one
    assert sum(read_counts) <= asked + len(strands) * ahead


@pytest.mark.usefixtures("small_windows")
def test_reading_goes_on_while_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, far = random_file(tmp_path / "a.safetensors", 200_000, 1), threading.Event()
    pread = TensorFile.pread

    def watched(file: TensorFile, out: Bytes, start: int) -> None:
        pread(file, out, start)
        if start >= 20_000 + 2 * staging.LARGEST:
            far.set()

    monkeypatch.setattr(TensorFile, "pread", watched)
    reader = StagedReader(CPU)
    reader.copy(file, 0, torch.zeros(20_000, dtype=torch.uint8))
    assert far.wait(20)
    reader.close()


def test_a_failed_read_ahead_is_told_when_its_bytes_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LARGEST", 4096)
    monkeypatch.setattr(staging, "SMALLEST", 4096)
    file = random_file(tmp_path / "a.safetensors", 50_000, 1)
    reader = StagedReader(CPU)
    with file.path.open("r+b") as handle:
        handle.truncate(9_000)
    reader.copy(file, 0, torch.zeros(8_000, dtype=torch.uint8))  # what comes next is not there
    for _ in range(2):  # nothing is kept of the failure
        with pytest.raises(CheckpointError, match="shrank"):
            reader.copy(file, 8_000, torch.zeros(8_000, dtype=torch.uint8))
    reader.close()


def test_no_memory_to_read_through_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(staging.torch, "empty", refuse)
    with pytest.raises(RuntimeFailure, match="not the GPU's") as caught:
        StagedReader(CPU)
    assert caught.value.code == "load.out_of_host_memory"
    assert caught.value.action


def test_another_fault_of_the_driver_is_not_called_a_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(staging.torch, "empty", refuse)
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        StagedReader(CPU)
