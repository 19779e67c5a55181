"""Re-packs NVFP4 expert weights, once at load, into the order in which the CUDA expert kernels read
them.

Knows the register layout of `mma.m16n8k16` and the bit order `cuda/expert_nvfp4.cu` unpacks; knows
no model and launches nothing. Plain torch on any device, with an exact inverse.

A matrix [N, K] is cut into tiles of 16 rows, slices of up to 512 columns (one warp's share) and
blocks of 64 columns. In a block, lane 4g+q owns columns 16q..16q+15 of rows g and g+8: 32 weights
in one 16-byte load, one scale per row, and 16 contiguous activations. Its four mma steps take four
of its columns each, which permutes K the same way for weights and activations and so changes
nothing. A tile is stored as [slice][block][lane][16 bytes] and then its scales as [slice][lane][16
bytes]: byte 2c is the scale of row g in block c, byte 2c+1 that of row g+8.

E2M1 is sign, two exponent bits and one mantissa bit: in a bf16 they belong at bit 15 and bits 8, 7,
6, which makes the value times 2^-126. Sixteen weights (8 registers of two) share two words; each
register is one rotated word and a mask. Six registers use disjoint bits of one word; the bits both
words have left make two more.

Scales become five exponent and three mantissa bits without a sign: `16 * byte + 0x7000` is then the
bf16 of scale * 2^119, and E4M3's subnormals have become normal numbers. The product code * scale
needs six bits of significand, so bf16 holds it exactly; the kernel's epilogue multiplies by 2^7 and
the global scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from engine.kernels.nvfp4 import BLOCK, PackedExperts, PackedWeight, pack, unpack

ROWS = 16  # of a tile
COLUMNS = 64  # of a block
SLICE_BLOCKS = 8  # at most, so that a lane's scales fit 16 bytes
CHUNK_BYTES = 1 << 26  # packed bytes worked on at a time: bounds the temporaries

_SHARED_BITS = 0x80C180C1  # of the first word in the registers made of both words' rest
# Per register (element 0 in its low half): which word (None: the mix of both), and the right
# rotation that is applied.
_REGISTERS: tuple[tuple[int | None, int], ...] = (
    (0, 2),
    (0, 6),
    (0, 28),
    (1, 4),
    (1, 8),
    (1, 30),
    (None, 26),
    (None, 0),
)
_CODE_BIT_TARGETS = (6, 7, 8, 15)  # of code bits 0 (mantissa), 1, 2 (exponent), 3 (sign)


def _bit_moves() -> tuple[tuple[int, int, int, int], ...]:
    """(element, code mask, left shift of the code, word) for 16 weights in register order; the
    moves do not overlap."""
    moves: dict[tuple[int, int, int], int] = {}
    for register, (word, rotation) in enumerate(_REGISTERS):
        for half in range(2):
            for bit, target in enumerate(_CODE_BIT_TARGETS):
                place = (target + 16 * half + rotation) % 32
                source = word if word is not None else int(not _SHARED_BITS >> place & 1)
                key = (2 * register + half, place - bit, source)
                moves[key] = moves.get(key, 0) | 1 << bit
    return tuple((element, mask, shift, word) for (element, shift, word), mask in moves.items())


_MOVES = _bit_moves()


@dataclass(frozen=True)
class FragmentShape:
    """How a matrix [rows, columns] is cut. Raises ValueError when it cannot be."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows % (2 * ROWS) or self.columns % BLOCK:
            raise ValueError(
                f"the expert kernel needs rows in pairs of {ROWS} and columns in {BLOCK}s, "
                f"not {self.rows} x {self.columns}"
            )

    @property
    def tiles(self) -> int:
        return self.rows // ROWS

    @property
    def slices(self) -> int:
        blocks = -(-self.columns // COLUMNS)
        return -(-blocks // SLICE_BLOCKS)

    @property
    def slice_blocks(self) -> int:
        blocks = -(-self.columns // COLUMNS)
        return -(-blocks // self.slices)

    @property
    def padded_columns(self) -> int:
        return self.slices * self.slice_blocks * COLUMNS

    @property
    def tile_bytes(self) -> int:
        return self.slices * (self.slice_blocks + 1) * 512


@dataclass(frozen=True, eq=False)
class ExpertFragments:
    """The routed experts of one layer as the CUDA kernels read them.

    gate_up uint8 [E, I/16, 2 (gate, up), tile bytes of H columns]; down uint8 [E, H/16, tile bytes
    of I columns]; gate_up_scale float32 [E, 2] and down_scale float32 [E]: the matrices' global
    scales.
    """

    hidden: int
    inter: int
    gate_up: Tensor
    down: Tensor
    gate_up_scale: Tensor
    down_scale: Tensor

    @property
    def experts(self) -> int:
        return self.gate_up.shape[0]

    @property
    def nbytes(self) -> int:
        parts = (self.gate_up, self.down, self.gate_up_scale, self.down_scale)
        return sum(part.nbytes for part in parts)


def pack_experts(gate: PackedExperts, up: PackedExperts, down: PackedExperts) -> ExpertFragments:
    """gate, up [E, I, H] and down [E, H, I] in checkpoint order -> fragments, on the same device.

    Raises ValueError for shapes the kernel does not take (see `FragmentShape`). Scales are taken as
    valid (the loader has checked that they are finite and positive).
    """
    experts, inter, hidden = gate.shape
    first, second = FragmentShape(inter, hidden), FragmentShape(hidden, inter)
    device = gate.codes.device
    gate_up = torch.empty(
        (experts, first.tiles, 2, first.tile_bytes), dtype=torch.uint8, device=device
    )
    packed_down = torch.empty(
        (experts, second.tiles, second.tile_bytes), dtype=torch.uint8, device=device
    )
    at_once = max(1, CHUNK_BYTES // (inter * hidden // 2))
    for start in range(0, experts, at_once):
        part = slice(start, start + at_once)
        gate_up[part, :, 0] = pack_matrix(gate.codes[part], gate.scales[part])
        gate_up[part, :, 1] = pack_matrix(up.codes[part], up.scales[part])
        packed_down[part] = pack_matrix(down.codes[part], down.scales[part])
    scales = torch.stack((gate.global_scale, up.global_scale), dim=-1).float().contiguous()
    return ExpertFragments(hidden, inter, gate_up, packed_down, scales, down.global_scale.float())


def unpack_experts(
    fragments: ExpertFragments,
) -> tuple[PackedExperts, PackedExperts, PackedExperts]:
    """Inverse of `pack_experts`: gate, up, down. Exact, but for blocks of scale 0, whose codes come
    back as 0."""
    inter, hidden = fragments.inter, fragments.hidden
    out: list[PackedExperts] = []
    for data, scale, rows, columns in (
        (fragments.gate_up[:, :, 0], fragments.gate_up_scale[:, 0], inter, hidden),
        (fragments.gate_up[:, :, 1], fragments.gate_up_scale[:, 1], inter, hidden),
        (fragments.down, fragments.down_scale, hidden, inter),
    ):
        codes, scales = unpack_matrix(data, rows, columns)
        out.append(PackedExperts(codes, scales, scale))
    return out[0], out[1], out[2]


@dataclass(frozen=True, eq=False)
class LinearFragments:
    """One or more matrices below one another, [rows, columns] in all. data uint8 [rows / 16, tile
    bytes]; tile_scales float32 [rows / 16]: the global scale of each tile's matrix."""

    rows: int
    columns: int
    data: Tensor
    tile_scales: Tensor

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.tile_scales.nbytes


def pack_linear(weights: Sequence[PackedWeight]) -> LinearFragments:
    """Joins matrices of the same inputs (query, key, value; gate, up) by rows. Raises ValueError
    where they cannot be cut into tiles."""
    if any(weight.shape[0] % ROWS for weight in weights):
        raise ValueError(f"matrices can be joined by {ROWS} rows, not {[w.shape for w in weights]}")
    codes = torch.cat([weight.codes for weight in weights])
    scales = torch.cat([weight.scales.view(torch.uint8) for weight in weights])
    data = pack_matrix(codes.unsqueeze(0), scales.view(torch.float8_e4m3fn).unsqueeze(0))[0]
    tile_scales = [
        weight.global_scale.float().expand(weight.shape[0] // ROWS) for weight in weights
    ]
    return LinearFragments(codes.shape[0], codes.shape[1] * 2, data, torch.cat(tile_scales))


def unpack_linear(fragments: LinearFragments) -> tuple[Tensor, Tensor]:
    """Inverse of `pack_linear` but for the cuts between matrices: codes uint8 [rows, columns / 2]
    and scales [rows, columns / 16]; blocks of scale 0 come back with codes of 0."""
    codes, scales = unpack_matrix(fragments.data.unsqueeze(0), fragments.rows, fragments.columns)
    return codes[0], scales[0]


def pack_matrix(codes: Tensor, scales: Tensor) -> Tensor:
    """codes uint8 [E, N, K/2], scales float8_e4m3fn [E, N, K/16] -> uint8 [E, N/16, tile bytes]."""
    experts, rows, half = codes.shape
    shape = FragmentShape(rows, half * 2)
    encoded = encode_scales(scales)
    values = unpack(codes) * (scales.view(torch.uint8) != 0).repeat_interleave(BLOCK, -1)
    pad = shape.padded_columns - shape.columns
    values = torch.nn.functional.pad(values, (0, pad))
    encoded = torch.nn.functional.pad(encoded, (0, pad // BLOCK))
    s, c = shape.slices, shape.slice_blocks
    # [E, tile, row half, g, slice, block, q, pair of steps, step, column half, element]
    cut = values.view(experts, shape.tiles, 2, 8, s, c, 4, 2, 2, 2, 2)
    # -> [E, tile, slice, block, g, q, pair of steps, (step, column half, row half, element) =
    # register order]
    lanes = cut.permute(0, 1, 4, 5, 3, 6, 7, 8, 9, 2, 10).flatten(-4).to(torch.int32)
    words = [torch.zeros_like(lanes[..., 0]) for _ in range(2)]
    for element, mask, shift, word in _MOVES:
        part = lanes[..., element] & mask
        words[word] |= part << shift if shift >= 0 else part >> -shift
    packed = torch.stack(words, dim=-1).view(torch.uint8)  # [E, tile, s, c, g, q, 2, 8]
    # [E, tile, row half, g, slice, block, q] -> [E, tile, slice, g, q, (block, row half)]
    spread = encoded.view(experts, shape.tiles, 2, 8, s, c, 4).permute(0, 1, 4, 3, 6, 5, 2)
    spread = torch.nn.functional.pad(spread.flatten(-2), (0, 16 - 2 * c))
    return torch.cat((packed.flatten(2), spread.flatten(2)), dim=-1)


def unpack_matrix(data: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Inverse of `pack_matrix`: uint8 [E, N/16, tile bytes] -> codes uint8 [E, N, K/2], scales [E,
    N, K/16]."""
    shape = FragmentShape(rows, columns)
    experts, s, c = data.shape[0], shape.slices, shape.slice_blocks
    split = s * c * 512
    words = data[..., :split].contiguous().view(torch.int32)
    words = words.view(experts, shape.tiles, s, c, 8, 4, 2, 2)
    lanes = torch.zeros(*words.shape[:-1], 16, dtype=torch.int32, device=data.device)
    for element, mask, shift, word in _MOVES:
        part = words[..., word] >> shift if shift >= 0 else words[..., word] << -shift
        lanes[..., element] |= part & mask
    cut = lanes.unflatten(-1, (2, 2, 2, 2)).permute(0, 1, 9, 4, 2, 3, 5, 6, 7, 8, 10)
    values = cut.reshape(experts, rows, shape.padded_columns)[..., :columns].to(torch.uint8)
    spread = data[..., split:].reshape(experts, shape.tiles, s, 8, 4, 16)[..., : 2 * c]
    spread = spread.unflatten(-1, (c, 2)).permute(0, 1, 6, 3, 2, 5, 4)
    encoded = spread.reshape(experts, rows, shape.padded_columns // BLOCK)
    return pack(values), decode_scales(encoded[..., : columns // BLOCK])


def encode_scales(scales: Tensor) -> Tensor:
    """float8_e4m3fn -> uint8 of the same shape: five exponent bits (bias 22) and three of mantissa;
    0 becomes 0."""
    return _scale_table(scales.device)[scales.view(torch.uint8).int()]


def decode_scales(encoded: Tensor) -> Tensor:
    """Inverse of `encode_scales`."""
    table = _scale_table(encoded.device)
    inverse = torch.zeros(256, dtype=torch.uint8, device=encoded.device)
    inverse[table[:127].int()] = torch.arange(127, dtype=torch.uint8, device=encoded.device)
    return inverse[encoded.int()].view(torch.float8_e4m3fn)


@lru_cache  # making it waits for the device, and every expert matrix asks for it
def _scale_table(device: torch.device) -> Tensor:
    """uint8 [256]: encoding of each E4M3 byte. NaN and negative bytes cannot be scales and become
    0."""
    table = [0] * 256
    for byte in range(1, 127):
        exponent, mantissa = byte >> 3, byte & 7
        if exponent:
            power = exponent - 7
        else:  # subnormal: mantissa * 2^-9
            power = mantissa.bit_length() - 10
            mantissa = (mantissa << (4 - mantissa.bit_length())) & 7
        table[byte] = (power + 22) << 3 | mantissa
    return torch.tensor(table, dtype=torch.uint8, device=device)
