"""Which runtime is chosen, and that the reason is said."""

from __future__ import annotations

import pytest
import torch
from small import small_model

from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.hardware import loop_path
from engine.runtime.cache import BlockAttention
from engine.runtime.choice import block_attention, choose_loop, give_attention, make_runtime
from engine.runtime.eager import EagerRuntime


@pytest.mark.parametrize(
    ("device", "driver", "bindings", "path", "word"),
    [
        ("cpu", None, None, "eager", "no GPU"),
        ("cpu", (13, 0), (13, 3), "eager", "no GPU"),
        ("cuda", (13, 0), None, "one graph per step", "cuda-bindings"),
        ("cuda", (12, 2), (12, 9), "one graph per step", "CUDA 12.2"),
        ("cuda", None, (12, 9), "one graph per step", "unknown"),
        ("cuda", (12, 4), (12, 9), "one graph per reply", "by itself"),
        ("cuda", (13, 0), (13, 3), "one graph per reply", "by itself"),
    ],
)
def test_every_path_has_a_reason(
    device: str,
    driver: tuple[int, int] | None,
    bindings: tuple[int, ...] | None,
    path: str,
    word: str,
) -> None:
    found, reason = loop_path(device, driver, bindings)
    assert found == path
    assert word in reason
    assert reason.endswith(".")


def test_a_cpu_runs_eagerly_with_plain_attention() -> None:
    choice = choose_loop(torch.device("cpu"))
    assert choice.path == "eager"
    assert block_attention(torch.device("cpu"), 64, 64, 1e4) is None
    program = make_program(small_model(), 1, 64, RuleOptions(), torch.float32)
    assert isinstance(make_runtime(program, True, choice), EagerRuntime)


def test_a_simpler_runtime_can_be_asked_for() -> None:
    choice = choose_loop(torch.device("cuda"), "eager")
    assert choice.path == "eager"
    assert "asked for" in choice.reason


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "fits"),
    [(128, 64, True), (16, 16, True), (96, 32, False), (8, 8, False), (64, 48, False)],
)
def test_the_attention_kernel_takes_heads_it_can_cut(
    head_dim: int, rotary_dim: int, fits: bool
) -> None:
    found = block_attention(torch.device("cuda"), head_dim, rotary_dim, 1e4)
    assert (found is not None) == fits


@pytest.mark.parametrize(
    ("head_dim", "block_causal", "triton", "words"),
    [
        (128, True, True, "Attention runs as kernels"),
        (96, True, True, "no kernel takes heads of 96"),
        (128, False, True, "no kernel has its mask"),
        (128, True, False, "Triton is not installed"),
    ],
)
def test_it_is_said_what_computes_attention(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, block_causal: bool, triton: bool, words: str
) -> None:
    def on_a_gpu(device: torch.device, *shape: float) -> BlockAttention | None:
        return block_attention(torch.device("cuda"), head_dim, head_dim, 1e4)

    monkeypatch.setattr("engine.runtime.choice.block_attention", on_a_gpu)
    monkeypatch.setattr("engine.runtime.choice.has_triton", lambda: triton)
    program = make_program(small_model(), 1, 64, RuleOptions(), torch.float32)
    assert program.attends == ""
    give_attention(program, head_dim, head_dim, 1e4, block_causal=block_causal)
    assert words in program.attends
    assert (program.cache.attention is not None) == words.startswith("Attention runs")
