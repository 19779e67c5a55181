"""An open, validated checkpoint: tensors by name, in their stored form, read straight into their
own memory.

Knows files and forms; computes nothing but NVFP4 expansion on request. Every read copies from a
small moving window of the mapped file, so that memory holds one copy of the weights and no file
pages.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from engine.checkpoint.family import family_from_config, family_from_tensors
from engine.checkpoint.folder import JsonObject, ModelFolder, TensorFiles, read_folder
from engine.checkpoint.inventory import PROJECTIONS, Inventory, StoredMatrix, take_inventory
from engine.checkpoint.quantisation import check_quantisation
from engine.checkpoint.staging import StagedReader
from engine.checkpoint.tensor_file import TensorEntry
from engine.checkpoint.tokenizer_ids import check_tokenizer, read_tokenizer_ids
from engine.checkpoint.values import Progress, check_values
from engine.kernels.nvfp4 import PackedExperts, PackedWeight, dequantize_into
from engine.models.llada2_spec import LLaDA2Spec

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
) -> Checkpoint:
    """Opens a model folder and validates everything in it, values included (one pass over the
    files).

    progress(bytes checked, bytes in all) is called about every 64 MiB; `stop` ends the pass with
    `load.stopped`. Raises CheckpointError (UnsupportedFamilyError for a family that is not built),
    with file and item set.
    """
    folder = read_folder(path)
    family = family_from_config(folder.config)
    notes = list(folder.notes)
    notes += check_quantisation(folder)
    ids = read_tokenizer_ids(folder)
    files = TensorFiles(folder)
    try:
        family = family_from_tensors(files.entries, family)
        spec = LLaDA2Spec.from_config(
            folder.config,
            folder.generation_config,
            folder_name=folder.path.resolve().name,
            special_tokens=ids.added if ids else None,
        )
        notes += [spec.decoding_evidence, *spec.notes]
        if ids is not None:
            notes += check_tokenizer(ids, spec)
        inventory = take_inventory(files.entries, tuple(files.files), spec)
        zero = check_values(files, inventory, progress, stop)
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


class Checkpoint:
    """A validated folder. Module names are those of models.md 1.3 without `.weight`.

    layout: which NVFP4 layout the packed modules use; "mixed" = both, "bf16" = nothing is packed
    (the dense dtype may also be float16 or float32, see `describe_forms`). total_bytes: size of all
    weight files.
    """

    def __init__(
        self,
        folder: ModelFolder,
        family: str,
        spec: LLaDA2Spec,
        files: TensorFiles,
        inventory: Inventory,
        zero_modules: frozenset[str],
        notes: tuple[str, ...],
        has_tokenizer: bool,
    ) -> None:
        self.path: Path = folder.path
        self.config: JsonObject = folder.config
        self.generation_config: JsonObject = folder.generation_config
        self.family = family
        self.spec = spec
        self.files: tuple[str, ...] = tuple(files.files)
        self.total_bytes = files.total_bytes
        self.notes = notes
        self.has_tokenizer = has_tokenizer
        self.inventory = inventory
        self._files = files
        self._zero = zero_modules
        self._staged: StagedReader | None = None

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
        return layer not in self.inventory.stacks and all(
            self.inventory.matrices[_expert_module(layer, expert, part)].form != "dense"
            for expert in range(self.spec.num_experts)
            for part in PROJECTIONS
        )

    def read_onto(self, device: torch.device) -> None:
        """From now on tensors are read onto a GPU, through pinned memory and ahead of time."""
        if device.type == "cuda" and self._staged is None:
            index = torch.cuda.current_device() if device.index is None else device.index
            self._staged = StagedReader(torch.device("cuda", index))

    def release(self) -> None:
        """Closes the files. Tensors already read stay valid; nothing more can be read."""
        if self._staged is not None:
            self._staged.close()
            self._staged = None
        self._files.close()

    def dense(self, name: str) -> Tensor:
        """A tensor by its full name, in its stored dtype and in its own memory, which is the CPU's
        unless `read_onto` was called, as for all that follows. KeyError for a name
        that is not there.
        """
        return self._read(self._files.entries[name])

    def dense_into(self, name: str, out: Tensor) -> None:
        """Copies a tensor into `out` (same shape, any float dtype and device), a few rows at a
        time.
        """
        entry = self._files.entries[name]
        _check_shape(name, entry.shape, out)
        self._fill(entry, out)

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
        shapes = self._expert_shapes()
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
        for part, shape in self._expert_shapes().items():
            _check_shape(part, shape, outs[part])
        stack = self.inventory.stacks.get(layer)
        if stack is None:
            for expert in range(self.spec.num_experts):
                for part, out in outs.items():
                    self.linear_into(_expert_module(layer, expert, part), out[expert])
        elif "gate_up_proj" in stack:
            self._split_fused(stack["gate_up_proj"], gate, up)
            self._fill(stack["down_proj"], down)
        else:
            for part, out in outs.items():
                self._fill(stack[part], out)

    def _expert_shapes(self) -> dict[str, tuple[int, int, int]]:
        count, inter, hidden = (
            self.spec.num_experts,
            self.spec.moe_intermediate_size,
            self.spec.hidden_size,
        )
        up = (count, inter, hidden)
        return {"gate_proj": up, "up_proj": up, "down_proj": (count, hidden, inter)}

    def _experts(self, layer: int) -> tuple[ExpertStack, ExpertStack, ExpertStack]:
        """Experts stored one by one. Read expert by expert, as they lie in the file."""
        gate, up, down = (self._new_stack(layer, part) for part in PROJECTIONS)
        stacks = dict(zip(PROJECTIONS, (gate, up, down), strict=True))
        for expert in range(self.spec.num_experts):
            for part, stack in stacks.items():
                module = _expert_module(layer, expert, part)
                stored = self.inventory.matrices[module]
                if isinstance(stack, PackedExperts):
                    self._packed_into(module, stored, stack.expert(expert))
                elif stored.form == "dense":
                    self._fill(stored.weight, stack[expert])
                else:
                    self.linear_into(module, stack[expert])
        return gate, up, down

    def _new_stack(self, layer: int, part: str) -> ExpertStack:
        """Memory for one projection of all experts: packed, in their dtype, or float32 where they
        are stored in different forms."""
        modules = [_expert_module(layer, expert, part) for expert in range(self.spec.num_experts)]
        stored = [self.inventory.matrices[module] for module in modules]
        count, rows, cols = self._expert_shapes()[part]
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
        if stored.form == "compressed-tensors":  # stored as a divisor
            out.global_scale.reciprocal_()

    def _split_fused(self, entry: TensorEntry, gate: Tensor, up: Tensor) -> None:
        half = entry.nbytes // self.spec.num_experts // 2
        for expert in range(self.spec.num_experts):
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


def _expert_module(layer: int, expert: int, part: str) -> str:
    return f"model.layers.{layer}.mlp.experts.{expert}.{part}"
