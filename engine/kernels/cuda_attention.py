"""Block attention over the static cache in one CUDA C++ launch, its splits merged inside a cluster.

Knows which cut suits how many queries, and the sizes of grids and shared memory. The maths is in
`cuda/attention.cu`; the reference and the portable version are `attention.py`. Needs thread block
clusters (sm_90 and later); it has a compiled form for each head size, group and block length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.nvrtc import CudaModule, Define

STEPS = 3  # of 16 keys a warp scores at once, as in the source
START_TYPES = {torch.int32: "int", torch.int64: "long long"}


@dataclass(frozen=True)
class ClusterPlan:
    """tokens: queries of a block (16, 32 or 64). key_warps: warps that share its keys. splits:
    blocks that share a head's keys."""

    tokens: int = 32
    key_warps: int = 4
    splits: int = 8

    @property
    def threads(self) -> int:
        return 2 * self.tokens * self.key_warps

    def shared_bytes(self, dim: int) -> int:
        """Of a block: two stages of keys and values, later what its warps have found."""
        stages = 2 * (2 * 16 * STEPS * self.key_warps * dim * 2)
        return max(stages, self.key_warps * self.tokens * ((dim + 8) * 4 + 16))

    def grid(self, heads: int, batch: int, length: int) -> tuple[int, int]:
        return heads * self.splits, batch * -(-length // self.tokens)


def plan_clusters(length: int) -> ClusterPlan:
    """For up to `length` queries of a row."""
    tokens = min(64, max(16, 1 << (length - 1).bit_length()))
    return ClusterPlan(tokens, key_warps=2 if tokens == 64 else 4)


def attention_defines(
    dim: int, group: int, block_length: int, start: torch.dtype, plan: ClusterPlan
) -> dict[str, Define]:
    """Macros of `cuda/attention.cu`. Raises ValueError for a head it does not take."""
    if dim % 64 or dim > 128:
        raise ValueError(f"the attention kernel takes heads of 64 or 128, not {dim}")
    return {
        "DIM": dim,
        "GROUP": group,
        "BLOCK_LENGTH": block_length,
        "START": START_TYPES[start],
        "TOKENS": plan.tokens,
        "KEY_WARPS": plan.key_warps,
        "SPLITS": plan.splits,
    }


class CudaAttention:
    """Attention of up to `length` queries a row for one kind of head, on the current device.

    Raises ValueError for a head or device it does not take, RuntimeFailure where it cannot be
    built.
    """

    def __init__(
        self,
        dim: int,
        group: int,
        block_length: int,
        length: int,
        start: torch.dtype = torch.int64,
        plan: ClusterPlan | None = None,
    ) -> None:
        if torch.cuda.get_device_capability() < (9, 0):
            raise ValueError("this GPU has no thread block clusters")
        self.dim, self.group, self.start = dim, group, start
        self.plan = plan or plan_clusters(length)
        module = CudaModule(
            "attention.cu", attention_defines(dim, group, block_length, start, self.plan)
        )
        self._kernel = module.kernel("attend", self.plan.shared_bytes(dim))

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        start: Tensor,
        out: Tensor,
        dependent: bool = False,
    ) -> None:
        """As `attention.block_attention`, bf16 only: q, out [B, T, Hq, D], caches [B, Hkv,
        capacity, D], start [B] of the dtype given above; all contiguous. No workspace. dependent:
        programmatic dependent launch; then neither start nor the keys before it may be written by
        the kernel ahead."""
        batch, length, heads, dim = q.shape
        kv_heads, capacity = k_cache.shape[1:3]
        assert (dim, heads, start.dtype) == (self.dim, self.group * kv_heads, self.start)
        self._kernel.launch(
            self.plan.grid(heads, batch, length),
            self.plan.threads,
            (q, k_cache, v_cache, start, out, length, heads, capacity, log2_scale(dim)),
            dependent,
        )


def log2_scale(dim: int) -> float:
    """Of the scores: dim^-0.5 log2(e), for a softmax in powers of two."""
    return dim**-0.5 * 1.4426950408889634
