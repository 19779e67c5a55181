"""Reading ahead through staging buffers gives the file's bytes, whatever is asked for and when."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.checkpoint import staging
from engine.checkpoint.staging import StagedReader
from engine.checkpoint.tensor_file import TensorFile
from engine.errors import CheckpointError

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
