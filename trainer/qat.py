"""NVFP4 in training: what a weight would become if it were written to a checkpoint now.

Knows ModelOpt's rule (models.md 5a) applied to whole stacks of matrices at once, with one second
level scale a matrix and gate tied to up, as the exporter does. `engine.kernels.nvfp4` is the
reference; a test holds the two equal. Knows no optimiser and no files.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.kernels.nvfp4 import BLOCK, E2M1_MAX, E4M3_MAX, E4M3_MIN

# The parts of a model that may be quantised: parameter name ending -> part.
_PARTS = {
    ".experts.gate": "experts",
    ".experts.up": "experts",
    ".experts.down": "experts",
    "shared_experts.gate_proj.weight": "shared_experts",
    "shared_experts.up_proj.weight": "shared_experts",
    "shared_experts.down_proj.weight": "shared_experts",
    "mlp.gate_proj.weight": "dense_mlp",
    "mlp.up_proj.weight": "dense_mlp",
    "mlp.down_proj.weight": "dense_mlp",
    "attention.query_key_value.weight": "attention",
    "attention.dense.weight": "attention",
    "word_embeddings.weight": "embedding",
    "lm_head.weight": "head",
}
PARTS = frozenset(_PARTS.values())


def part_of(parameter: str) -> str | None:
    """Which quantisable part a training parameter belongs to, None for norms and routers."""
    return next((part for end, part in _PARTS.items() if parameter.endswith(end)), None)


def quantise_masters(masters: Mapping[str, Tensor], parts: frozenset[str]) -> dict[str, Tensor]:
    """Stacks [L, ..., out, in] of the given parts, quantised and expanded; others as they are.

    Gate and up of one MLP share their second level scale, as ModelOpt's exporter ties them.
    """
    out = dict(masters)
    for name, weights in masters.items():
        if part_of(name) not in parts:
            continue
        amax = weights.abs().amax((-2, -1), keepdim=True)
        partner = _partner(name)
        if partner is not None:
            amax = torch.maximum(amax, masters[partner].abs().amax((-2, -1), keepdim=True))
        out[name] = through_nvfp4(weights, amax)
    return out


def _partner(name: str) -> str | None:
    """The gate of an up projection and the reverse; None for every other weight."""
    for end in ("", "_proj.weight"):
        for mine, other in ((".gate", ".up"), (".up", ".gate")):
            if name.endswith(mine + end):
                return name.removesuffix(mine + end) + other + end
    return None


def through_nvfp4(weights: Tensor, amax: Tensor | None = None) -> Tensor:
    """Quantises and expands matrices [..., out, in] (in a multiple of 16): float32, same shape.

    amax: [..., 1, 1], the largest magnitude that fixes each matrix's second level scale; default is
    the matrix's own.
    """
    weights = weights.float()
    if amax is None:
        amax = weights.abs().amax((-2, -1), keepdim=True)
    scale_2 = torch.where(amax > 0, amax / (E2M1_MAX * E4M3_MAX), torch.ones_like(amax))
    blocks = weights.unflatten(-1, (-1, BLOCK))
    wanted = blocks.abs().amax(-1) / (E2M1_MAX * scale_2)
    wanted = torch.where(wanted == 0, torch.ones_like(wanted), wanted)
    scales = wanted.clamp(E4M3_MIN, E4M3_MAX).to(torch.float8_e4m3fn).float()
    codes = _nearest_e2m1(blocks / (scales * scale_2).unsqueeze(-1))
    return ((codes * scales.unsqueeze(-1)) * scale_2.unsqueeze(-1)).flatten(-2)


def _nearest_e2m1(values: Tensor) -> Tensor:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 with the sign kept; a midpoint goes to the even code.

    Each of the three ranges is a grid of its own (steps .5, 1, 2), on which rounding half to even
    is the even code.
    """
    size = values.abs()
    fine = (size * 2.0).round() * 0.5
    middle = size.round()
    coarse = (size * 0.5).round() * 2.0
    nearest = torch.where(size < 2.0, fine, torch.where(size < 4.0, middle, coarse))
    return nearest.clamp(max=E2M1_MAX).copysign(values)
