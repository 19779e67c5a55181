"""Makes model folders for the checkpoint tests: copies of the fixtures, changed in one place, and
what every refusal of one owes a person.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import open_checkpoint
from engine.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def copy_folder(source: Path, target: Path) -> Path:
    """The folder without its expected values."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("expected"))
    for path in target.iterdir():
        path.chmod(0o644)
    return target


def edit_json(folder: Path, name: str, **changes: Any) -> None:
    """Sets keys of a JSON file; `...` deletes a key."""
    path = folder / name
    values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for key, value in changes.items():
        if value is ...:
            values.pop(key, None)
        else:
            values[key] = value
    path.write_text(json.dumps(values), encoding="utf-8")


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Rewrites model.safetensors after `change` has worked on its tensors."""
    tensors = tensors_of(folder)
    change(tensors)
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, _weights(folder))


def shard(folder: Path, parts: int = 2) -> None:
    """Splits the single file into shards with an index."""
    tensors = tensors_of(folder)
    _weights(folder).unlink()
    weight_map: dict[str, str] = {}
    for part in range(parts):
        name = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        chosen = {key: tensors[key] for key in sorted(tensors)[part::parts]}
        save_file(chosen, folder / name)
        weight_map |= dict.fromkeys(chosen, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def raw_file(header: Mapping[str, object] | str | bytes, data: bytes = b"") -> bytes:
    """A safetensors file with any header text and any data."""
    if isinstance(header, Mapping):
        header = json.dumps(header)
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + data


def write_tokenizer(folder: Path, vocab_size: int, added: Mapping[str, int]) -> None:
    """A tokenizer.json with one ordinary token per id that is not an added one."""
    taken = set(added.values())
    vocab = {f"t{number}": number for number in range(vocab_size) if number not in taken}
    tokens = [{"id": number, "content": text, "special": True} for text, number in added.items()]
    value = {"added_tokens": tokens, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")


def stack_experts(tensors: dict[str, Tensor], *, fused: bool, suffix: str = "") -> None:
    """Turns the per-expert tensors of every layer into stacks, in place."""
    layers = sorted({name.split(".mlp.experts.")[0] for name in tensors if ".experts." in name})
    for layer in layers:
        base = f"{layer}.mlp.experts"
        count = tensors[f"{layer}.mlp.gate.weight"].shape[0]
        stacks = {
            part: torch.stack([tensors.pop(f"{base}.{e}.{part}.weight") for e in range(count)])
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        if fused:
            gate_up = torch.cat([stacks.pop("gate_proj"), stacks.pop("up_proj")], dim=1)
            stacks["gate_up_proj"] = gate_up
        tensors.update({f"{base}.{part}{suffix}": stack for part, stack in stacks.items()})


def _weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def refusal(folder: Path | str) -> CheckpointError:
    """The error, after checking what every error owes a person."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    error = caught.value
    assert error.code.startswith("checkpoint.")
    assert error.message.endswith(".")
    assert error.action.endswith(".")
    assert error.file is not None
    assert error.file in error.message
    if error.item is not None:
        assert error.item in error.message or error.item == "header"
    return error
