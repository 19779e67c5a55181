"""Nothing a captured piece does may wait for the device, read the host or copy from it: checked on
tensors without data ("meta"), which like those of a GPU the host cannot read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import CONFIG
from torch.utils._python_dispatch import TorchDispatchMode

from engine.compose import make_rule
from engine.decoding.rules import RuleOptions
from engine.decoding.state import BlockState
from engine.models.llada2 import LLaDA2
from engine.models.llada2_spec import LLaDA2Spec
from engine.runtime.cache import KVCache
from engine.runtime.pieces import ReplyPieces, Variant, make_pieces
from engine.runtime.step import StepProgram

THERE = torch.device("meta")


class Watch(TorchDispatchMode):
    """Every operation, and those that would end a capture: from one device to another, or to a
    number in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.refused: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        name = str(func)
        tensors = [t for t in (*args, out) if isinstance(t, torch.Tensor)]
        devices = {t.device.type for t in tensors}
        copies = "copy" in name or name.startswith("aten.to.")
        if "_local_scalar_dense" in name or "item" in name or (copies and len(devices) > 1):
            self.refused.append(f"{name} {devices}")
        return out


def spec_of(decoding: str) -> LLaDA2Spec:
    config = dict(CONFIG)
    if decoding == "llada2.2":
        config |= {"delete_token_id": 60, "split_token_id": 61, "expert_capacity": 3}
        return LLaDA2Spec.from_config(config, {})
    return LLaDA2Spec.from_config(config, {"decoding": decoding})


def fake_pieces(decoding: str) -> ReplyPieces:
    spec = spec_of(decoding)
    with THERE:
        model = LLaDA2(spec).eval().requires_grad_(False)
    cache = KVCache(spec.num_layers, 2, spec.num_kv_heads, 96, spec.head_dim, torch.float32, THERE)
    state = BlockState.allocate(2, spec.block_length, THERE)
    rule = make_rule(spec, THERE, RuleOptions())
    program = StepProgram(model, cache, state, rule, spec.mask_token_id)
    return make_pieces(program, True, slots=8, ahead=True)


@pytest.mark.parametrize("decoding", ["llada2.0", "llada2.1", "llada2.2"])
@pytest.mark.parametrize(
    "variant",
    [
        Variant(),
        Variant(sampled=True),
        Variant(sampled=True, filtered=True),
        Variant(steered=True),
        Variant(watched=1),
        Variant(sampled=True, steered=True, watched=2),
    ],
    ids=["greedy", "sampled", "filtered", "steered", "top-k", "steered, all logits"],
)
def test_no_piece_waits_for_the_device_or_reads_the_host(decoding: str, variant: Variant) -> None:
    with torch.inference_mode():
        pieces = fake_pieces(decoding)
        pieces.select(variant)
        runs = {
            "begin": pieces.begin,
            "first": pieces.first,
            "step": pieces.step,
            "end": pieces.end,
            "prefill": lambda: pieces.prefill(8),
        }
        if pieces.ahead:
            runs |= {"verify": pieces.verify, "accept": pieces.accept}
        for name, run in runs.items():
            with Watch() as watch:
                run()
            assert watch.refused == [], name
            assert watch.calls > 10


def test_the_watch_notices_what_ends_a_capture() -> None:
    there = torch.zeros(3, device=THERE)
    with Watch() as watch:
        there.copy_(torch.zeros(3))
        torch.zeros(3).to(THERE)
    assert len(watch.refused) == 2
    with pytest.raises(RuntimeError, match="meta"):
        float(there.sum())
