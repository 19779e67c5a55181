"""From a validated checkpoint to a model in place: which tensor goes where, in which form, and what
that costs in memory.

Knows the mapping of checkpoint names to module parameters and when packed weights are expanded.
Knows nothing of files (`engine.checkpoint`) or maths (`engine.models`). One tensor at a time is in
flight, so that the peak stays near the result.
"""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from engine.checkpoint import Checkpoint
from engine.checkpoint.refusals import printable
from engine.compose import parts_of
from engine.errors import RequestError, RuntimeFailure
from engine.kernels.nvfp4 import PackedExperts, PackedWeight
from engine.models.backbone import AnyBackbone
from engine.models.experts import Experts, Router
from engine.models.kernel_report import NO_KERNELS, Arithmetic, KernelReport
from engine.models.layers import Linear
from engine.models.reduced import check_reduced, use_reduced
from engine.protocol import ProgressCallback
from engine.types import LoadProgress

if TYPE_CHECKING:  # needs Triton
    from engine.models.accelerate import KernelPlacer


@dataclass(frozen=True)
class Placement:
    """Where and how weights live. expand: NVFP4 weights become dense `dtype` at load, instead of
    staying packed. kernels: what `load_model` gave the model. kv_dtype: of the KV cache, None =
    `dtype`."""

    device: torch.device
    dtype: torch.dtype
    expand: bool
    reason: str
    kernels: KernelReport = NO_KERNELS
    kv_dtype: torch.dtype | None = None

    @property
    def kept_dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.kv_dtype or self.dtype


def choose_device(name: str | None) -> torch.device:
    """The device a name means; without a name the first GPU if there is one, else the CPU.

    Raises RequestError for what is no device of this engine, RuntimeFailure for a GPU that is not
    there.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not name:
        return torch.device("cuda" if gpus else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise RequestError(
            "request.device",
            f"Models do not run on a device named {printable(repr(name))}.",
            "Choose cpu, or cuda for an NVIDIA GPU (cuda:1 for the second one).",
        )
    if device.type == "cuda" and (device.index or 0) >= gpus:
        found = f"PyTorch sees {gpus} here" if gpus else "PyTorch sees none here"
        raise RuntimeFailure(
            "load.no_gpu",
            f"There is no NVIDIA GPU {name}: {found}.",
            "Choose cpu, or name no device to have one chosen.",
        )
    return torch.device("cpu") if device.type == "cpu" else device


def use_device(device: torch.device) -> None:
    """Makes a GPU the calling thread's current one: kernels and streams are the current one's,
    wherever their tensors lie. Without a number it is the first one. A CPU changes nothing."""
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)


def choose_placement(
    checkpoint: Checkpoint, device: torch.device, free_bytes: int | None, dtype: torch.dtype | None
) -> Placement:
    """Packed on a GPU; on a CPU expanded to float32 where that fits into three quarters of the free
    memory.

    free_bytes: free memory of the device, None when unknown. dtype: asked for by the caller, None =
    choose. Raises RuntimeFailure `load.out_of_memory` when not even the stored form fits.
    """
    dense = checkpoint.spec.table.parameters
    room = None if free_bytes is None else int(free_bytes * 0.75)
    if room is not None and checkpoint.total_bytes > room:
        raise RuntimeFailure(
            "load.out_of_memory",
            f"The model needs at least {checkpoint.total_bytes / 1e9:.1f} GB, and "
            f"{(free_bytes or 0) / 1e9:.1f} GB are free on {device}.",
            "Close other programs, or choose a smaller or more quantised model.",
        )
    if device.type != "cpu":
        packed = "" if checkpoint.layout == "bf16" else ", NVFP4 weights stay packed"
        return Placement(
            device, dtype or torch.bfloat16, False, f"bfloat16 on {device.type}{packed}"
        )
    if dtype is None and room is not None and 4 * dense > room:
        return Placement(
            device,
            torch.bfloat16,
            False,
            "weights stay as stored: float32 copies would not fit into memory, so replies are slow",
        )
    dtype = dtype or torch.float32
    name = str(dtype).removeprefix("torch.")
    expanded = "" if checkpoint.layout == "bf16" else "NVFP4 weights are expanded once, "
    return Placement(device, dtype, True, f"{expanded}{name} on the CPU")


class _Progress:
    """Counts bytes in place, reports them, and ends the load when asked to."""

    def __init__(
        self, total: int, report: ProgressCallback | None, stop: threading.Event | None
    ) -> None:
        self.total, self.report, self.stop, self.done = total, report, stop, 0

    def add(self, *placed: Tensor | PackedWeight | PackedExperts) -> None:
        self.done += sum(item.nbytes for item in placed)
        if self.stop is not None and self.stop.is_set():
            raise RuntimeFailure("load.stopped", "Loading was stopped.", "Load the model again.")
        if self.report is not None:
            self.report(LoadProgress(min(self.done, self.total), self.total, "Loading weights"))


def build_model(
    checkpoint: Checkpoint,
    placement: Placement,
    report: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> AnyBackbone:
    """Builds the module and puts every weight in place, computed by plain torch. Raises
    RuntimeFailure (`load.stopped`, `load.out_of_memory`)."""
    model = empty_model(checkpoint)
    _place(model, checkpoint, placement, report, stop, None)
    checkpoint.finish_checks(stop)
    return model


def empty_model(checkpoint: Checkpoint) -> AnyBackbone:
    """The backbone without weights: on the meta device."""
    with torch.device("meta"):
        return parts_of(checkpoint.spec).build(checkpoint.spec)


def _place(
    model: AnyBackbone,
    checkpoint: Checkpoint,
    placement: Placement,
    report: ProgressCallback | None,
    stop: threading.Event | None,
    placer: KernelPlacer | None,
) -> None:
    size = torch.empty(0, dtype=placement.dtype).element_size()
    total = checkpoint.spec.table.parameters * size if placement.expand else checkpoint.total_bytes
    progress = _Progress(total, report, stop)
    try:
        _place_all(model, checkpoint, placement, progress, placer)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise RuntimeFailure(
            "load.out_of_memory",
            f"Memory ran out while the model was being loaded onto {placement.device}.",
            "Close other programs, or choose a smaller or more quantised model.",
        ) from error
    model.eval().requires_grad_(False)


def load_model(
    checkpoint: Checkpoint,
    placement: Placement,
    report: ProgressCallback | None = None,
    stop: threading.Event | None = None,
    arithmetic: Arithmetic = "stored",
) -> tuple[AnyBackbone, KernelReport]:
    """`build_model`, and on a GPU every layer gets its kernels as soon as it is in place.
    arithmetic: see `engine.models.reduced`; refused before anything is read (`load.arithmetic`)."""
    check_reduced(arithmetic, placement.device, placement.dtype)
    model = empty_model(checkpoint)
    kernels = NO_KERNELS
    placer, why = _kernel_placer(model, placement)
    _place(model, checkpoint, placement, report, stop, placer)
    reduced = use_reduced(model, arithmetic)
    if placer is not None:
        kernels = placer.finish()
    elif why:
        kernels = KernelReport(False, "torch", (why,))
    if reduced:
        kernels = replace(kernels, sentences=(*kernels.sentences, reduced))
    checkpoint.finish_checks(stop)
    return model, kernels


def _kernel_placer(model: AnyBackbone, placement: Placement) -> tuple[KernelPlacer | None, str]:
    """None, and why, where no kernel can run; on a CPU that needs no words."""
    if placement.device.type != "cuda":
        return None, ""
    if importlib.util.find_spec("triton") is None:
        return None, "Triton is not installed: plain PyTorch operations are used, more slowly."
    from engine.models.accelerate import KernelPlacer

    return KernelPlacer(model, placement.device, placement.dtype), ""


def _place_all(
    model: AnyBackbone,
    checkpoint: Checkpoint,
    placement: Placement,
    progress: _Progress,
    placer: KernelPlacer | None,
) -> None:
    """In the order weights lie in the files, so that reading ahead pays. A mixture gets its kernels
    as soon as both its router and its experts are there, whichever comes last."""
    if placement.device.type == "cuda":
        checkpoint.read_onto(placement.device)
    there = set[nn.Module]()
    for name, module in _in_file_order(model, checkpoint):
        _place_module(name, module, checkpoint, placement, progress)
        if placer is None or not isinstance(module, Experts | Router):
            continue
        there.add(module)
        owner = model.get_submodule(name.rpartition(".")[0])
        if all(part in there for part in owner.children() if isinstance(part, Experts | Router)):
            placer.place(owner)


def _in_file_order(model: AnyBackbone, checkpoint: Checkpoint) -> list[tuple[str, nn.Module]]:
    """Every module that has weights of its own, with its name."""
    found: list[tuple[tuple[str, int], str, nn.Module]] = []
    for name, module in model.named_modules():
        source = checkpoint.spec.checkpoint_name(name)
        if isinstance(module, Experts):
            found.append((checkpoint.position_of_experts(_layer_of(name)), name, module))
        elif isinstance(module, Linear | nn.Embedding | Router):
            found.append((checkpoint.position(source), name, module))
        else:
            parts = [f"{source}.{part}" for part, _ in module.named_parameters(recurse=False)]
            if parts:
                found.append((min(map(checkpoint.position, parts)), name, module))
    found.sort(key=lambda item: item[0])
    return [(name, module) for _, name, module in found]


def _layer_of(name: str) -> int:
    """The number in a module's name."""
    return next(int(part) for part in name.split(".") if part.isdigit())


def place_module(
    name: str, module: nn.Module, checkpoint: Checkpoint, placement: Placement
) -> None:
    """Puts one module's own weights in place. name: its name in the backbone."""
    _place_module(name, module, checkpoint, placement, _Progress(0, None, None))


def _place_module(
    name: str,
    module: nn.Module,
    checkpoint: Checkpoint,
    placement: Placement,
    progress: _Progress,
) -> None:
    source = checkpoint.spec.checkpoint_name(name)
    if isinstance(module, Linear):
        _place_linear(module, checkpoint, source, placement, progress)
    elif isinstance(module, nn.Embedding):
        shape = (module.num_embeddings, module.embedding_dim)
        _set(module, "weight", _expanded(checkpoint, source, shape, placement), progress)
    elif isinstance(module, Router):
        _place_router(module, checkpoint, source, placement, progress)
    elif isinstance(module, Experts):
        _place_experts(module, checkpoint, _layer_of(name), placement, progress)
    else:
        for part, _ in list(module.named_parameters(recurse=False)):
            _place_vector(module, part, checkpoint, f"{source}.{part}", placement, progress)


def _set(module: nn.Module, name: str, value: Tensor, progress: _Progress) -> None:
    setattr(module, name, nn.Parameter(value, requires_grad=False))
    progress.add(value)


def _place_vector(
    module: nn.Module,
    part: str,
    checkpoint: Checkpoint,
    name: str,
    placement: Placement,
    progress: _Progress,
) -> None:
    value = checkpoint.dense(name).to(placement.dtype)
    _set(module, part, value.to(placement.device), progress)


def _expanded(
    checkpoint: Checkpoint,
    source: str,
    shape: tuple[int, ...],
    placement: Placement,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A matrix straight into its own memory on the device; packed weights are rounded once."""
    weight = torch.empty(shape, dtype=dtype or placement.dtype, device=placement.device)
    checkpoint.linear_into(source, weight)
    return weight


def _place_linear(
    module: Linear,
    checkpoint: Checkpoint,
    source: str,
    placement: Placement,
    progress: _Progress,
) -> None:
    if module.bias is not None:
        _place_vector(module, "bias", checkpoint, f"{source}.bias", placement, progress)
    packed = checkpoint.inventory.matrices[source].form != "dense"
    if packed and not placement.expand:
        stored = checkpoint.linear(source)
        if not isinstance(stored, PackedWeight):
            raise TypeError("a packed module gave a dense weight")
        module.pack(stored.to(placement.device))
        progress.add(stored)
        return
    shape = tuple(module.weight.shape)
    _set(module, "weight", _expanded(checkpoint, source, shape, placement), progress)


def _place_router(
    module: Router,
    checkpoint: Checkpoint,
    source: str,
    placement: Placement,
    progress: _Progress,
) -> None:
    """Router weight and bias stay float32: near ties must not flip by rounding (models.md 1.3)."""
    shape = tuple(module.weight.shape)
    weight = _expanded(checkpoint, source, shape, placement, torch.float32)
    _set(module, "weight", weight, progress)
    module.short = checkpoint.inventory.matrices[source].weight.dtype == "BF16"
    name = f"{source}.expert_bias"
    if name in checkpoint.inventory.tensors:
        bias = checkpoint.dense(name).to(torch.float32)
    else:
        bias = torch.zeros(shape[0])
    module.expert_bias = bias.to(placement.device)
    progress.add(bias)


def _place_experts(
    module: Experts,
    checkpoint: Checkpoint,
    layer: int,
    placement: Placement,
    progress: _Progress,
) -> None:
    packed = checkpoint.layer_is_packed(layer)
    if packed and not placement.expand:
        gate, up, down = checkpoint.expert_stack(layer)
        if not (
            isinstance(gate, PackedExperts)
            and isinstance(up, PackedExperts)
            and isinstance(down, PackedExperts)
        ):
            raise TypeError("a packed layer gave dense experts")
        on_device = [stack.to(placement.device) for stack in (gate, up, down)]
        module.pack(*on_device)
        progress.add(*on_device)
        return
    stacks = {
        part.removesuffix("_proj"): torch.empty(
            shape, dtype=placement.dtype, device=placement.device
        )
        for part, shape in checkpoint.experts.shapes.items()
    }
    checkpoint.expert_stack_into(layer, stacks["gate"], stacks["up"], stacks["down"])
    for name, stack in stacks.items():
        _set(module, name, stack, progress)
