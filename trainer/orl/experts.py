"""Frozen NVFP4 experts under autograd on a GPU: expanded where they are used, and again for the
gradient, so that one layer's dense weights are in memory at a time.

Knows only that; the grouped product is `trainer.moe_train`'s.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from engine.kernels.nvfp4 import PackedExperts, dequantize
from engine.models.experts import Experts
from trainer.moe_train import CountedExperts, combine, dispatch, grouped_layout


class FrozenGrouped(CountedExperts):
    """The chosen experts of every token from packed weights: pairs sorted by expert, one grouped
    product up, one down."""

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """See `engine.models.experts.Experts`."""
        source, place, ends = grouped_layout(ids, self._count(ids))

        def compute(x: Tensor, weights: Tensor) -> Tensor:
            gate, up, down = (_expanded(w, x) for w in (experts.gate, experts.up, experts.down))
            rows = dispatch(x, source, place)
            left = F.grouped_mm(rows, gate.transpose(1, 2), offs=ends)
            right = F.grouped_mm(rows, up.transpose(1, 2), offs=ends)
            inner = experts.activation(left) * right
            out = F.grouped_mm(inner, down.transpose(1, 2), offs=ends)
            return combine(out, weights.to(x.dtype), source, place)

        out = checkpoint(compute, x, weights, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(out, Tensor)
        return out


def _expanded(weights: Tensor | PackedExperts, x: Tensor) -> Tensor:
    return weights if isinstance(weights, Tensor) else dequantize(weights, x.dtype)
