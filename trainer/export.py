"""What a run leaves behind: an adapter alone, a merged bfloat16 checkpoint, or an NVFP4 one.

Knows the checkpoint's names for the student's modules, the residual's place in config.json and the
adapter's own small format. The NVFP4 rule and layout are the engine's quantiser's. Everything is
written beside its target and put in place whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import open_checkpoint
from engine.checkpoint.quantiser.choice import Choice
from engine.checkpoint.quantiser.options import QuantiseOptions
from engine.checkpoint.quantiser.run import quantise
from engine.errors import CheckpointError, RequestError
from engine.kernels.nvfp4 import dequantize
from engine.models.experts import Experts, Router
from engine.models.layers import Linear
from engine.models.llada2_spec import LLaDA2Spec
from engine.models.residual_spec import FIELD, ResidualSpec
from trainer.orl.student import Student
from trainer.run_dir import disk_errors, file_hash, sync_file

SHARD = 2 * 10**9  # bytes of a weight file, about
ADAPTER = 1  # version of the adapter's format
_KEPT = ("*.json", "*.jinja", "*.txt", "LICENSE*", "tokenizer.model")
_PARTS = ("gate", "up", "down")


def write_merged(student: Student, target: Path) -> None:
    """A bfloat16 checkpoint of the student as it is. Raises RequestError `export.exists`,
    RuntimeFailure `train.disk`; proves that the engine opens it."""
    partial = _begin(target)
    with disk_errors(target):
        _write_shards(partial, _tensors(student))
        _copy_small_files(student.folder, partial)
        config = json.loads((student.folder / "config.json").read_text(encoding="utf-8"))
        config.pop("quantization_config", None)
        config["dtype"] = "bfloat16"
        residual = student.model.residual
        if residual is not None:
            config[FIELD] = _residual_field(residual.spec)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (partial / "hf_quant_config.json").unlink(missing_ok=True)
    _finish(partial, target)


def write_nvfp4(student: Student, target: Path) -> None:
    """An NVFP4 checkpoint in ModelOpt's layout, packed where the base was. Raises RequestError
    `export.not_packed` for a base that was not, and as `write_merged`."""
    if not student.packed_modules:
        raise RequestError(
            "export.not_packed",
            "The model this run began from is not in NVFP4.",
            "Export a merged model, and quantise it on the Models page.",
        )
    if target.exists():
        raise _exists(target)
    merged = target.with_name(target.name + ".merged")
    shutil.rmtree(merged, ignore_errors=True)
    try:
        write_merged(student, merged)
        choice = Choice(modules=student.packed_modules)
        quantise(merged, target, QuantiseOptions(choice=choice, restart=True))
    finally:
        shutil.rmtree(merged, ignore_errors=True)


def write_adapter(student: Student, target: Path) -> None:
    """What was trained beside the frozen base: LoRA matrices and the residual adapter, float32.
    Raises RequestError `export.no_adapter` for a run that trained everything."""
    if student.adapters is None:
        raise RequestError(
            "export.no_adapter",
            "This run trained every weight: there is no adapter apart from them.",
            "Export a merged or an NVFP4 model.",
        )
    partial = _begin(target)
    recipe = student.recipe
    about = {
        "format": "unblur-orl-adapter",
        "version": ADAPTER,
        "base_config": file_hash(student.folder / "config.json"),
        "base_name": student.folder.resolve().name,
        "lora_rank": recipe.lora_rank,
        "lora_scale": recipe.lora_scale,
        "lora_modules": list(recipe.lora_modules),
        FIELD: None
        if student.model.residual is None
        else _residual_field(student.model.residual.spec),
    }
    with disk_errors(target):
        tensors = {n: t.cpu().contiguous() for n, t in student.trained.masters().items()}
        save_file(tensors, partial / "adapter.safetensors", metadata={"format": "pt"})
        (partial / "adapter.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        partial.replace(target)


def load_adapter(student: Student, folder: Path) -> None:
    """Puts an adapter's values into a student of the same base and recipe. Raises CheckpointError
    `adapter.unreadable`, `adapter.other_base` or `adapter.other_shape`."""
    try:
        about = json.loads((folder / "adapter.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter.safetensors")
        base, version = about["base_config"], about["version"]
    except Exception as error:  # a damaged file fails in many ways
        raise _refused("unreadable", folder, f"cannot be read: {type(error).__name__}") from error
    if version != ADAPTER:
        raise _refused("unreadable", folder, f"is of version {version!r:.20}, not {ADAPTER}")
    if base != file_hash(student.folder / "config.json"):
        name = str(about.get("base_name", "another model"))[:60]
        raise _refused("other_base", folder, f"belongs to {name}, not to {student.folder.name}")
    slots = student.trained.slots
    wrong = [n for n, s in slots.items() if n not in tensors or tensors[n].shape != s.master.shape]
    if wrong or len(tensors) != len(slots):
        raise _refused("other_shape", folder, "was made with other LoRA settings than these")
    with torch.no_grad():
        for name, slot in slots.items():
            slot.master.copy_(tensors[name])
    student.trained.write()


def _tensors(student: Student) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint by its name there, one module at a time: the values that the
    student computes with, which lie on the NVFP4 grid where it was trained so."""
    spec = student.spec
    adapters = {} if student.adapters is None else student.adapters.adapters

    for name, module in student.model.named_modules():
        source = spec.checkpoint_name(name)
        if isinstance(module, Experts):
            yield from _experts(student, name, module)
            continue
        if isinstance(module, Linear):
            adapter = adapters.get(name)
            dense = module.dense(torch.float32) if adapter is None else adapter.folded()
            yield f"{source}.weight", dense
            if module.bias is not None:
                yield f"{source}.bias", module.bias
            continue
        for part, parameter in module.named_parameters(recurse=False):
            yield f"{source}.{part}", parameter
        if isinstance(module, Router) and isinstance(spec, LLaDA2Spec):
            yield f"{source}.expert_bias", module.expert_bias


def _experts(student: Student, name: str, module: Experts) -> Iterator[tuple[str, Tensor]]:
    """Routed experts one by one: `experts.{e}.{gate,up,down}_proj.weight`."""
    source = student.spec.checkpoint_name(name)
    for part in _PARTS:
        weights = getattr(module, part)
        for expert in range(module.num_experts):
            if isinstance(weights, Tensor):
                matrix = weights[expert]
            else:
                matrix = dequantize(weights.expert(expert), torch.float32)
            yield f"{source}.{expert}.{part}_proj.weight", matrix


def _write_shards(folder: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """bfloat16 but for expert biases, in files of about `SHARD` bytes and an index."""
    shards: list[Path] = []
    index: dict[str, str] = {}
    held: dict[str, Tensor] = {}
    size = 0

    def flush() -> None:
        path = folder / f"model-{len(shards) + 1:05d}.safetensors"
        save_file(held, path, metadata={"format": "pt"})
        sync_file(path)
        index.update(dict.fromkeys(held, path.name))
        shards.append(path)
        held.clear()

    total = 0
    for name, tensor in tensors:
        kept = torch.float32 if name.endswith("expert_bias") else torch.bfloat16
        held[name] = tensor.detach().to("cpu", kept).contiguous().clone()
        size += held[name].nbytes
        total += held[name].nbytes
        if size >= SHARD:
            flush()
            size = 0
    if held:
        flush()
    if len(shards) == 1:
        shards[0].replace(folder / "model.safetensors")
        return
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
    (folder / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")


def _residual_field(spec: ResidualSpec) -> dict[str, Any]:
    """The field of config.json that `engine.models.residual_spec` reads."""
    field: dict[str, Any] = {"kind": spec.kind, "top_k": spec.top_k}
    if spec.kind == "orl":
        field |= {"norm_cap": spec.norm_cap, "adapter_size": spec.adapter_size}
    return field


def _copy_small_files(source: Path, target: Path) -> None:
    for pattern in _KEPT:
        for path in source.glob(pattern):
            if not path.name.endswith(".index.json"):
                shutil.copyfile(path, target / path.name)


def _begin(target: Path) -> Path:
    if target.exists():
        raise _exists(target)
    partial = target.with_name(target.name + ".partial")
    with disk_errors(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    return partial


def _finish(partial: Path, target: Path) -> None:
    open_checkpoint(partial).release()
    with disk_errors(target):
        partial.replace(target)


def _exists(target: Path) -> RequestError:
    return RequestError("export.exists", f"{target} is there already.", "Name another folder.")


def _refused(code: str, folder: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"adapter.{code}",
        f"The adapter in {folder.name} {problem}.",
        "Choose the model it was trained on, or another adapter.",
        file="adapter.json",
    )
