"""The block attention kernel behind the cache's seam: its output and its workspace.

Knows which buffers a call needs; the maths is `engine.kernels.attention`. Needs Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.attention import (
    AttentionPlan,
    AttentionWorkspace,
    block_attention,
    make_workspace,
)


class TritonAttention:
    """`BlockAttention` in one launch. Workspaces are made once per shape and kept, because their
    tickets must be zero between launches."""

    def __init__(self) -> None:
        self._plan = AttentionPlan()
        self._workspaces: dict[tuple[int, ...], AttentionWorkspace] = {}

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, start: Tensor, block_length: int
    ) -> Tensor:
        q, out = q.contiguous(), torch.empty_like(q)
        workspace = self._workspaces.get(tuple(q.shape))
        if workspace is None:
            batch, length, heads, dim = q.shape
            workspace = make_workspace(batch, length, heads, dim, self._plan, q.device)
            self._workspaces[tuple(q.shape)] = workspace
        block_attention(q, keys, values, start, block_length, out, workspace, self._plan)
        return out
