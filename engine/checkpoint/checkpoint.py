"""An open, validated checkpoint: tensors by name, in their stored form, read straight into their
own memory.

Knows files and forms; computes nothing but NVFP4 expansion on request. Every read goes through a
small window (of the mapped file, or a staging buffer on the way to a GPU), so that memory holds one
copy of the weights and no file pages.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from engine.checkpoint.device_checks import DeviceChecks
from engine.checkpoint.family import family_from_config, family_from_tensors
from engine.checkpoint.folder import JsonObject, ModelFolder, TensorFiles, read_folder
from engine.checkpoint.inventory import Form, Inventory, StoredMatrix, take_inventory
from engine.checkpoint.quantisation import check_quantisation
from engine.checkpoint.refusals import refuse
from engine.checkpoint.stacks import Part, gather
from engine.checkpoint.staging import StagedReader
from engine.checkpoint.tensor_file import TensorEntry
from engine.checkpoint.tokenizer_ids import (
    check_tokenizer,
    folder_has_template,
    read_tokenizer_ids,
)
from engine.checkpoint.values import Progress, check_values
from engine.kernels.nvfp4 import PackedExperts, PackedWeight, dequantize_into
from engine.models.family import PROJECTIONS, ExpertTable, Family, FamilySpec

Layout = Literal["bf16", "modelopt", "compressed-tensors", "mixed"]
ExpertStack = Tensor | PackedExperts

_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
}


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    check_values_now: bool = True,
) -> Checkpoint:
    """Opens a model folder and validates everything in it, values included (one pass over the
    files).

    check_values_now: False leaves the values to `Checkpoint.finish_checks`, for a load onto a GPU,
    which checks them there. progress(bytes checked, bytes in all) is called about every 64 MiB;
    `stop` ends the pass with `load.stopped`. Raises CheckpointError (UnsupportedFamilyError for a
    family that is not built), with file and item set.
    """
    folder = read_folder(path)
    family = family_from_config(folder.config)
    notes = list(folder.notes)
    notes += check_quantisation(folder)
    ids = read_tokenizer_ids(folder)
    with _no_collection():
        files = TensorFiles(folder)
    try:
        family = family_from_tensors(files.entries, family)
        spec = family.read(
            folder.config,
            folder.generation_config,
            folder_name=folder.path.resolve().name,
            special_tokens=ids.added if ids else None,
        )
        notes += [spec.decoding_evidence, *spec.notes]
        if ids is not None:
            notes += check_tokenizer(ids, spec)
        with _no_collection():
            inventory = take_inventory(files.entries, tuple(files.files), spec)
        now = check_values_now
        zero = check_values(files, inventory, progress, stop) if now else frozenset[str]()
    except BaseException:
        files.close()
        raise
    if "input_scale" in inventory.roles.values():
        notes.append("The file has scales for 4-bit activations; activations stay in float here.")
    if zero:
        notes.append(f"{len(zero)} matrices are all zero, e.g. {min(zero)}.")
    if inventory.ignored:
        notes.append(f"Ignored {len(inventory.ignored)} tensors, e.g. {inventory.ignored[0]}.")
    return Checkpoint(folder, family, spec, files, inventory, zero, tuple(notes), ids is not None)


@contextmanager
def _no_collection() -> Iterator[None]:
    """While tens of thousands of objects are made that all stay, looking for garbage among them
    takes as long as making them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Checkpoint:
    """A validated folder. Module names are the checkpoint's own without `.weight`. family, title:
    key and name of its family.

    layout: which NVFP4 layout the packed modules use; "mixed" = both, "bf16" = nothing is packed
    (the dense dtype may also be float16 or float32, see `describe_forms`). total_bytes: size of all
    weight files.
    """

    def __init__(
        self,
        folder: ModelFolder,
        family: Family,
        spec: FamilySpec,
        files: TensorFiles,
        inventory: Inventory,
        zero_modules: frozenset[str],
        notes: tuple[str, ...],
        has_tokenizer: bool,
    ) -> None:
        self.path: Path = folder.path
        self.config: JsonObject = folder.config
        self.generation_config: JsonObject = folder.generation_config
        self.family = family.key
        self.title = family.title
        self.spec = spec
        self.files: tuple[str, ...] = tuple(files.files)
        self.total_bytes = files.total_bytes
        self.notes = notes
        self.has_tokenizer = has_tokenizer
        self.has_template = folder_has_template(folder)
        self.inventory = inventory
        self._files = files
        self._zero = zero_modules
        self._staged: StagedReader | None = None
        self._checks: DeviceChecks | None = None

    @property
    def layout(self) -> Layout:
        forms = {stored.form for stored in self.inventory.matrices.values()} - {"dense"}
        if not forms:
            return "bf16"
        return "mixed" if len(forms) > 1 else forms.pop()  # pyright: ignore[reportReturnType]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def layer_is_packed(self, layer: int) -> bool:
        """Whether all routed experts of a layer are NVFP4, so that `expert_stack` gives packed
        stacks."""
        experts = self.experts
        return layer not in self.inventory.stacks and all(
            self.inventory.matrices[experts.module(layer, expert, part)].form != "dense"
            for expert in range(experts.count)
            for part in PROJECTIONS
        )

    @property
    def experts(self) -> ExpertTable:
        """Where the routed experts are. ValueError for a model that has none."""
        experts = self.spec.table.experts
        if experts is None:
            raise ValueError("this model has no routed experts")
        return experts

    def read_onto(self, device: torch.device) -> None:
        """From now on tensors are read onto a device (a GPU), through staging buffers and ahead of
        time, and their values are checked there (see `finish_checks`)."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._staged = StagedReader(device)
        self._checks = DeviceChecks(device)

    def finish_checks(self, stop: threading.Event | None = None) -> None:
        """Raises CheckpointError, naming file, tensor and element, if a value read onto a GPU was
        not one a weight or scale may have. Waits for the device."""
        if self._checks is None or self._checks.passed():
            return
        check_values(self._files, self.inventory, None, stop)
        raise refuse(
            "checkpoint.read_error",
            "Values that arrived on the GPU are not those in the files.",
            "Load the model again; if this comes back, the disk or the memory may be faulty.",
        )

    def release(self) -> None:
        """Closes the files. Tensors already read stay valid; nothing more can be read."""
        if self._staged is not None:
            self._staged.close()
            self._staged = None
        self._files.close()

    def position(self, name: str) -> tuple[str, int]:
        """File and byte at which a module's weight, or a tensor by its full name, begins: what is
        read in this order is read ahead. KeyError for a name that is not there."""
        stored = self.inventory.matrices.get(name)
        entry = self._entry(name) if stored is None else stored.weight
        return entry.file, entry.start

    def position_of_experts(self, layer: int) -> tuple[str, int]:
        """`position` of the first weight of a layer's routed experts."""
        stack = self.inventory.stacks.get(layer)
        if stack is not None:
            return min((entry.file, entry.start) for entry in stack.values())
        modules = (self.experts.module(layer, 0, part) for part in PROJECTIONS)
        return min(map(self.position, modules))

    def dense(self, name: str) -> Tensor:
        """A tensor by its full name, in its stored dtype and in its own memory, which is the CPU's
        unless `read_onto` was called, as for all that follows. KeyError for a name
        that is not there.
        """
        return self._read(self._entry(name))

    def dense_into(self, name: str, out: Tensor) -> None:
        """Copies a tensor into `out` (same shape, any float dtype and device), a few rows at a
        time.
        """
        entry = self._entry(name)
        _check_shape(name, entry.shape, out)
        self._fill(entry, out)

    def _entry(self, name: str) -> TensorEntry:
        """By the name the model gives it, which a copy may have in its place."""
        return self.inventory.tensors.get(name) or self._files.entries[name]

    def linear(self, module: str) -> Tensor | PackedWeight:
        """A module's weight in its stored form: a float matrix [out, in] or the packed one."""
        stored = self.inventory.matrices[module]
        return self._read(stored.weight) if stored.form == "dense" else self._packed(module, stored)

    def linear_into(self, module: str, out: Tensor) -> None:
        """Fills `out` [out, in] with a module's weight; packed weights are expanded in float32 and
        rounded once.
        """
        stored = self.inventory.matrices[module]
        rows, cols = stored.weight.shape
        _check_shape(module, (rows, cols if stored.form == "dense" else 2 * cols), out)
        if stored.form == "dense":
            self._fill(stored.weight, out)
        else:
            dequantize_into(self._packed(module, stored).to(out.device), out.detach())

    def expert_stack(self, layer: int) -> tuple[ExpertStack, ExpertStack, ExpertStack]:
        """Gate, up and down of all routed experts of a layer: [E, out, in] each, packed when all
        experts are.

        Experts stored in different forms are expanded to float32 together.
        """
        stack = self.inventory.stacks.get(layer)
        if stack is None:
            return self._experts(layer)
        if "gate_up_proj" not in stack:
            gate, up, down = (self._read(stack[part]) for part in PROJECTIONS)
            return gate, up, down
        shapes = self.experts.shapes
        gate, up = (
            self._empty(shapes[part], _DTYPES[stack["gate_up_proj"].dtype])
            for part in PROJECTIONS[:2]
        )
        self._split_fused(stack["gate_up_proj"], gate, up)
        return gate, up, self._read(stack["down_proj"])

    def expert_stack_into(self, layer: int, gate: Tensor, up: Tensor, down: Tensor) -> None:
        """Fills three float tensors [E, out, in] (any float dtype and device) with a layer's routed
        experts.

        Works expert by expert: beside the outputs, memory holds one expert's matrix at a time.
        """
        outs: dict[str, Tensor] = dict(zip(PROJECTIONS, (gate, up, down), strict=True))
        for part, shape in self.experts.shapes.items():
            _check_shape(part, shape, outs[part])
        stack = self.inventory.stacks.get(layer)
        if stack is None:
            for expert in range(self.experts.count):
                for part, out in outs.items():
                    self.linear_into(self.experts.module(layer, expert, part), out[expert])
        elif "gate_up_proj" in stack:
            self._split_fused(stack["gate_up_proj"], gate, up)
            self._fill(stack["down_proj"], down)
        else:
            for part, out in outs.items():
                self._fill(stack[part], out)

    def _experts(self, layer: int) -> tuple[ExpertStack, ExpertStack, ExpertStack]:
        """Experts stored one by one. Read expert by expert, as they lie in the file."""
        gate, up, down = (self._new_stack(layer, part) for part in PROJECTIONS)
        stacks = dict(zip(PROJECTIONS, (gate, up, down), strict=True))
        packed = {part: s for part, s in stacks.items() if isinstance(s, PackedExperts)}
        if self._staged is not None and len(packed) == len(stacks) and self._one_form(layer):
            self._gather_experts(layer, self._staged, packed)
            return gate, up, down
        for expert in range(self.experts.count):
            for part, stack in stacks.items():
                module = self.experts.module(layer, expert, part)
                stored = self.inventory.matrices[module]
                if isinstance(stack, PackedExperts):
                    self._packed_into(module, stored, stack.expert(expert))
                elif stored.form == "dense":
                    self._fill(stored.weight, stack[expert])
                else:
                    self.linear_into(module, stack[expert])
        return gate, up, down

    def _one_form(self, layer: int) -> bool:
        """Whether a layer's experts are all stored in the same NVFP4 layout."""
        forms = {
            self.inventory.matrices[self.experts.module(layer, expert, part)].form
            for expert in range(self.experts.count)
            for part in PROJECTIONS
        }
        return len(forms) == 1

    def _new_stack(self, layer: int, part: str) -> ExpertStack:
        """Memory for one projection of all experts: packed, in their dtype, or float32 where they
        are stored in different forms."""
        modules = [self.experts.module(layer, expert, part) for expert in range(self.experts.count)]
        stored = [self.inventory.matrices[module] for module in modules]
        count, rows, cols = self.experts.shapes[part]
        dtypes = {item.weight.dtype for item in stored}
        if dtypes == {"U8"}:
            return PackedExperts(
                self._empty((count, rows, cols // 2), torch.uint8),
                self._empty((count, rows, cols // 16), torch.float8_e4m3fn),
                self._empty((count,), torch.float32),
            )
        same = len(dtypes) == 1 and stored[0].form == "dense"
        dtype = _DTYPES[stored[0].weight.dtype] if same else torch.float32
        return self._empty((count, rows, cols), dtype)

    def _gather_experts(
        self, layer: int, staged: StagedReader, stacks: dict[str, PackedExperts]
    ) -> None:
        """A whole layer at once, where every expert is packed."""
        parts: list[Part] = []
        for part, stack in stacks.items():
            stored = [
                self.inventory.matrices[self.experts.module(layer, expert, part)]
                for expert in range(self.experts.count)
            ]
            scales = [item.scale for item in stored if item.scale is not None]
            global_scales = [item.global_scale for item in stored if item.global_scale is not None]
            parts.append(Part([item.weight for item in stored], stack.codes))
            parts += [Part(scales, stack.scales), Part(global_scales, stack.global_scale)]
        gather(parts, self._files.of, staged)
        for part, stack in stacks.items():
            first = self.experts.module(layer, 0, part)
            self._finish_packed(self.inventory.matrices[first].form, stack)

    def _finish_packed(self, form: Form, out: PackedWeight | PackedExperts) -> None:
        """What is left to do once a packed matrix, or a stack of one form, has been read."""
        if self._checks is not None:
            self._checks.packed(out, form)
        if form == "compressed-tensors":  # stored as a divisor
            out.global_scale.reciprocal_()

    def _packed(self, module: str, stored: StoredMatrix) -> PackedWeight:
        assert stored.scale is not None
        packed = PackedWeight(
            self._empty(stored.weight.shape, torch.uint8),
            self._empty(stored.scale.shape, torch.float8_e4m3fn),
            self._empty((), torch.float32),
        )
        self._packed_into(module, stored, packed)
        return packed

    def _packed_into(self, module: str, stored: StoredMatrix, out: PackedWeight) -> None:
        assert stored.scale is not None
        assert stored.global_scale is not None
        self._copy(stored.weight, out.codes)
        if module in self._zero:  # all codes are 0: any valid scales will do
            out.scales.fill_(1.0)
            out.global_scale.fill_(1.0)
            return
        self._copy(stored.scale, out.scales)
        self._copy(stored.global_scale, out.global_scale)
        self._finish_packed(stored.form, out)

    def _split_fused(self, entry: TensorEntry, gate: Tensor, up: Tensor) -> None:
        half = entry.nbytes // self.experts.count // 2
        for expert in range(self.experts.count):
            self._fill(entry, gate[expert], 2 * expert * half)
            self._fill(entry, up[expert], (2 * expert + 1) * half)

    def _read(self, entry: TensorEntry) -> Tensor:
        out = self._empty(entry.shape, _DTYPES[entry.dtype])
        self._copy(entry, out)
        return out

    def _fill(self, entry: TensorEntry, out: Tensor, begin: int = 0) -> None:
        """Converts `out.numel()` elements of a tensor, from byte `begin` on, into `out`, in pieces
        of 8 MiB.
        """
        dtype = _DTYPES[entry.dtype]
        if out.dtype == dtype and out.device == self._device:
            self._copy(entry, out, begin)
            return
        flat = out.detach().view(-1)
        step = (8 << 20) // dtype.itemsize
        for start in range(0, flat.numel(), step):
            stop = min(start + step, flat.numel())
            piece = self._empty((stop - start,), dtype)
            self._copy(entry, piece, begin + start * dtype.itemsize)
            flat[start:stop].copy_(piece)

    def _copy(self, entry: TensorEntry, out: Tensor, begin: int = 0) -> None:
        """Copies raw bytes into a contiguous tensor of the stored dtype, made by `_empty`."""
        raw, file = out.detach().reshape(-1).view(torch.uint8), self._files.of(entry)
        if self._staged is not None:
            self._staged.copy(file, entry.start + begin, raw)
            if self._checks is not None and entry.dtype in ("BF16", "F16", "F32"):
                self._checks.dense(out)
        else:
            file.read_into(entry, raw.numpy(), begin)

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if self._staged is None else self._staged.device

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)


def _check_shape(name: str, shape: tuple[int, ...], out: Tensor) -> None:
    if tuple(out.shape) != shape or not out.is_contiguous():
        raise ValueError(
            f"{name} needs a contiguous output of shape {shape}, not {tuple(out.shape)}"
        )
