"""DiffusionGemma models small enough for CI, and runtimes over them: eager, one graph per step and
one per reply on the CPU's stand-in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from host_graph import HostBackend
from torch import Tensor

from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.families.diffusion_gemma import kept
from engine.models.diffusion_gemma import DiffusionGemma
from engine.models.diffusion_gemma_reader import read_diffusion_gemma
from engine.runtime.canvas_cache import CanvasAttend, CanvasCache
from engine.runtime.eager import EagerRuntime
from engine.runtime.graph import GraphRuntime, PerStepGraphRuntime
from engine.runtime.pieces import ReplyPieces, make_pieces
from engine.runtime.rows import Row, StepMark
from engine.types import DecodeSettings

CANVAS, WINDOW, VOCAB, STOP = 8, 6, 64, 62
CPU = torch.device("cpu")
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "num_attention_heads": 4,
    "head_dim": 8,
    "num_key_value_heads": 2,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "top_k_experts": 2,
    "vocab_size": VOCAB,
    "sliding_window": WINDOW,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 192,
}
CONFIG: dict[str, Any] = {
    "model_type": "diffusion_gemma",
    "canvas_length": CANVAS,
    "eos_token_id": STOP,
    "text_config": TEXT,
}


def gemma_model(seed: int = 0, **changes: Any) -> DiffusionGemma:
    """Weights scaled so that entropies spread and replies differ."""
    config = CONFIG | {"text_config": TEXT | changes}
    model = DiffusionGemma(read_diffusion_gemma(config, {"max_denoising_steps": 6}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            if "norm" in name or "scal" in name:
                weight.copy_(1 + 0.1 * drawn)
            else:
                weight.copy_(drawn * (0.5 if "embed" in name else 0.25))
    return model.eval().requires_grad_(False)


def pieces_for(
    model: DiffusionGemma,
    *,
    batch: int = 1,
    capacity: int = 64,
    dtype: torch.dtype = torch.float32,
) -> ReplyPieces:
    """dtype: of keys and values."""
    program = make_program(model, batch, capacity, RuleOptions(), dtype)
    return make_pieces(program, True, slots=256)


def eager(model: DiffusionGemma, exact: bool | None = None, **options: Any) -> EagerRuntime:
    return EagerRuntime(pieces_for(model, **options), exact)


def graph(model: DiffusionGemma, **options: Any) -> GraphRuntime:
    pieces = pieces_for(model, **options)
    return GraphRuntime(pieces, HostBackend(pieces))


def per_step(model: DiffusionGemma, **options: Any) -> PerStepGraphRuntime:
    pieces = pieces_for(model, **options)
    return PerStepGraphRuntime(pieces, HostBackend(pieces))


def request(
    model: DiffusionGemma, prompt: list[int], limit: int, settings: DecodeSettings, **changes: Any
) -> Row:
    spec = model.spec
    stops = frozenset(changes.pop("stops", spec.stop_ids))
    return Row(prompt, limit, settings, spec.block_length, stops, spec.on_grid, **changes)


def reply(runtime: EagerRuntime | GraphRuntime, *rows: Row) -> list[StepMark]:
    runtime.prefill(rows)
    return list(runtime.run(rows))


class Passes:
    """The two passes of a model over one cache, one row."""

    def __init__(
        self,
        model: DiffusionGemma,
        *,
        chunk: int = 32,
        capacity: int = 96,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.cache = CanvasCache(kept(model.spec), 1, capacity, chunk, dtype, CPU)

    @torch.inference_mode()
    def encode(self, ids: Tensor, start: int = 0, ends: int | None = None) -> Tensor:
        """ids [N] at start .. start + N - 1 -> hidden states [N, H]."""
        where = torch.arange(start, start + len(ids))[None]
        end = torch.tensor([[start + len(ids) if ends is None else ends]])
        attend = CanvasAttend(self.cache, where, start + len(ids), end)
        return self.model.encode(self.model.embed(ids[None]), where, attend)[0]

    @torch.inference_mode()
    def decode(self, ids: Tensor, start: int, before: Tensor | None = None) -> Tensor:
        """Canvas ids [L], logits of the step before [L, V] or None -> logits [L, V]."""
        model, where = self.model, torch.arange(start, start + len(ids))[None]
        embeds = model.embed(ids[None])
        soft = torch.zeros_like(embeds) if before is None else model.expected(before[None])
        attend = CanvasAttend(self.cache, where, start + len(ids), None)
        return model.logits(model(model.condition(embeds, soft), where, attend))[0]


def with_noise(settings: DecodeSettings, **changes: Any) -> DecodeSettings:
    return replace(settings, noise=replace(settings.noise, **changes))
