"""The shapes that `bench` knows are the published ones, and its floor is what a hand calculates."""

from __future__ import annotations

import pytest

from engine.bench.bytes_moved import (
    Forms,
    even_experts,
    step_bytes,
    step_products,
    weights_of,
)
from engine.bench.shapes import SHAPES, SMALL, shape_of
from engine.checkpoint import open_checkpoint
from engine.models.dense_spec import DenseSpec
from engine.models.llada2_spec import LLaDA2Spec
from engine.paths import demo_folder


def test_every_shape_is_read_by_its_family() -> None:
    for name in (*SHAPES, *SMALL):
        shape = shape_of(name)
        assert shape.name == name
        assert shape.prompt % shape.spec.block_length == 0
        # The quota rule: its steps say how many tokens a forward accepts.
        assert shape.spec.decoding in ("llada2.0", "sdar")


def test_llada2_mini_is_the_published_model() -> None:
    spec = shape_of("llada2.1-mini").spec
    assert isinstance(spec, LLaDA2Spec)
    assert (spec.num_layers, len(spec.moe_layers), spec.num_experts) == (20, 19, 256)
    assert (spec.block_length, spec.rotary_dim, spec.qkv_rows) == (32, 64, 3072)
    assert (spec.mask_token_id, spec.stop_ids) == (156895, (156892, 156900))
    experts = 19 * 256 * 3 * 2048 * 512
    assert experts == 15_300_820_992
    assert spec.table.parameters == pytest.approx(16.26e9, rel=1e-3)  # "16B"


def test_the_flash_layer_is_one_mixture_of_the_large_model() -> None:
    spec = shape_of("llada2.0-flash-layer").spec
    assert isinstance(spec, LLaDA2Spec)
    assert list(spec.moe_layers) == [0]
    layer = 256 * 3 * 4096 * 1024  # routed experts
    layer += 3 * 4096 * 1024 + 256 * 4096 + 256  # shared expert, router and its bias
    layer += (32 + 4 + 4) * 128 * 4096 + 4096 * 4096  # attention
    layer += 2 * 4096 + 2 * 128  # norms
    ends = 2 * 157184 * 4096 + 4096
    assert spec.table.parameters == layer + ends


def test_qwen3_is_the_published_model() -> None:
    spec = shape_of("qwen3-4b").spec
    assert isinstance(spec, DenseSpec)
    assert (spec.block_length, spec.tie_word_embeddings, spec.qk_norm) == (256, True, True)
    assert spec.table.parameters == 4_022_468_096  # of Qwen/Qwen3-4B


@pytest.mark.parametrize("block", [4, 32])
def test_sdar_is_the_published_model(block: int) -> None:
    shape = shape_of(f"sdar-4b-block{block}")
    spec = shape.spec
    assert isinstance(spec, DenseSpec)
    assert (spec.block_length, spec.tie_word_embeddings, spec.qk_norm) == (block, False, True)
    assert spec.mask_token_id == 151669
    assert 2 * spec.table.parameters == 8_822_848_512  # bytes of JetLM/SDAR-4B-Chat's weights
    assert 1 <= shape.tpf <= block


def test_the_demo_shape_is_that_of_the_demo_that_ships() -> None:
    checkpoint = open_checkpoint(demo_folder())
    shipped = checkpoint.spec
    checkpoint.release()
    spec = shape_of("demo").spec
    assert spec.table.parameters == shipped.table.parameters
    assert (spec.num_layers, spec.block_length) == (shipped.num_layers, shipped.block_length)


def test_chance_gives_the_experts_of_the_design() -> None:
    assert even_experts(256, 8, 32) == pytest.approx(163.3, abs=0.05)
    assert even_experts(256, 8, 1) == pytest.approx(8)


def test_bytes_of_a_step_are_those_of_a_hand_calculation() -> None:
    spec = shape_of("llada2.1-mini").spec
    found = step_bytes(spec, Forms(), distinct=163.3, context=1056)
    assert found.experts == pytest.approx(19 * 163.3 * 3 * 2048 * 512 * 9 / 16)
    assert found.attention == 20 * (3072 * 2048 + 2048 * 2048) * 2
    assert found.mlp == (19 * 3 * 2048 * 512 + 3 * 2048 * 5120) * 2
    assert found.router == 19 * 256 * 2048 * 2
    assert found.head == 157184 * 2048 * 2
    assert found.cache == 20 * 2 * 4 * 128 * 1056 * 2
    # The design says 6.78 GB, and 5.88 with every matrix in NVFP4 (caches not counted).
    assert (found.total - found.cache) / 1e9 == pytest.approx(6.78, rel=5e-3)
    packed = step_bytes(spec, Forms(linears_packed=True), 163.3, 1056)
    assert (packed.total - packed.cache) / 1e9 == pytest.approx(5.88, rel=5e-3)
    dense = step_bytes(spec, Forms(experts_packed=False), 163.3, 1056)
    assert (dense.total - dense.cache) / 1e9 == pytest.approx(20.8, rel=5e-3)


def test_a_tied_head_is_read_and_never_packed() -> None:
    spec = shape_of("qwen3-4b").spec
    head = 151936 * 2560
    assert weights_of(spec).head == head
    packed = step_bytes(spec, Forms(experts_packed=False, linears_packed=True), 0.0, 0)
    assert packed.head == 2 * head
    assert packed.mlp == 36 * 3 * 2560 * 9728 * 9 / 16


def test_products_of_a_canvas_are_those_of_a_hand_calculation() -> None:
    spec = shape_of("qwen3-4b").spec
    found = step_products(spec, tokens=256, judged=256, context=1280)
    layer = (32 + 8 + 8) * 128 * 2560 + 2560 * 32 * 128 + 3 * 2560 * 9728
    assert found.attention + found.mlp == 2 * 36 * layer * 256
    assert found.head == 2 * 151936 * 2560 * 256
    assert found.cache == 2 * 2 * 36 * 32 * 128 * 256 * 1280
    mini = shape_of("llada2.1-mini").spec
    assert step_products(mini, 32, 32, 0).experts == 2 * 32 * 8 * 19 * 3 * 2048 * 512
