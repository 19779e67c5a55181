"""What the loop's bench runs: a random model of a named shape and the runtimes to compare over it.

Knows how to build them on a GPU, or on the CPU with the tests' stand-in for CUDA graphs (a dry run,
whose times mean nothing). Measures nothing.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from engine.compose import make_program  # noqa: E402
from engine.decoding.rules import RuleOptions  # noqa: E402 (the path comes first)
from engine.models.llada2 import LLaDA2  # noqa: E402
from engine.models.llada2_spec import LLaDA2Spec  # noqa: E402
from engine.runtime.backend import Backend, CudaBackend  # noqa: E402
from engine.runtime.choice import block_attention, record_kernel  # noqa: E402
from engine.runtime.eager import EagerRuntime  # noqa: E402
from engine.runtime.graph import GraphRuntime, PerStepGraphRuntime  # noqa: E402
from engine.runtime.pieces import ReplyPieces, make_pieces  # noqa: E402
from engine.runtime.reader import staging_words  # noqa: E402
from engine.runtime.ring import SLOTS  # noqa: E402
from engine.runtime.rows import Row, StepMark  # noqa: E402
from engine.types import DecodeSettings  # noqa: E402

ArmName = Literal["eager", "per step", "graph"]
ARMS: tuple[ArmName, ...] = ("eager", "per step", "graph")
Runtime = EagerRuntime | GraphRuntime

SHAPES: dict[str, dict[str, object]] = {
    "demo": {
        "hidden_size": 384,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 1024,
        "moe_intermediate_size": 160,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "partial_rotary_factor": 0.5,
        "vocab_size": 4096,
        "mask_token_id": 4095,
        "eos_token_id": 4094,
        "max_position_embeddings": 2048,
    },
    "small": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 96,
        "mask_token_id": 95,
        "eos_token_id": 94,
        "max_position_embeddings": 512,
        "block_size": 8,
    },
}


@dataclass(frozen=True)
class Place:
    """Where the bench runs. dry: on the CPU with the stand-in, at the small shape."""

    device: torch.device
    dtype: torch.dtype
    shape: str
    dry: bool

    @classmethod
    def here(cls, dry: bool, dtype: torch.dtype = torch.bfloat16) -> Place:
        if dry:
            return cls(torch.device("cpu"), torch.float32, "small", True)
        return cls(torch.device("cuda:0"), dtype, "demo", False)


def random_model(
    place: Place, decoding: str = "llada2.0", seed: int = 0, stops: bool = True
) -> LLaDA2:
    """Weights scaled so that confidences spread over (0, 1) and replies differ. stops: False makes
    the stop token one that is never the best, for replies of a known length."""
    config = {"model_type": "llada2_moe", "first_k_dense_replace": 1, "num_shared_experts": 1}
    config |= SHAPES[place.shape]
    spec = LLaDA2Spec.from_config(config, {"decoding": decoding})
    with torch.device(place.device):
        model = LLaDA2(spec)
    generator = torch.Generator(device=place.device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                gain = 3.0 if "lm_head" in name else 1.5
                scale = gain / weight.shape[-1] ** 0.5
                drawn = torch.randn(weight.shape, generator=generator, device=place.device)
                weight.copy_(drawn * scale)
        assert model.lm_head is not None
        if not stops:
            model.lm_head.weight[list(spec.stop_ids)] = 0.0
    model = model.to(place.dtype)
    for module in model.modules():  # routers stay float32, as the loader keeps them
        if hasattr(module, "expert_bias"):
            module.float()
    return model.eval().requires_grad_(False)


def make_arm(
    name: ArmName,
    model: LLaDA2,
    place: Place,
    *,
    batch: int = 1,
    capacity: int = 512,
    sdpa: bool = False,
    fused: bool = True,
    ahead: bool = True,
    one_launch: bool | None = None,
) -> Runtime:
    """One runtime with its own cache. sdpa: without the attention kernel. fused, ahead,
    one_launch: see `ReplyPieces`; None = but in a dry run, where kernels are interpreted."""
    program = make_program(model, batch, capacity, RuleOptions(), place.dtype)
    if not sdpa:
        spec = model.spec
        shape = (spec.head_dim, spec.rotary_dim, spec.rope_theta)
        program.cache.attention = block_attention(place.device, *shape)
    kernel = None if place.dry else record_kernel()
    pieces = make_pieces(
        program,
        True,
        slots=SLOTS,
        kernel=kernel,
        fused=fused,
        ahead=ahead,
        one_launch=not place.dry if one_launch is None else one_launch,
    )
    if name == "eager":
        return EagerRuntime(pieces, exact=False)
    backend = make_backend(pieces, place)
    return (
        GraphRuntime(pieces, backend) if name == "graph" else PerStepGraphRuntime(pieces, backend)
    )


def make_backend(pieces: ReplyPieces, place: Place) -> Backend:
    if place.dry:
        sys.path.insert(0, str(REPO / "tests" / "engine"))
        from host_graph import HostBackend

        return HostBackend(pieces)
    return CudaBackend(place.device, staging_words(pieces))


def make_row(model: LLaDA2, prompt: list[int], limit: int, settings: DecodeSettings) -> Row:
    spec = model.spec
    return Row(prompt, limit, settings, spec.block_length, frozenset(spec.stop_ids))


def random_requests(
    model: LLaDA2, count: int, seed: int, longest_prompt: int, longest_reply: int
) -> Iterator[tuple[list[int], int, DecodeSettings]]:
    """Greedy and sampled requests with every setting changing."""
    rng = random.Random(seed)
    vocab = model.spec.vocab_size - 2
    for _ in range(count):
        settings = DecodeSettings(
            threshold=rng.choice([0.2, 0.5, 0.8, 1.0]),
            editing_threshold=rng.choice([None, 0.0, 0.4, 0.9]),
            max_post_steps=rng.choice([0, 2, 6]),
            min_transfer=rng.choice([1, 4]),
            steps=rng.choice([4, 8, 16]),
            temperature=rng.choice([0.0, 0.0, 0.7, 1.2]),
            top_k=rng.choice([0, 0, 20]),
            top_p=rng.choice([1.0, 1.0, 0.8]),
            seed=rng.randrange(2**62),
        )
        prompt = [rng.randrange(vocab) for _ in range(rng.randrange(1, longest_prompt))]
        yield prompt, rng.randrange(1, longest_reply), settings


def outcome(row: Row) -> tuple[object, ...]:
    return tuple(row.ids), row.reason, row.blocks, row.forwards


def run_rows(runtime: Runtime, *rows: Row, record: bool = True) -> list[StepMark]:
    runtime.prefill(rows)
    return list(runtime.run(rows, record=record))


def used_bytes(place: Place) -> int:
    """Device memory in use, as the driver sees it."""
    if place.dry:
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def give_back(place: Place) -> None:
    gc.collect()
    if not place.dry:
        torch.cuda.empty_cache()
