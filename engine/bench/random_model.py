"""A model with random weights at a named shape, built on its device layer by layer.

Knows how large random weights must be for activations to keep their size, and which of them may be
NVFP4: those are drawn as codes and scales, so that no bfloat16 original is ever there. Reads no
files. A model of random weights says nothing of quality, and its routing is not a trained one's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.bench.bytes_moved import Forms
from engine.bench.machine import settle
from engine.bench.shapes import BenchSpec
from engine.compose import parts_of
from engine.errors import RuntimeFailure
from engine.kernels.nvfp4 import PackedExperts, PackedWeight
from engine.models.backbone import AnyBackbone
from engine.models.experts import Experts, Router
from engine.models.kernel_report import NO_KERNELS, KernelReport
from engine.models.layers import Linear, MaskAttend, block_causal_mask

# Root mean square of a random code (E2M1, any sign) times a random scale of 0.5 to 1.875.
_SPREAD = 3.45
_LEAST_SCALE, _END_SCALE = 0x30, 0x40  # bytes of E4M3: 0.5, and one behind 1.875
_QK_NORM = 2.5  # so that positions attend to different keys, and say different tokens
CHECKED = 2  # blocks of the forward that every new model is checked with


@dataclass(frozen=True)
class Built:
    """model: in place, with its kernels. report: what computes it. seconds: to build it,
    without compiling what computes it."""

    model: AnyBackbone
    report: KernelReport
    seconds: float


def build_random(
    spec: BenchSpec,
    device: torch.device,
    dtype: torch.dtype,
    forms: Forms,
    *,
    kernels: bool,
    interpret: bool = False,
    seed: int = 0,
) -> Built:
    """Draws every weight on `device`. kernels: as the loader gives them (needs a GPU, or
    `interpret` for tests); False = plain PyTorch operations.

    Raises RuntimeFailure `bench.nonfinite` if the logits of a forward are not finite.
    """
    begun = time.perf_counter()
    with torch.device("meta"):
        model = parts_of(spec).build(spec)
    placer = None
    if kernels:
        from engine.models.accelerate import KernelPlacer

        placer = KernelPlacer(model, device, dtype, interpret)
    draw = _Draws(device, dtype, forms, seed)
    for name, module in model.named_modules():
        draw.fill(name, module)
        if placer is not None and isinstance(module, Experts):
            placer.place(model.get_submodule(name.rpartition(".")[0]))
    _silence_stops(model, spec)
    report = NO_KERNELS if placer is None else placer.finish()
    model.eval().requires_grad_(False)
    settle(device)
    seconds = time.perf_counter() - begun
    check_finite(model)
    return Built(model, report, seconds)


@torch.inference_mode()
def check_finite(model: AnyBackbone) -> None:
    """One forward without a cache over a few blocks of different tokens."""
    spec, device = model.spec, model.norm.weight.device
    length = CHECKED * spec.block_length
    ids = (torch.arange(length, device=device) * 7 + 3).unsqueeze(0) % spec.vocab_size
    positions = torch.arange(length, device=device).unsqueeze(0)
    attend = MaskAttend(block_causal_mask(positions, spec.block_length))
    hidden = model(model.embed(ids), positions, attend)
    if not bool(model.logits(hidden[:, -spec.block_length :]).isfinite().all()):
        raise RuntimeFailure(
            "bench.nonfinite",
            "The random model gave logits that are not finite.",
            "This is a fault of the benchmark or of a kernel: please report it with the command.",
        )


class _Draws:
    """Fills one module after the other."""

    def __init__(self, device: torch.device, dtype: torch.dtype, forms: Forms, seed: int) -> None:
        self.device, self.dtype, self.forms = device, dtype, forms
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def fill(self, name: str, module: nn.Module) -> None:
        if isinstance(module, Linear):
            if self.forms.linears_packed:
                rows, columns = module.weight.shape
                stack = self._packed(1, rows, columns)
                module.pack(PackedWeight(*(part[0] for part in stack.tensors)))
            else:
                _set(module, "weight", self._normal(tuple(module.weight.shape)))
        elif isinstance(module, nn.Embedding):
            _set(module, "weight", self._normal(tuple(module.weight.shape), 1.0))
        elif isinstance(module, Router):
            # Digits that bfloat16 holds, as published routers have: kernels read them so.
            weight = self._normal(tuple(module.weight.shape)).to(torch.bfloat16)
            _set(module, "weight", weight.to(torch.float32))
            module.expert_bias = torch.zeros(module.weight.shape[0], device=self.device)
        elif isinstance(module, Experts):
            self._experts(module)
        else:
            value = _QK_NORM if name.endswith(_HEAD_NORMS) else 1.0
            for part, weight in list(module.named_parameters(recurse=False)):
                full = torch.full(weight.shape, value, dtype=self.dtype, device=self.device)
                _set(module, part, full)

    def _experts(self, module: Experts) -> None:
        shapes: list[tuple[int, int, int]] = []
        for stack in (module.gate, module.up, module.down):
            count, rows, columns = stack.shape
            shapes.append((count, rows, columns))
        if self.forms.experts_packed:
            module.pack(*(self._packed(*shape) for shape in shapes))
            return
        for part, shape in zip(("gate", "up", "down"), shapes, strict=True):
            _set(module, part, self._normal(shape))

    def _normal(self, shape: tuple[int, ...], scale: float | None = None) -> Tensor:
        """scale None: keeps the size of what it multiplies."""
        std = float(shape[-1]) ** -0.5 if scale is None else scale
        out = torch.empty(shape, dtype=self.dtype, device=self.device)
        return out.normal_(std=std, generator=self.generator)

    def _packed(self, count: int, rows: int, columns: int) -> PackedExperts:
        """Any codes; scales around 1; a global scale that keeps the size of what it multiplies."""
        return PackedExperts(
            self._bytes(0, 256, count, rows, columns // 2),
            self._bytes(_LEAST_SCALE, _END_SCALE, count, rows, columns // 16).view(
                torch.float8_e4m3fn
            ),
            torch.full((count,), 1 / (_SPREAD * columns**0.5), device=self.device),
        )

    def _bytes(self, low: int, high: int, *size: int) -> Tensor:
        return torch.randint(
            low, high, size, dtype=torch.uint8, device=self.device, generator=self.generator
        )


_HEAD_NORMS = ("query_layernorm", "key_layernorm", "q_norm", "k_norm")


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    setattr(module, name, nn.Parameter(value, requires_grad=False))


def _silence_stops(model: AnyBackbone, spec: BenchSpec) -> None:
    """Stop tokens get a logit of 0, which is never the best of thousands: a reply then has the
    length it was asked for."""
    head = getattr(model, "lm_head", None)
    stops = list(spec.stop_ids)
    if head is None:
        model.embedding.data[stops] = 0
    elif head.packed is None:
        head.weight.data[stops] = 0
    else:
        head.packed.codes[stops] = 0
