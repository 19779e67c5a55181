"""Engines over small random models of every family, without files: what tests of traces record
and fork."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from dense_models import FAMILIES as DENSE
from dense_models import dense_model
from gemma_models import gemma_model
from small import small_model

from engine.checkpoint import Checkpoint
from engine.engine import TorchEngine
from engine.loading import Placement
from engine.models.backbone import AnyBackbone
from engine.tokenizer import ChatTokenizer
from engine.trace import Trace, record
from engine.types import Capture, DecodeSettings, GenerateRequest, Message

LLADA2 = ("llada2.0", "llada2.1", "llada2.2")
FAMILIES = (*LLADA2, *DENSE, "diffusion_gemma")
PROMPT = "5 9 13 2 7 11 8 3 6"


class NumberTokenizer:
    """A token is a number in the text."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        return [int(word) for message in messages for word in message.content.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in ids)

    def piece(self, token: int) -> str:
        return f"{token} "


def model_of(name: str) -> AnyBackbone:
    if name in LLADA2:
        return small_model(name)
    return gemma_model() if name == "diffusion_gemma" else dense_model(name)


def engine_over(name: str, model: AnyBackbone | None = None) -> TorchEngine:
    """model: another one than the small random one of that name."""
    model = model or model_of(name)
    checkpoint = SimpleNamespace(
        spec=model.spec,
        name=name,
        family=model.spec.family,
        path=Path(name),
        layout="float32",
        total_bytes=0,
        notes=(),
    )
    placement = Placement(torch.device("cpu"), torch.float32, True, "test")
    tokenizer = cast(ChatTokenizer, NumberTokenizer())
    return TorchEngine(cast(Checkpoint, checkpoint), model, placement, tokenizer)


def ask(
    limit: int = 20, capture: Capture | None = None, prompt: str = PROMPT, **settings: Any
) -> GenerateRequest:
    chosen = {"threshold": 0.6, "editing_threshold": 0.3, "max_post_steps": 4, "steps": 8}
    return GenerateRequest(
        (Message("user", prompt),),
        limit,
        DecodeSettings(**(chosen | settings)),
        capture or Capture(),
    )


def long_reply(engine: TorchEngine, blocks: int = 2, **request: Any) -> Trace:
    """A reply of at least so many blocks and three steps: a random model may stop at once."""
    for first in range(1, 40):
        prompt = " ".join(str((first * n) % 50 + 1) for n in range(1, 10))
        trace = record(engine, ask(prompt=prompt, **request))
        enough = engine._loaded().spec.whole_sequence
        if len(trace) > 2 and (enough or len(set(trace.block.tolist())) >= blocks):
            return trace
    raise AssertionError("every prompt gave a short reply")
