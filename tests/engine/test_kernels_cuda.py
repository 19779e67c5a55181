"""The CUDA C++ kernels: their packing undone, their bit tricks checked in numpy, the kernels
themselves run on the CPU, and their sources compiled for every architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cuda_emulator import build, call

from engine.errors import RuntimeFailure
from engine.kernels.fragments import (
    FragmentShape,
    decode_scales,
    encode_scales,
    pack_experts,
    pack_matrix,
    unpack_experts,
    unpack_matrix,
)
from engine.kernels.nvfp4 import PackedExperts, dequantize
from engine.kernels.nvrtc import ARCHITECTURES, compile_cubin
from engine.kernels.routing import RouteRule, make_routing, route_reference, sort_reference


def random_packed(experts: int, rows: int, columns: int) -> PackedExperts:
    """Every code and every valid scale byte may occur."""
    return PackedExperts(
        torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8),
        torch.randint(1, 127, (experts, rows, columns // 16), dtype=torch.uint8).view(
            torch.float8_e4m3fn
        ),
        torch.rand(experts) * 1e-3 + 1e-4,
    )


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (64, 192), (32, 1088), (96, 80)])
def test_unpacking_undoes_packing(rows: int, columns: int) -> None:
    torch.manual_seed(0)
    packed = random_packed(2, rows, columns)
    data = pack_matrix(packed.codes, packed.scales)
    shape = FragmentShape(rows, columns)
    assert data.shape == (2, shape.tiles, shape.tile_bytes)
    codes, scales = unpack_matrix(data, rows, columns)
    assert torch.equal(codes, packed.codes)
    assert same_bytes(scales, packed.scales)


def test_a_layer_of_experts_survives_packing() -> None:
    torch.manual_seed(0)
    parts = random_packed(3, 32, 64), random_packed(3, 32, 64), random_packed(3, 64, 32)
    for before, after in zip(parts, unpack_experts(pack_experts(*parts)), strict=True):
        assert torch.equal(before.codes, after.codes)
        assert same_bytes(before.scales, after.scales)
        assert torch.equal(before.global_scale, after.global_scale)


def test_packing_costs_no_bytes_for_the_released_shape() -> None:
    gate_up, down = FragmentShape(512, 2048), FragmentShape(2048, 512)
    packed = 2 * gate_up.tiles * gate_up.tile_bytes + down.tiles * down.tile_bytes
    assert packed == 3 * 2048 * 512 * 9 // 16


def test_every_scale_survives_its_encoding_and_becomes_a_bf16_by_one_multiply_add() -> None:
    scales = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    encoded = encode_scales(scales)
    assert same_bytes(decode_scales(encoded), scales)
    bits = (encoded.int() * 16 + 0x7000).to(torch.int16)
    assert torch.equal(bits.view(torch.bfloat16).double(), scales.double() * 2.0**119)


def test_a_block_of_scale_zero_is_a_block_of_zeros() -> None:
    packed = random_packed(1, 32, 64)
    packed.scales.view(torch.uint8)[0, 3, 2] = 0
    codes, scales = unpack_matrix(pack_matrix(packed.codes, packed.scales), 32, 64)
    assert int(codes[0, 3, 16:24].sum()) == 0
    assert torch.equal(codes[0, 4], packed.codes[0, 4])
    assert same_bytes(scales, packed.scales)


def test_shapes_the_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(ValueError, match="rows in pairs of 16"):
        FragmentShape(48, 64)
    with pytest.raises(ValueError, match="columns in 16s"):
        FragmentShape(32, 72)


def unpacked_by_the_kernels_bit_operations(words: np.ndarray) -> np.ndarray:
    """uint32 [..., 2] -> uint32 [..., 8] registers, as `unpack` in expert_nvfp4.cu."""
    w0, w1 = words[..., 0], words[..., 1]
    mask, left = np.uint32(0x81C081C0), np.uint32(0x80C180C1)

    def rotate(word: np.ndarray, by: int) -> np.ndarray:
        return (word >> np.uint32(by)) | (word << np.uint32(32 - by))

    rest = (w0 & left) | (w1 & ~left)
    registers = [rotate(w0, 2), rotate(w0, 6), w0 << np.uint32(4), rotate(w1, 4), rotate(w1, 8)]
    registers += [w1 << np.uint32(2), rest << np.uint32(6), rest]
    return np.stack(registers, -1) & mask


def bf16_values(words: np.ndarray) -> np.ndarray:
    """uint32 [...] -> float64 [..., 2]: the two bf16 of a register, low half first (subnormals
    kept)."""
    halves = np.stack((words & 0xFFFF, words >> 16), -1).astype(np.uint32) << np.uint32(16)
    return halves.view(np.float32).astype(np.float64)


def test_the_packed_words_give_the_product_through_the_mma_fragment_layout() -> None:
    """One matrix times 8 tokens, following each lane's registers through mma.m16n8k16, in numpy."""
    torch.manual_seed(3)
    rows, columns = 32, 192
    packed = random_packed(1, rows, columns)
    shape = FragmentShape(rows, columns)
    slices, blocks = shape.slices, shape.slice_blocks
    data = pack_matrix(packed.codes, packed.scales)[0].numpy()
    x = np.random.default_rng(0).standard_normal((8, columns))
    out = np.zeros((rows, 8))
    for tile in range(shape.tiles):
        split = slices * blocks * 512
        words = np.ascontiguousarray(data[tile, :split]).view(np.uint32)
        words = words.reshape(slices, blocks, 32, 2, 2)
        scale_bytes = data[tile, split:].reshape(slices, 32, 16)
        registers = bf16_values(unpacked_by_the_kernels_bit_operations(words))
        registers = registers.reshape(slices, blocks, 32, 4, 4, 2)  # [..., step, a0..a3, element]
        bits = (scale_bytes.astype(np.uint32) * 16 + 0x7000) << np.uint32(16)
        scales = bits.view(np.float32).astype(np.float64)
        for s, c, step in np.ndindex(slices, blocks, 4):
            a, b = np.zeros((16, 16)), np.zeros((16, 8))
            for lane in range(32):
                g, q = lane // 4, lane % 4
                owned = (s * blocks + c) * 64 + 16 * q + 4 * step  # four columns of this step
                for r in range(4):
                    k = 2 * q + 8 * (r >> 1)
                    scale = scales[s, lane, 2 * c + (r & 1)]
                    a[g + 8 * (r & 1), k : k + 2] = registers[s, c, lane, step, r] * scale
                b[2 * q : 2 * q + 2, g] = x[g, owned : owned + 2]
                b[2 * q + 8 : 2 * q + 10, g] = x[g, owned + 2 : owned + 4]
            out[16 * tile : 16 * tile + 16] += a @ b
    out *= 2.0**7 * packed.global_scale.double().numpy()
    want = dequantize(packed, torch.float64)[0].numpy() @ x.T
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)  # dequantize is float32 inside


@pytest.mark.parametrize(
    ("hidden", "inter", "tokens", "chunks", "groups", "stages", "blocks"),
    [
        (576, 64, 10, 1, 2, 4, 3),  # two slices a tile
        (128, 32, 40, 2, 2, 5, 2),  # more than 16 tokens an expert, two chunks at once
        (1056, 544, 3, 1, 1, 3, 2),  # slices that do not divide each other, padded columns
        (320, 256, 6, 1, 3, 7, 2),  # copies land late: a group may run a ring ahead of another
    ],
)
def test_expert_kernels_run_on_the_cpu_give_the_references_sums(
    tmp_path: Path,
    hidden: int,
    inter: int,
    tokens: int,
    chunks: int,
    groups: int,
    stages: int,
    blocks: int,
) -> None:
    torch.manual_seed(1)
    experts, top_k = 3, 2
    defines = {
        "HIDDEN": hidden,
        "INTER": inter,
        "CHUNKS": chunks,
        "GROUPS": groups,
        "STAGES": stages,
    }
    library = build(tmp_path, "experts.cpp", defines)
    gate, up, down = (
        random_packed(experts, *s) for s in ((inter, hidden), (inter, hidden), (hidden, inter))
    )
    fragments = pack_experts(gate, up, down)
    rule = RouteRule(experts, top_k)
    routing = make_routing(tokens, rule, "cpu")
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    sort_reference(ids, routing)
    x = (torch.randn(tokens, hidden) * 0.02).bfloat16()
    dense_gate, dense_up, dense_down = (dequantize(w, torch.float64) for w in (gate, up, down))
    expert_of = ids.flatten()[routing.pair_place.flatten().argsort()]
    rows = x.double()[routing.pair_token.long()]
    for version in ("run_direct", "run_ring"):
        act = torch.full((tokens * top_k, inter), float("nan"), dtype=torch.bfloat16)
        out = torch.full((tokens * top_k, hidden), float("nan"))
        routing.finished.zero_()
        buffers = (routing.slots, routing.active, routing.pair_token, routing.finished, act, out)
        weights = (fragments.gate_up, fragments.down, fragments.gate_up_scale, fragments.down_scale)
        call(library, version, *weights, x.view(torch.int16), *buffers, experts, blocks)
        for e in range(experts):
            mine = expert_of == e
            want = F.silu(rows[mine] @ dense_gate[e].T) * (rows[mine] @ dense_up[e].T)
            # act is rounded once to bf16: half a unit in the last of 8 bits.
            torch.testing.assert_close(act[mine].double(), want, rtol=2**-8, atol=1e-6)
            product = act[mine].double() @ dense_down[e].T
            error = (out[mine].double() - product).norm() / product.norm()
            assert error < 1e-6, (version, e, float(error))


ROUTE_RULES = {
    "groups": RouteRule(64, 4, n_group=4, topk_group=2, scale=2.5),
    "pool": RouteRule(32, 2, capacity=6, block_length=16, normalise=False),
}


@pytest.mark.parametrize(
    ("name", "version"),
    [("groups", 1), ("pool", 0), ("pool", 1), ("groups", 2), ("pool", 2), ("groups", 3)],
)
def test_the_routing_kernel_run_on_the_cpu_gives_the_references_lists(
    tmp_path: Path, name: str, version: int
) -> None:
    torch.manual_seed(2)
    rule, hidden, tokens = ROUTE_RULES[name], 128, 48
    library = build(tmp_path, "route.cpp", route_defines(rule, hidden))
    weight = (torch.randn(rule.experts, hidden) * 0.2).bfloat16()
    x, bias = torch.randn(tokens, hidden).bfloat16(), torch.randn(rule.experts) * 0.2
    got, want = make_routing(tokens, rule, "cpu"), make_routing(tokens, rule, "cpu")
    got.finished.fill_(7)
    choice = (got.logits, got.ids, got.weights)
    lists = (got.slots, got.active, got.pair_token, got.pair_place, got.finished, got.ticket)
    inputs = (weight.view(torch.int16), x.view(torch.int16), bias)
    call(library, "run_route", *inputs, tokens, *choice, *lists, version)
    logits = x.float() @ weight.float().T
    torch.testing.assert_close(got.logits, logits, rtol=1e-5, atol=1e-5)
    ids, weights = route_reference(got.logits, bias, rule)
    assert torch.equal(got.ids.long(), ids)
    torch.testing.assert_close(got.weights, weights, rtol=1e-5, atol=1e-6)
    sort_reference(ids, want)
    listed = int(want.active)
    assert int(got.active) == listed
    assert torch.equal(got.slots[:listed], want.slots[:listed])
    assert torch.equal(got.pair_token, want.pair_token)
    assert torch.equal(got.pair_place, want.pair_place)
    assert int(got.finished.abs().sum()) == 0
    assert int(got.ticket) == 0


def route_defines(rule: RouteRule, hidden: int) -> dict[str, int | str]:
    return {
        "HIDDEN": hidden,
        "EXPERTS": rule.experts,
        "TOP_K": rule.top_k,
        "N_GROUP": rule.n_group,
        "TOPK_GROUP": rule.topk_group,
        "CAPACITY": rule.capacity,
        "BLOCK_LENGTH": rule.block_length,
        "NORMALISE": int(rule.normalise),
        "SCALE": f"{rule.scale}f",
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sources_compile_for_every_architecture(architecture: str) -> None:
    ring: dict[str, int | str] = (
        {} if architecture in ("sm_80", "sm_89") else {"GROUPS": 1, "STAGES": 2}
    )
    experts = {"HIDDEN": 128, "INTER": 64, "CHUNKS": 1} | ring
    assert compile_cubin("expert_nvfp4.cu", experts, architecture)
    assert compile_cubin("route.cu", route_defines(ROUTE_RULES["groups"], 128), architecture)


def test_a_source_that_does_not_compile_says_why() -> None:
    with pytest.raises(RuntimeFailure, match="HIDDEN"):
        compile_cubin("expert_nvfp4.cu", {}, "sm_90")
