"""The attention kernels behind the canvas cache's seam: heads normalised, turned and kept in one
launch, attention in two.

Knows which buffers a call needs; the maths is `engine.kernels.canvas_attention`. Needs Triton.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.kernels.canvas_attention import (
    CanvasPlan,
    CanvasWorkspace,
    KeptHeads,
    canvas_attention,
    choose_plan,
    keep_heads,
    make_canvas_workspace,
)
from engine.models.diffusion_gemma_layers import GemmaHeads
from engine.models.layers import Heads

SMALL_SHARED = 48 * 1024  # bytes of shared memory that every GPU, and the interpreter, has


class TritonCanvasAttention:
    """`CanvasAttention` in three launches. inverses: window -> RoPE's angles float32 [D / 2].
    Workspaces are made once per shape, while warming up."""

    def __init__(self, inverses: Mapping[int | None, Tensor]) -> None:
        self.inverses = inverses
        self._kept: dict[tuple[int, ...], tuple[CanvasPlan, CanvasWorkspace]] = {}

    def __call__(
        self,
        heads: Heads,
        keys: Tensor,
        values: Tensor,
        start: Tensor,
        window: int | None,
        ends: Tensor | None,
    ) -> Tensor:
        assert isinstance(heads, GemmaHeads)
        assert heads.q_norm is not None
        assert heads.k_norm is not None
        slots = keys.shape[2]
        ring = slots if window is None else slots - 1  # whose last slot is the spare one
        kept = KeptHeads(
            keys,
            values,
            ring,
            slots - 1,
            heads.q_norm.weight,
            heads.k_norm.weight,
            self.inverses[window],
            heads.eps,
        )
        kept_ends = None if window is None or ends is None else ends.view(-1)
        q = keep_heads(heads.qkv.contiguous(), kept, start, kept_ends, heads.shared)
        plan, workspace = self._workspace(q, heads.kv_heads)
        causal = ends is not None
        return canvas_attention(q, keys, values, start, ring, window, causal, workspace, plan)

    def _workspace(self, q: Tensor, kv_heads: int) -> tuple[CanvasPlan, CanvasWorkspace]:
        shape = (*q.shape, kv_heads)
        if shape not in self._kept:
            batch, length, heads, dim = q.shape
            limit = SMALL_SHARED
            if q.device.type == "cuda":
                properties = torch.cuda.get_device_properties(q.device)
                limit = int(getattr(properties, "shared_memory_per_block_optin", limit))
            plan = choose_plan((batch, length, heads, dim), kv_heads, limit)
            self._kept[shape] = (plan, make_canvas_workspace(q, plan))
        return self._kept[shape]
