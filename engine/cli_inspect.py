"""`inspect DIR`: validates a checkpoint folder and prints what it is, or the error that refuses it.

Knows arguments, layout of the report and exit codes. Everything it prints comes from
`engine.checkpoint`, `engine.hardware` and the same placement decision that loading takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.describe import (
    ModuleGroup,
    module_groups,
    quantisation_words,
    stored_form,
)
from engine.checkpoint.unknown import UnknownModel, describe_unknown
from engine.errors import CheckpointError, RuntimeFailure, UnblurError, UnsupportedFamilyError
from engine.models.registry import family_of
from engine.types import DecodeSettings

KV_POSITIONS = 1024


@dataclass(frozen=True)
class MemoryForecast:
    """What loading would take on this machine, and the least time of a step. Bytes. problem: why it
    would not fit, "" when it does. floor_ms: None where it does not fit.
    """

    device: str
    free_bytes: int
    weight_bytes: int
    kv_bytes: int  # for KV_POSITIONS tokens
    runs_as: str
    problem: str = ""
    step_bytes: int = 0
    read_bytes_per_second: float = 0.0
    expected_experts: float = 0.0
    floor_ms: float | None = None


@dataclass(frozen=True)
class InspectReport:
    """Everything `inspect` says about a valid folder."""

    name: str
    path: str
    family: str
    model_type: str
    parameters: int
    expert_layers: int
    experts_per_layer: int
    experts_per_token: int
    shared_experts: int
    files: tuple[str, ...]
    file_bytes: int
    layout: str
    quantisation: str
    groups: tuple[ModuleGroup, ...]
    block_length: int
    block_rule: str
    decoding: str
    defaults: DecodeSettings
    context: int
    mask_id: int | None  # None: the canvas is not made of masks
    stop_ids: tuple[int, ...]
    has_tokenizer: bool
    missing: tuple[str, ...]
    memory: MemoryForecast
    notes: tuple[str, ...]
    modules: dict[str, str] | None = None  # matrix -> form, when asked for


def run(argv: Sequence[str]) -> int:
    """Runs the command: 0 for a usable folder, 1 with the error on stderr for a refused one."""
    parser = argparse.ArgumentParser(
        prog="inspect", description="Validate a model folder and say what it is."
    )
    parser.add_argument("folder", help="folder with config.json and .safetensors files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--modules", action="store_true", help="list the form of every matrix")
    options = parser.parse_args(list(argv))
    try:
        checkpoint = open_checkpoint(options.folder)
    except UnblurError as error:
        unknown = None
        if isinstance(error, UnsupportedFamilyError):
            unknown = describe_unknown(options.folder)
        if unknown is not None and not options.json:
            print(unknown_text(unknown))
        print(_error_text(error, options.json, unknown), file=sys.stderr)
        return 1
    checkpoint.release()
    report = inspect_checkpoint(checkpoint, with_modules=options.modules)
    print(json.dumps(asdict(report), indent=2) if options.json else report_text(report))
    return 0


def inspect_checkpoint(checkpoint: Checkpoint, *, with_modules: bool = False) -> InspectReport:
    """The report of an open (or released) checkpoint. Looks at this machine's memory."""
    spec = checkpoint.spec
    experts = spec.table.experts
    modules = None
    if with_modules:
        modules = {name: stored_form(checkpoint, name) for name in checkpoint.inventory.matrices}
    return InspectReport(
        name=checkpoint.name,
        path=str(checkpoint.path),
        family=checkpoint.title,
        model_type=str(checkpoint.config.get("model_type")),
        parameters=spec.table.parameters,
        expert_layers=len(experts.layers) if experts else 0,
        experts_per_layer=experts.count if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        shared_experts=experts.shared if experts else 0,
        files=checkpoint.files,
        file_bytes=checkpoint.total_bytes,
        layout=checkpoint.layout,
        quantisation=quantisation_words(checkpoint),
        groups=module_groups(checkpoint),
        block_length=spec.block_length,
        block_rule=spec.block_rule,
        decoding=spec.decoding,
        defaults=spec.defaults,
        context=spec.max_position_embeddings,
        mask_id=spec.mask_token_id,
        stop_ids=spec.stop_ids,
        has_tokenizer=checkpoint.has_tokenizer,
        missing=_missing(checkpoint),
        memory=forecast_memory(checkpoint),
        notes=checkpoint.notes,
        modules=modules,
    )


def forecast_memory(checkpoint: Checkpoint) -> MemoryForecast:
    """What loading would do here, by the decision that loading itself takes."""
    import torch

    from engine.capacity import bytes_per_position
    from engine.floor import step_floor
    from engine.hardware import describe_hardware
    from engine.loading import choose_placement
    from engine.memory import free_memory

    hardware = describe_hardware()
    device = torch.device(hardware.device)
    free = free_memory(device)
    spec = checkpoint.spec
    try:
        placement = choose_placement(checkpoint, device, free, None)
    except RuntimeFailure as error:
        problem = f"{error.message} {error.action}"
        return MemoryForecast(str(device), free, checkpoint.total_bytes, 0, "", problem)
    size = placement.dtype.itemsize
    weights = spec.table.parameters * size if placement.expand else checkpoint.total_bytes
    floor = step_floor(checkpoint, placement)
    return MemoryForecast(
        device=str(device),
        free_bytes=free,
        weight_bytes=weights,
        kv_bytes=bytes_per_position(spec, placement) * KV_POSITIONS,
        runs_as=f"{placement.reason}. {hardware.reason}",
        step_bytes=floor.step_bytes,
        read_bytes_per_second=floor.bandwidth,
        expected_experts=floor.expected_experts,
        floor_ms=floor.milliseconds,
    )


def _missing(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What the folder lacks to be chatted with."""
    absent = []
    if not checkpoint.has_tokenizer:
        absent.append("tokenizer.json: without it no text can be read or written")
    elif not checkpoint.has_template and family_of(checkpoint.family).template is None:
        absent.append("a chat template (chat_template.jinja): this family has none of its own")
    return tuple(absent)


def report_text(r: InspectReport) -> str:
    """The report for a terminal, a fact a line."""
    stops = ", ".join(map(str, r.stop_ids))
    lines = [
        f"Model       {r.name}",
        f"Family      {r.family} ({r.model_type}), {r.parameters:,} parameters",
        *_expert_lines(r),
        f"Files       {', '.join(r.files)} ({size_text(r.file_bytes)})",
        f"Weights     {r.quantisation}",
        *(
            f"  {g.kind:<17}{g.form:<27}{g.count:>6} x, {size_text(g.stored_bytes):>9}"
            for g in r.groups
        ),
        f"Block rule  {r.block_rule}",
        f"Decoding    {r.decoding}, {settings_text(r.defaults)}",
        f"Context     {r.context} tokens",
        f"Token ids   mask {'none' if r.mask_id is None else r.mask_id}, stop {stops}",
        f"Tokenizer   {'yes' if r.has_tokenizer else 'none, so it cannot read or write text'}",
        *(f"Missing     {item}" for item in r.missing),
        *_memory_lines(r.memory),
        *(f"Note        {note}" for note in r.notes),
    ]
    if r.modules is not None:
        lines += [f"  {module}: {form}" for module, form in r.modules.items()]
    return "\n".join(lines)


def unknown_text(model: UnknownModel) -> str:
    """What is known of a model that cannot be run, a fact a line."""
    named = f" ({model.architecture})" if model.architecture else ""
    lines = [
        f"Model type  {model.model_type or 'not stated'}{named}",
        f"Kind        {model.kind}",
    ]
    if model.sizes:
        lines.append(f"Sizes       {', '.join(f'{n} {v}' for n, v in model.sizes.items())}")
    if model.tensors:
        forms = ", ".join(f"{dtype} {size_text(n)}" for dtype, n in model.dtypes.items())
        lines.append(f"Weights     {model.tensors} tensors: {forms}")
    if model.quantisation:
        lines.append(f"Quantised   {model.quantisation}")
    return "\n".join(lines)


def _expert_lines(r: InspectReport) -> list[str]:
    if not r.expert_layers:
        return []
    return [
        f"Experts     {r.experts_per_layer} in each of {r.expert_layers} layers,"
        f" {r.experts_per_token} for a token, and {r.shared_experts} shared"
    ]


def settings_text(defaults: DecodeSettings) -> str:
    """The checkpoint's own decoding settings in words."""
    editing = defaults.editing_threshold
    words = "off" if editing is None else f"above {editing:g}"
    return (
        f"accepts above {defaults.threshold:g}, editing {words}, temperature"
        f" {defaults.temperature:g}"
    )


def size_text(count: int) -> str:
    """Bytes for a person, in powers of 1000."""
    value = float(count)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _memory_lines(memory: MemoryForecast) -> list[str]:
    where = f"on {memory.device}, where {size_text(memory.free_bytes)} are free"
    if memory.problem:
        return [f"Memory      does not fit {where}. {memory.problem}"]
    return [
        f"Memory      {size_text(memory.weight_bytes)} of weights and"
        f" {size_text(memory.kv_bytes)} for every {KV_POSITIONS} tokens, {where}",
        f"Runs as     {memory.runs_as}",
        *_floor_lines(memory),
    ]


def _floor_lines(memory: MemoryForecast) -> list[str]:
    if memory.floor_ms is None:
        return []
    met = memory.expected_experts
    experts = f" (about {met:.0f} experts a layer, if tokens choose evenly)" if met else ""
    return [
        f"Floor       {memory.floor_ms:.3g} ms a step: {size_text(memory.step_bytes)} of weights"
        f"{experts} at {memory.read_bytes_per_second / 1e9:.3g} GB/s, as this memory was just read"
    ]


def _error_text(error: UnblurError, as_json: bool, unknown: UnknownModel | None) -> str:
    if not as_json:
        return f"{error.message}\n{error.action}  [{error.code}]"
    facts = {"code": error.code, "message": error.message, "action": error.action}
    if isinstance(error, CheckpointError):
        facts |= {"file": error.file or "", "item": error.item or ""}
    answer: dict[str, object] = {"error": facts}
    if unknown is not None:
        answer["model"] = asdict(unknown)
    return json.dumps(answer, indent=2)
