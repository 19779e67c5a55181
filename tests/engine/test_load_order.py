"""Weights are put in place in the order they lie in the files, whatever that is."""

from __future__ import annotations

import gc
import json
import random
import shutil
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from engine.checkpoint import open_checkpoint, stacks, staging
from engine.checkpoint.tensor_file import Bytes, TensorFile
from engine.errors import CheckpointError
from engine.kernels.nvfp4 import PackedExperts, PackedWeight
from engine.loading import Placement, _place_all, _Progress, build_model, empty_model
from engine.models.accelerate import KernelPlacer, _why_not_short
from engine.models.experts import Router
from engine.models.llada2 import SparseMLP

CPU = torch.device("cpu")
KEPT = Placement(CPU, torch.bfloat16, False, "test")
RANKS = {"F32": 0, "BF16": 1, "F8_E4M3": 2, "U8": 3}  # the safetensors library: widest first


def rewritten(source: Path, folder: Path, order: str) -> Path:
    """A copy of a checkpoint of one file with its tensors in another order."""
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    base = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:base])
    names = sorted(name for name in header if name != "__metadata__")
    if order == "by dtype":
        names.sort(key=lambda name: RANKS[header[name]["dtype"]])
    elif order == "shuffled":
        random.Random(4).shuffle(names)
    written, data = {}, b""
    for name in names:
        begin, end = header[name]["data_offsets"]
        span = [len(data), len(data) + end - begin]
        written[name] = header[name] | {"data_offsets": span}
        data += raw[base + begin : base + end]
    text = json.dumps(written).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every weight, packed ones in their parts."""
    found = dict(model.state_dict())
    for name, module in model.named_modules():
        for part in ("gate", "up", "down", "packed"):
            stored = getattr(module, part, None)
            if isinstance(stored, PackedExperts | PackedWeight):
                for number, tensor in enumerate(stored.tensors):
                    found[f"{name}.{part}.{number}"] = tensor.view(torch.uint8)
    return found


def scattered(source: Path, folder: Path, count: int) -> Path:
    """A copy of a checkpoint of one file whose tensors lie in `count` files, at random."""
    shutil.copytree(source, folder)
    path, draw = folder / "model.safetensors", random.Random(count)
    raw = path.read_bytes()
    path.unlink()
    base = 8 + int.from_bytes(raw[:8], "little")
    headers: list[dict[str, object]] = [{} for _ in range(count)]
    data, where = [b""] * count, dict[str, str]()
    for name, entry in json.loads(raw[8:base]).items():
        if name == "__metadata__":
            continue
        part = draw.randrange(count)
        begin, end = entry["data_offsets"]
        span = [len(data[part]), len(data[part]) + end - begin]
        headers[part][name] = entry | {"data_offsets": span}
        data[part] += raw[base + begin : base + end]
        where[name] = f"model-{part + 1:05d}-of-{count:05d}.safetensors"
    for part in range(count):
        text = json.dumps(headers[part]).encode()
        file = folder / f"model-{part + 1:05d}-of-{count:05d}.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[part])
    index = {"metadata": {"total_size": sum(map(len, data))}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


class Placed:
    """Stands where kernels are given out; the mixtures it was shown must be whole."""

    def __init__(self) -> None:
        self.owners: list[nn.Module] = []

    def place(self, owner: nn.Module) -> None:
        assert isinstance(owner, SparseMLP)
        assert not owner.gate.weight.is_meta
        assert isinstance(owner.experts.gate, PackedExperts)
        self.owners.append(owner)


@pytest.mark.parametrize("order", ["by name", "by dtype", "shuffled"])
def test_any_order_in_the_file_gives_the_same_model(
    shared_fixtures: Path, tmp_path: Path, order: str
) -> None:
    source = shared_fixtures / "llada2-tiny-nvfp4-modelopt"
    wanted = weights(build_model(open_checkpoint(source), KEPT))
    checkpoint = open_checkpoint(rewritten(source, tmp_path / "m", order))
    model, placed = empty_model(checkpoint), Placed()
    _place_all(model, checkpoint, KEPT, _Progress(0, None, None), cast(KernelPlacer, placed))
    mixtures = [module for module in model.modules() if isinstance(module, SparseMLP)]
    assert mixtures
    assert sorted(map(id, placed.owners)) == sorted(map(id, mixtures))
    found = weights(model)
    assert any(".experts.gate." in name for name in found)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(value, found[name]), name


def test_experts_scattered_over_files_are_the_same_model(
    shared_fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "NEAR", 64)
    monkeypatch.setattr(staging, "SMALLEST", 128)
    monkeypatch.setattr(staging, "LARGEST", 1024)
    source = shared_fixtures / "llada2-tiny-nvfp4-modelopt"
    wanted = weights(build_model(open_checkpoint(source), KEPT))
    checkpoint = open_checkpoint(scattered(source, tmp_path / "m", 5))
    model = empty_model(checkpoint)
    checkpoint.read_onto(CPU)
    _place_all(model, checkpoint, KEPT, _Progress(0, None, None), None)
    checkpoint.finish_checks()
    checkpoint.release()
    found = weights(model)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(value, found[name]), name


@pytest.mark.parametrize("order", ["by name", "by dtype"])
def test_a_file_is_read_once(
    shared_fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Both orders are published. Windows are as small beside this file as they are beside a
    large one."""
    folder = rewritten(shared_fixtures / "llada2-tiny-nvfp4-modelopt", tmp_path / "m", order)
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(stacks, "NEAR", 64)
    monkeypatch.setattr(staging, "SMALLEST", 128)
    monkeypatch.setattr(staging, "LARGEST", 1024)
    read, pread = [0], TensorFile.pread

    def counted(file: TensorFile, out: Bytes, start: int) -> None:
        read[0] += len(out)
        pread(file, out, start)

    checkpoint = open_checkpoint(folder)
    checkpoint.read_onto(CPU)
    monkeypatch.setattr(TensorFile, "pread", counted)
    _place_all(empty_model(checkpoint), checkpoint, KEPT, _Progress(0, None, None), None)
    checkpoint.release()
    assert read[0] <= 1.1 * size


def test_a_router_stored_in_bfloat16_is_not_looked_at_again(
    shared_fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(shared_fixtures / "llada2-tiny-nvfp4-modelopt")
    model = build_model(checkpoint, KEPT)
    routers = [module for module in model.modules() if isinstance(module, Router)]
    assert all(router.short and not _why_not_short(router) for router in routers)
    fresh = Router(8, 4, lambda scores: scores.topk(2).indices, 1.0, True)
    fresh.weight.data.fill_(0.1)  # needs more digits
    assert "more digits" in _why_not_short(fresh)
    fresh.weight.data.fill_(0.5)
    assert not _why_not_short(fresh)


@pytest.mark.parametrize("broken", [False, True])
def test_opening_leaves_garbage_collection_as_it_was(
    shared_fixtures: Path, tmp_path: Path, broken: bool
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(shared_fixtures / "llada2-tiny-nvfp4-modelopt", folder)
    if broken:
        (folder / "model.safetensors").write_bytes(b"not a file of tensors")
    for on in (False, True):
        (gc.enable if on else gc.disable)()
        try:
            if broken:
                with pytest.raises(CheckpointError):
                    open_checkpoint(folder)
            else:
                open_checkpoint(folder).release()
            assert gc.isenabled() == on
        finally:
            gc.enable()
