"""What will be written, tensor for tensor, before a byte is: units of work, weight files, sizes.

A unit is what is read, converted and noted as done at once: one tensor that is copied, or the
matrices that share one second-level scale. Stacks of experts of which one is chosen are taken apart
into one module an expert, which is how both layouts store quantised experts. Knows names and sizes,
never values.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from engine.checkpoint.folder import JsonObject
from engine.checkpoint.inventory import Inventory
from engine.checkpoint.quantiser.options import QuantiseOptions
from engine.checkpoint.quantiser.rules import RULES, Rule, stored_tensors
from engine.checkpoint.tensor_file import ITEM_SIZES, TensorEntry
from engine.checkpoint.tensor_writer import FileLayout, NewTensor
from engine.models.family import PROJECTIONS, ExpertTable, FamilySpec

# Modules that programs fuse into one matrix at load, by the ends of their names.
_FUSED = (("gate_proj", "up_proj", "ff_proj"), ("q_proj", "k_proj", "v_proj"))


@dataclass(frozen=True)
class Source:
    """A matrix or tensor in the source's files. begin: its first byte inside the entry (a slice of
    a stack)."""

    name: str
    entry: TensorEntry
    begin: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_SIZES[self.entry.dtype]


@dataclass(frozen=True)
class Unit:
    """packed: whether the sources are matrices that become NVFP4 (their names are modules then),
    or one tensor that is copied. outputs: what is written, in the order of the sources."""

    packed: bool
    sources: tuple[Source, ...]
    outputs: tuple[NewTensor, ...]

    @property
    def name(self) -> str:
        return self.sources[0].name

    @property
    def read_bytes(self) -> int:
        return sum(source.nbytes for source in self.sources)

    @property
    def written_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.outputs)


@dataclass(frozen=True)
class PlannedFile:
    """One weight file: its name, its layout, and the units whose tensors it holds."""

    name: str
    layout: FileLayout
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Plan:
    """files in order. fingerprint: the same for the same source, options and program."""

    files: tuple[PlannedFile, ...]
    fingerprint: str

    @property
    def read_bytes(self) -> int:
        return sum(unit.read_bytes for file in self.files for unit in file.units)

    @property
    def file_bytes(self) -> int:
        """Size of all weight files."""
        return sum(file.layout.size for file in self.files)

    def index(self) -> JsonObject | None:
        """The shard index, or None where one file holds everything."""
        if len(self.files) == 1:
            return None
        weight_map = {
            tensor.name: file.name
            for file in self.files
            for unit in file.units
            for tensor in unit.outputs
        }
        total = sum(unit.written_bytes for file in self.files for unit in file.units)
        return {"metadata": {"total_size": total}, "weight_map": weight_map}


def make_plan(
    spec: FamilySpec,
    inventory: Inventory,
    entries: Mapping[str, TensorEntry],
    chosen: frozenset[str],
    options: QuantiseOptions,
    source_state: object,
) -> Plan:
    """source_state: JSON value that changes when the source's files do. Tensors that the engine
    ignores are copied too."""
    rule = RULES[options.layout]
    matrices: list[Source] = []
    copies: list[Source] = [_whole(entry) for entry in inventory.tensors.values()]
    copies += [_whole(entries[name]) for name in inventory.ignored]
    for module, stored in inventory.matrices.items():
        if module in chosen:
            matrices.append(Source(module, stored.weight, 0, stored.weight.shape))
        else:
            copies.append(_whole(stored.weight))
    for layer, stack in inventory.stacks.items():
        experts = spec.table.experts
        assert experts is not None
        for source in _stack_sources(experts, layer, stack, chosen):
            (matrices if source.name in chosen else copies).append(source)
    units = [_copy_unit(source) for source in copies]
    units += _packed_units(matrices, rule, options.shared_scales)
    units.sort(key=lambda unit: _natural(unit.name))
    files = _files(units, options.shard_bytes)
    return Plan(files, _fingerprint(files, options, source_state))


def _whole(entry: TensorEntry) -> Source:
    return Source(entry.name, entry, 0, entry.shape)


def _stack_sources(
    experts: ExpertTable, layer: int, stack: Mapping[str, TensorEntry], chosen: frozenset[str]
) -> Iterator[Source]:
    """The stacks themselves where no expert is chosen, else every expert's slice: the chosen ones
    under their module's name, the others under their tensor's."""
    modules = [
        (expert, part, experts.module(layer, expert, part))
        for expert in range(experts.count)
        for part in PROJECTIONS
    ]
    if not any(module in chosen for _, _, module in modules):
        yield from (_whole(entry) for entry in stack.values())
        return
    for expert, part, module in modules:
        shape = experts.shapes[part][1:]
        name = module if module in chosen else f"{module}.weight"
        fused = part not in stack
        entry = stack["gate_up_proj" if fused else part]
        size = prod(shape) * ITEM_SIZES[entry.dtype]
        step = 2 * size if fused else size  # gate rows first, then up rows
        yield Source(
            name, entry, expert * step + (size if fused and part == "up_proj" else 0), shape
        )


def _copy_unit(source: Source) -> Unit:
    return Unit(False, (source,), (NewTensor(source.name, source.entry.dtype, source.shape),))


def _packed_units(matrices: Iterable[Source], rule: Rule, shared: bool) -> Iterator[Unit]:
    groups: dict[object, list[Source]] = {}
    for source in matrices:
        base, _, end = source.name.rpartition(".")
        family = next((fused for fused in _FUSED if end in fused), None) if shared else None
        groups.setdefault((base, family) if family else source.name, []).append(source)
    for group in groups.values():
        outputs = [
            tensor
            for source in group
            for tensor in stored_tensors(rule, source.name, source.shape[0], source.shape[1])
        ]
        yield Unit(True, tuple(group), tuple(outputs))


def _files(units: list[Unit], limit: int) -> tuple[PlannedFile, ...]:
    groups: list[list[Unit]] = []
    size = limit
    for unit in units:
        if size + unit.written_bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(unit)
        size += unit.written_bytes
    names = ["model.safetensors"]
    if len(groups) > 1:
        count = len(groups)
        names = [f"model-{n + 1:05d}-of-{count:05d}.safetensors" for n in range(count)]
    return tuple(
        PlannedFile(
            name, FileLayout([tensor for unit in group for tensor in unit.outputs]), tuple(group)
        )
        for name, group in zip(names, groups, strict=True)
    )


def _fingerprint(
    files: tuple[PlannedFile, ...], options: QuantiseOptions, source_state: object
) -> str:
    digest = hashlib.sha256(json.dumps([1, source_state, options.layout]).encode())
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.layout.header)
        for unit in file.units:  # which modules share a scale
            digest.update(f"{unit.packed} {len(unit.sources)};".encode())
    return digest.hexdigest()


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Layer 10 comes after layer 9."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
