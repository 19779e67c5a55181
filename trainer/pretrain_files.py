"""The files of a pretraining run: an exact checkpoint to resume from, and a small one to carry.

Exact: float32 masters, optimiser state, the model's remembered mistakes and the data cursor; a
resumed run continues bit for bit on a CPU. Carried: masters as bfloat16 in a few files of bounded
size; a run resumed from it starts its momentum from zero and warms up again. All safetensors and
JSON. Knows no training loop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import CheckpointError

STATE = "state.json"
CARRIED = "master-{:05d}.safetensors"
CARRIED_BYTES = 15 * 2**20  # of one carried file
BIAS = "expert_bias"


def save_exact(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Replaces the run's checkpoint. The state is written last and names the tensors' file, so that
    a kill at any moment leaves one whole checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"exact-{state['step']:07d}.safetensors"
    part = folder / (name + ".part")  # a step that is saved twice must not lose its first file
    save_file({key: t.detach().cpu().contiguous() for key, t in tensors.items()}, part)
    part.replace(folder / name)
    _write_json(folder / STATE, {**state, "tensors": name})
    for old in folder.glob("exact-*.safetensors"):
        if old.name != name:
            old.unlink()


def read_state(folder: Path) -> dict[str, Any] | None:
    """The state of a run folder or a carried folder, None where there is none.

    Raises CheckpointError when the file is not readable JSON.
    """
    path = folder / STATE
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def load_exact(folder: Path, name: str, into: dict[str, Tensor]) -> None:
    """Copies a checkpoint's tensors into those of a run. A destination may be longer than what was
    saved (the rest is left alone).

    Raises CheckpointError for a missing tensor or another shape.
    """
    path = folder / name
    with safe_open(path, framework="pt") as file:  # pyright: ignore[reportPrivateImportUsage]
        there = set(file.keys())
        for key, target in into.items():
            if key not in there:
                raise _damaged(path, f"tensor {key} is missing")
            saved = file.get_tensor(key)
            if saved.shape[1:] != target.shape[1:] or len(saved) > len(target):
                raise _damaged(path, f"tensor {key} is {tuple(saved.shape)}, not this model's")
            target[: len(saved)].copy_(saved)


def save_carried(
    folder: Path, masters: dict[str, Tensor], expert_bias: Tensor, state: dict[str, Any]
) -> list[Path]:
    """Writes masters [L, ...] as bfloat16, layer by layer, into as few files as their size allows;
    returns them. Files of an earlier call are replaced one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = {
        f"{name}#{layer}": part.detach().to(torch.bfloat16).cpu().contiguous()
        for name, master in masters.items()
        for layer, part in enumerate(master)
    }
    pieces[BIAS] = expert_bias.detach().float().cpu().contiguous()
    files = [folder / CARRIED.format(n) for n in range(len(_bins(pieces)))]
    for path, names in zip(files, _bins(pieces), strict=True):
        part = path.with_suffix(".part")
        save_file({name: pieces[name] for name in names}, part)
        part.replace(path)
    _write_json(folder / STATE, {**state, "carried": [path.name for path in files]})
    return files


def _bins(pieces: dict[str, Tensor]) -> list[list[str]]:
    """First fit by falling size."""
    bins: list[tuple[int, list[str]]] = []
    for name in sorted(pieces, key=lambda n: (-pieces[n].nbytes, n)):
        size = pieces[name].nbytes
        for index, (used, names) in enumerate(bins):
            if used + size <= CARRIED_BYTES:
                names.append(name)
                bins[index] = (used + size, names)
                break
        else:
            bins.append((size, [name]))
    return [names for _, names in bins]


def load_carried(folder: Path, state: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Masters bfloat16 [L, ...] by stack name and the expert biases float32 [layers, E] of a folder
    written by `save_carried`. Raises CheckpointError when a file or tensor is missing."""
    found: dict[str, Tensor] = {}
    for name in state["carried"]:
        path = folder / name
        if not path.exists():
            raise _damaged(path, "the file is missing")
        with safe_open(path, framework="pt") as file:  # pyright: ignore[reportPrivateImportUsage]
            found.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    bias = found.pop(BIAS)
    layers: dict[str, dict[int, Tensor]] = {}
    for key, tensor in found.items():
        name, _, layer = key.rpartition("#")
        layers.setdefault(name, {})[int(layer)] = tensor
    return {
        name: torch.stack([parts[n] for n in range(len(parts))]) for name, parts in layers.items()
    }, bias


def _write_json(path: Path, value: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        "pretrain.checkpoint_damaged",
        f"{path.name} of the run cannot be used: {problem}.",
        "Start a new run folder, or resume from the files that were carried away.",
        file=str(path),
    )
