"""Weight files that are written in pieces: read back by the safetensors package and by us."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.checkpoint.tensor_file import ITEM_SIZES, TensorFile
from engine.checkpoint.tensor_writer import FileLayout, NewFile, NewTensor

TENSORS = (
    NewTensor("bytes.odd", "U8", (3, 5)),
    NewTensor("half", "BF16", (4, 3)),
    NewTensor("half.odd", "BF16", (3,)),
    NewTensor("scales", "F8_E4M3", (2, 8)),
    NewTensor("one", "F32", ()),
    NewTensor("nothing", "F32", (0, 4)),
    NewTensor("long", "I64", (2,)),
)


def content(tensor: NewTensor) -> np.ndarray:
    seed = len(tensor.name)
    return np.random.default_rng(seed).integers(0, 120, tensor.nbytes, dtype=np.uint8)


def write(path: Path, layout: FileLayout, tensors: tuple[NewTensor, ...] = TENSORS) -> None:
    with NewFile(path, layout) as file:
        for tensor in reversed(tensors):  # in any order, in pieces
            data, middle = content(tensor), tensor.nbytes // 2
            file.write(tensor.name, middle, data[middle:])
            file.write(tensor.name, 0, data[:middle])


def test_the_package_reads_what_was_written_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, FileLayout(TENSORS))
    loaded = load_file(path)
    assert set(loaded) == {tensor.name for tensor in TENSORS}
    for tensor in TENSORS:
        value = loaded[tensor.name]
        assert tuple(value.shape) == tensor.shape
        assert np.array_equal(value.reshape(-1).view(torch.uint8).numpy(), content(tensor))


def test_our_reader_finds_every_tensor_aligned_to_its_elements(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    layout = FileLayout(TENSORS)
    write(path, layout)
    file = TensorFile(path)
    file.close()
    assert file.size == layout.size
    for tensor in TENSORS:
        entry = file.entries[tensor.name]
        assert (entry.dtype, entry.shape) == (tensor.dtype, tensor.shape)
        assert entry.start == layout.starts[tensor.name]
        assert entry.start % ITEM_SIZES[entry.dtype] == 0


def test_tensors_that_keep_the_alignment_keep_their_order() -> None:
    """A reader that goes through the model in order goes through the file in order."""
    names = [f"{n}.{part}" for n in range(3) for part in ("scale", "codes")]
    tensors = [NewTensor(n, "F32" if "scale" in n else "U8", (8,)) for n in names]
    starts = FileLayout(tensors).starts
    assert sorted(starts, key=starts.__getitem__) == names


def test_a_file_of_the_same_layout_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    layout = FileLayout(TENSORS)
    write(path, layout)
    with NewFile(path, layout) as file:
        assert not file.is_new
        out = np.empty(TENSORS[0].nbytes, np.uint8)
        file.read(TENSORS[0].name, 0, out)
    assert np.array_equal(out, content(TENSORS[0]))


@pytest.mark.parametrize("change", ["size", "header"])
def test_a_file_of_another_layout_is_begun_anew(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.safetensors"
    write(path, FileLayout(TENSORS))
    if change == "size":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(b"\0" * 64 + path.read_bytes()[64:])
    with NewFile(path, FileLayout(TENSORS)) as file:
        assert file.is_new
        out = np.full(TENSORS[0].nbytes, 255, np.uint8)
        file.read(TENSORS[0].name, 0, out)
    assert not out.any()
