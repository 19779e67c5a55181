"""NVFP4 in plain torch: packing, expanding and quantising, on any device.

Knows the arithmetic of the format (E2M1 codes in pairs, one E4M3 scale per 16 inputs, one float32
scale per matrix) in ModelOpt's multiply form: W = e2m1(code) * scale * global_scale. Knows nothing
of files (that is `engine.checkpoint`) and of fast paths: this is the reference that kernels are
compared with. Format: models.md section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

BLOCK = 16  # inputs that share one E4M3 scale
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN = 2.0**-9  # smallest positive value (subnormal)

# Values of codes 0..15; bit 3 is the sign.
E2M1_VALUES = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """One quantised matrix [out, in].

    codes uint8 [out, in/2]: byte j holds column 2j in its low and 2j+1 in its high nibble. scales
    float8_e4m3fn [out, in/16], row-major. global_scale float32 []: multiplies.
    """

    codes: Tensor
    scales: Tensor
    global_scale: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix it stands for."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * 2)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.global_scale.nbytes

    def to(self, device: torch.device | str) -> PackedWeight:
        return PackedWeight(*(part.to(device) for part in _parts(self)))


@dataclass(frozen=True, eq=False)
class PackedExperts:
    """One projection of all routed experts of a layer, [experts, out, in].

    codes uint8 [E, out, in/2], scales float8_e4m3fn [E, out, in/16], global_scale float32 [E]; as
    `PackedWeight`.
    """

    codes: Tensor
    scales: Tensor
    global_scale: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stack it stands for."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * 2)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.global_scale.nbytes

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """codes, scales, global_scale."""
        return self.codes, self.scales, self.global_scale

    def expert(self, index: int) -> PackedWeight:
        """A view of one expert's matrix."""
        return PackedWeight(*(part[index] for part in _parts(self)))

    def to(self, device: torch.device | str) -> PackedExperts:
        return PackedExperts(*(part.to(device) for part in _parts(self)))


Packed = TypeVar("Packed", PackedWeight, PackedExperts)


def unpack(codes: Tensor) -> Tensor:
    """Bytes to codes: uint8 [..., in/2] -> uint8 [..., in] with values 0..15."""
    return torch.stack((codes & 0xF, codes >> 4), dim=-1).flatten(-2)


def pack(codes: Tensor) -> Tensor:
    """Codes to bytes: uint8 [..., in] with values 0..15 -> uint8 [..., in/2]. `in` must be even."""
    pairs = codes.unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def dequantize(packed: PackedWeight | PackedExperts, dtype: torch.dtype) -> Tensor:
    """Expands to `dtype` [..., out, in], computed in float32 and rounded once.

    code * scale is exact in float32, so the product with the global scale is the only other
    rounding.
    """
    codes, scales, global_scale = _parts(packed)
    pairs = _byte_table(codes.device).index_select(0, codes.reshape(-1).int())
    blocks = pairs.view(torch.float32).view(*codes.shape[:-1], -1, BLOCK)
    blocks *= scales.float().unsqueeze(-1)
    blocks *= global_scale.reshape(global_scale.shape + (1,) * (blocks.dim() - global_scale.dim()))
    return blocks.flatten(-2).to(dtype)


def dequantize_into(packed: PackedWeight | PackedExperts, out: Tensor) -> None:
    """As `dequantize`, into `out` [..., out, in] of any float dtype; works row by row groups to
    stay small.
    """
    if isinstance(packed, PackedExperts):
        for index in range(packed.codes.shape[0]):
            dequantize_into(packed.expert(index), out[index])
        return
    rows = max(1, (1 << 21) // max(1, packed.shape[-1]))  # float32 pieces of 8 MiB
    for start in range(0, packed.shape[0], rows):
        stop = min(start + rows, packed.shape[0])
        part = PackedWeight(
            packed.codes[start:stop], packed.scales[start:stop], packed.global_scale
        )
        out[start:stop].copy_(dequantize(part, out.dtype))


def global_scale_of(weight: Tensor) -> Tensor:
    """ModelOpt's second-level scale, amax / (6 * 448), float32 []. An all-zero matrix gets 1.

    ModelOpt itself writes 0 there, and NaN block scales with it; 1 stands for the same matrix in
    valid numbers.
    """
    amax = weight.abs().amax().float()
    return torch.where(amax > 0, amax / (E2M1_MAX * E4M3_MAX), torch.ones_like(amax))


def quantize(weight: Tensor, global_scale: Tensor | None = None) -> PackedWeight:
    """Quantises a float matrix [out, in] by ModelOpt's rules (its bytes exactly); `in` must be a
    multiple of 16.

    global_scale: share one over several matrices (ModelOpt ties gate and up); default is
    `global_scale_of(weight)`. Source: models.md 5a. Raises ValueError for a shape that does not fit
    or for weights that are not finite.
    """
    if weight.dim() != 2 or weight.shape[1] % BLOCK:
        raise ValueError(f"NVFP4 needs [out, in] with in a multiple of {BLOCK}, not {weight.shape}")
    if not torch.isfinite(weight).all():
        raise ValueError("NVFP4 cannot hold weights that are not finite")
    scale_2 = global_scale_of(weight) if global_scale is None else global_scale.float()
    blocks = weight.float().unflatten(-1, (-1, BLOCK))
    block_amax = blocks.abs().amax(dim=-1)
    wanted = block_amax / (E2M1_MAX * scale_2)
    wanted = torch.where(wanted == 0, torch.ones_like(wanted), wanted)
    scales = wanted.clamp(E4M3_MIN, E4M3_MAX).to(torch.float8_e4m3fn)
    scaled = blocks / (scales.float() * scale_2).unsqueeze(-1)
    codes = encode_e2m1(scaled.flatten(-2))
    return PackedWeight(pack(codes), scales, scale_2.reshape(()))


def encode_e2m1(values: Tensor) -> Tensor:
    """Nearest code of each float32 value, ties to the even code, saturating at 6: uint8, same
    shape, 0..15.

    As in ModelOpt, -0.0 takes code 0, while a negative value that rounds to zero takes code 8.
    """
    # The values lie on three grids (steps 0.5, 1 and 2, up to 2, 4 and 6). On each, rounding half
    # to even is rounding to the even code; outside its range a grid gives a larger code than the
    # one whose range it is, so that the smallest of the three is right.
    magnitude = values.abs()
    code = (magnitude * 2).round_()
    torch.minimum(code, magnitude.round().add_(2), out=code)
    torch.minimum(code, magnitude.mul_(0.5).round_().add_(4), out=code)
    return code.clamp_(max=7).to(torch.uint8) + ((values < 0).to(torch.uint8) << 3)


def _parts(packed: PackedWeight | PackedExperts) -> tuple[Tensor, Tensor, Tensor]:
    return packed.codes, packed.scales, packed.global_scale


@lru_cache
def _byte_table(device: torch.device) -> Tensor:
    """The two float32 values a packed byte holds, low nibble first, as the bits of one int64:
    [256].

    One gather of eight bytes is several times faster than one of two floats.
    """
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=device)
    byte = torch.arange(256, device=device)
    pairs = torch.stack((values[byte & 0xF], values[byte >> 4]), dim=-1)
    return pairs.view(torch.int64).flatten()
