"""A step as the public reference takes it: no cache, plain PyTorch operations in bfloat16, the
whole sequence forwarded again, logits of every position.

Experts are visited one after the other with a host read in between, as the published modelling code
does. Kept to say what the engine is faster than; nothing else uses it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from engine.bench.bytes_moved import Forms
from engine.bench.machine import Spread, free_bytes, settle
from engine.bench.random_model import build_random
from engine.bench.shapes import BenchSpec
from engine.models.backbone import AnyBackbone
from engine.models.experts import Experts, sum_by_sorting
from engine.models.layers import MaskAttend, block_causal_mask

REPEATS, WARM_UPS = 5, 2
SPARE_BYTES = 6 << 30  # activations and logits of the whole sequence


@dataclass(frozen=True)
class Reference:
    """tokens: of the sequence. step_ms: one denoising step."""

    tokens: int
    step_ms: Spread


def reference_bytes(spec: BenchSpec, dtype: torch.dtype) -> int:
    """Device memory the arm needs."""
    return spec.table.parameters * dtype.itemsize + SPARE_BYTES


def why_not(spec: BenchSpec, device: torch.device, dtype: torch.dtype) -> str:
    """Why the arm cannot run here, "" where it can."""
    if device.type != "cuda":
        return ""
    needed, free = reference_bytes(spec, dtype), free_bytes(device)
    if needed <= free:
        return ""
    return f"it needs {needed / 1e9:.1f} GB in bfloat16, and {free / 1e9:.1f} GB are free"


def measure_reference(
    spec: BenchSpec, device: torch.device, dtype: torch.dtype, tokens: int
) -> Reference:
    """Builds a dense model of the shape and takes steps over a sequence of `tokens` positions,
    rounded up to whole blocks, whose last block is masks."""
    forms = Forms(dtype.itemsize, experts_packed=False)
    model = build_random(spec, device, dtype, forms, kernels=False).model
    for module in model.modules():
        if isinstance(module, Experts):
            module.compute = sum_by_sorting
    length = spec.block_length
    tokens = -(-tokens // length) * length
    ids = (torch.arange(tokens, device=device) * 7 + 3).unsqueeze(0) % (spec.vocab_size - 8)
    assert spec.mask_token_id is not None
    ids[:, -length:] = spec.mask_token_id
    times: list[float] = []
    for number in range(WARM_UPS + REPEATS):
        canvas = ids.clone()
        settle(device)
        begun = time.perf_counter()
        reference_step(model, canvas, length, spec.mask_token_id)
        settle(device)
        if number >= WARM_UPS:
            times.append(1e3 * (time.perf_counter() - begun))
    return Reference(tokens, Spread.of(times))


@torch.inference_mode()
def reference_step(model: AnyBackbone, ids: torch.Tensor, length: int, mask_id: int) -> None:
    """One step over ids int64 [1, N], in place: the surest masked position of the last block is
    accepted."""
    positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
    attend = MaskAttend(block_causal_mask(positions, length))
    logits = model.logits(model(model.embed(ids), positions, attend))[:, -length:]
    logits[..., mask_id] = float("-inf")
    confidence, best = logits.softmax(-1).max(-1)
    block = ids[:, -length:]
    chosen = confidence.masked_fill(block != mask_id, -1.0).argmax(-1, keepdim=True)
    block.scatter_(1, chosen, best.gather(1, chosen))
