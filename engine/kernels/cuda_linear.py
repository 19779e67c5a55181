"""y = x W^T for few tokens in CUDA C++: bf16 weights as they are, NVFP4 in fragment order.

Knows which cut of a product suits a shape and a GPU, and the sizes of grids and shared memory. The
maths is in `cuda/linear.cu`; the references are `F.linear` and `linear_nvfp4.linear_reference`. Any
number of tokens is right (blocks take up to 64 of them at a time); few is what it is for.

The weights are asked for before the kernel ahead is complete, so they must not be what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.fragments import COLUMNS, SLICE_BLOCKS, LinearFragments
from engine.kernels.nvrtc import CudaModule, Define

MOST_TOKENS = 64  # a block takes
UNIT_BLOCKS = 4  # of 64 bf16 columns a warp holds in registers


@dataclass(frozen=True)
class LinearShape:
    """W [size, columns] and what is done with its products. gated: W is gate over up, and the
    result silu(gate) * up has size / 2 columns. logits: rows of a second, bf16 matrix whose
    products come out in float32."""

    size: int
    columns: int
    packed: bool = False
    gated: bool = False
    logits: int = 0

    def __post_init__(self) -> None:
        each = self.size // (2 if self.gated else 1)
        if each % 16 or self.logits % 16 or self.columns % (16 if self.packed else 8):
            raise ValueError(f"the linear kernel does not take {self}")
        if self.logits and self.packed:
            raise ValueError("the second matrix of a linear kernel goes with bf16 weights only")

    @property
    def blocks(self) -> int:
        """Of 64 columns, the last one padded."""
        return -(-self.columns // COLUMNS)


@dataclass(frozen=True)
class LinearPlan:
    """How a product is cut: tokens of a block, 16-row tiles of a block, and the columns over
    `slices` warps of each of `cluster` blocks. per_sm: blocks one multiprocessor must have
    registers for."""

    tokens: int = 32
    tiles: int = 4
    slices: int = 2
    cluster: int = 1
    per_sm: int = 2

    @property
    def threads(self) -> int:
        return 32 * self.tiles * self.slices

    def unit(self, shape: LinearShape) -> int:
        """Blocks of 64 columns a warp holds at once."""
        if shape.packed:
            return -(-shape.blocks // -(-shape.blocks // SLICE_BLOCKS))
        return min(UNIT_BLOCKS, -(-shape.blocks // (self.slices * self.cluster)))

    def shared_bytes(self, shape: LinearShape) -> int:
        """Of a block: its tokens' columns, later its partial sums."""
        staged = self.slices * self.unit(shape) * self.tokens // 8 * 1024
        return max(staged, self.slices * self.tokens * (16 * self.tiles + 4) * 4)

    def grid(self, shape: LinearShape, tokens: int) -> tuple[int, int]:
        rows, parts = 16 * self.tiles, 2 if shape.gated else 1
        groups = -(-(shape.size // parts) // (rows // parts)) + -(-shape.logits // rows)
        return groups * self.cluster, -(-tokens // self.tokens)


def plan_linear(shape: LinearShape, tokens: int, clusters: bool) -> LinearPlan:
    """A plan for up to `tokens` tokens. clusters: the GPU has thread block clusters and they may
    be used (measured nowhere but on sm_90)."""
    few = min(MOST_TOKENS, max(8, 1 << (tokens - 1).bit_length()))
    units = -(-shape.blocks // SLICE_BLOCKS)
    if not clusters:
        slices = min(2, units) if shape.packed else 4
        return LinearPlan(min(few, 32), tiles=2, slices=slices)
    if shape.packed:
        cluster = min(8, 1 << (units.bit_length() - 1))
        return LinearPlan(few, tiles=4, slices=1, cluster=cluster, per_sm=4)
    cluster = min(8, 1 << max(0, (shape.blocks // 2).bit_length() - 1))
    small = shape.blocks <= 2 * 2 * cluster  # then two blocks of columns a warp: three times fit
    return LinearPlan(few, tiles=4, slices=2, cluster=cluster, per_sm=3 if small else 2)


def linear_defines(shape: LinearShape, plan: LinearPlan) -> dict[str, Define]:
    """Macros of `cuda/linear.cu`."""
    if shape.gated and plan.tiles % 2:
        raise ValueError("a gated product needs an even number of row tiles")
    defines: dict[str, Define] = {
        "SIZE": shape.size,
        "COLUMNS": shape.columns,
        "LOGITS": shape.logits,
        "TOKENS": plan.tokens,
        "TILES": plan.tiles,
        "SLICES": plan.slices,
        "CLUSTER": plan.cluster,
        "BLOCKS_PER_SM": plan.per_sm,
    }
    if shape.packed:
        defines["PACKED"] = 1
    if shape.gated:
        defines["GATED"] = 1
    return defines


class CudaLinear:
    """The product for one shape, up to `tokens` tokens at full speed, on the current device.

    Raises ValueError for a shape or plan it does not take, RuntimeFailure where it cannot be built.
    """

    def __init__(self, shape: LinearShape, tokens: int, plan: LinearPlan | None = None) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.shape = shape
        self.plan = plan or plan_linear(shape, tokens, clusters=properties.major == 9)
        limit = int(getattr(properties, "shared_memory_per_block_optin", 99 * 1024))
        shared = self.plan.shared_bytes(shape)
        if shared > limit:
            raise ValueError(f"{self.plan} needs {shared} bytes of shared memory, of {limit}")
        module = CudaModule("linear.cu", linear_defines(shape, self.plan))
        self._kernel = module.kernel("linear", shared)

    def __call__(
        self,
        weight: Tensor | LinearFragments,
        x: Tensor,
        out: Tensor,
        second: Tensor | None = None,
        logits: Tensor | None = None,
        dependent: bool = False,
    ) -> None:
        """x bf16 [T, columns] -> out bf16 [T, size], or silu(gate) * up bf16 [T, size / 2]; weight
        bf16 [size, columns] or its fragments; second bf16 [logits, columns] -> logits float32 [T,
        logits]. All contiguous. dependent: programmatic dependent launch; then neither matrix may
        be written by the kernel ahead."""
        data, scales = weight, out  # scales: not read
        if isinstance(weight, LinearFragments):
            data, scales = weight.data, weight.tile_scales
        assert isinstance(data, Tensor)
        assert isinstance(weight, LinearFragments) == self.shape.packed
        assert (second is not None) == (logits is not None) == bool(self.shape.logits)
        others = (out if second is None else second, out if logits is None else logits)
        self._kernel.launch(
            self.plan.grid(self.shape, x.shape[0]),
            self.plan.threads,
            (data, scales, x, x.shape[0], out, *others),
            dependent,
        )
