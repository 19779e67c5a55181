"""The demo model's recipe: its shape, its objective and its training, as one value.

Knows numbers and the config.json fields they become (the names of the released LLaDA2.1-mini).
Knows no tensors. Every number that a trial may vary is a field here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from engine.models.llada2_spec import LLaDA2Spec
from trainer.batches import Window
from trainer.master import OptimiserSettings
from trainer.noise import NoiseSettings

BLOCK_LENGTH = 32


@dataclass(frozen=True)
class Shape:
    """Sizes of the transformer. Every input width is a multiple of 16, as NVFP4 needs.

    context: `max_position_embeddings`, what the engine accepts; `trained_context` of the recipe is
    what examples reach.
    """

    hidden: int = 384
    layers: int = 8
    dense_layers: int = 1
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    dense_width: int = 1024
    expert_width: int = 160
    experts: int = 16
    top_k: int = 4
    groups: int = 4
    top_groups: int = 2
    shared_experts: int = 1
    rope_theta: float = 10000.0
    rotary_share: float = 0.5
    routed_scale: float = 2.5
    context: int = 2048


@dataclass(frozen=True)
class DemoConfig:
    """One training recipe.

    windows, window_blocks, copies: the shape of a step (`trainer.batches.Window`). examples: number
    of generated training examples, an epoch. shard: examples made by one job. chat_share: share of
    examples with one or two earlier turns before them, as long as they stay within `longest_chat`
    blocks. warmup: steps; flat: share of the run at the
    full rate, then linear to `final` of it. qat_from: progress from which weights pass through
    NVFP4; quantised: the parts that do (and that the export packs). balance: step of the router's
    bias towards even load. loss_share: slots for loss positions, as a share of the batch's tokens.
    """

    name: str = "demo"
    shape: Shape = field(default_factory=Shape)
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    windows: int = 64
    window_blocks: int = 32
    copies: int = 2
    examples: int = 2_000_000
    shard: int = 8192
    valid_examples: int = 1024
    chat_share: float = 0.12
    longest_chat: int = 20
    seed: int = 20
    warmup: int = 100
    flat: float = 0.3
    final: float = 0.02
    qat_from: float = 0.75
    quantised: tuple[str, ...] = ("attention", "dense_mlp", "experts", "shared_experts")
    balance: float = 1e-3
    loss_share: float = 0.45

    @property
    def window(self) -> Window:
        return Window(self.windows, self.window_blocks, BLOCK_LENGTH, self.copies)

    @property
    def tokens_per_step(self) -> int:
        return self.windows * self.window_blocks * BLOCK_LENGTH

    def learning_rate_factor(self, step: int, progress: float, warm_from: int = 0) -> float:
        """What multiplies the peak rates at `progress` in [0, 1]; `warm_from`: the step at which
        optimiser state began from zero."""
        warm = min(1.0, (step - warm_from + 1) / max(1, self.warmup))
        if progress <= self.flat:
            return warm
        done = min(1.0, (progress - self.flat) / (1.0 - self.flat))
        return warm * (1.0 - done * (1.0 - self.final))

    def with_changes(self, changes: Mapping[str, str]) -> DemoConfig:
        """A copy with fields replaced by text values; `shape.hidden` reaches into a part.

        Raises ValueError for a name that is no field or a value that does not read as its type.
        """
        config = self
        for name, text in changes.items():
            config = _changed(config, name, text)
        return config

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


TINY = DemoConfig(
    name="tiny",
    shape=Shape(
        hidden=64,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=16,
        dense_width=128,
        expert_width=32,
        experts=8,
        top_k=2,
    ),
    windows=4,
    window_blocks=32,
    examples=512,
    shard=128,
    valid_examples=256,
    warmup=5,
)

CONFIGS = {"demo": DemoConfig(), "tiny": TINY}


def _changed(config: Any, name: str, text: str) -> Any:
    head, _, rest = name.partition(".")
    if head not in {f.name for f in dataclasses.fields(config)}:
        raise ValueError(f"{head!r} is not a field of {type(config).__name__}")
    value = getattr(config, head)
    if rest:
        return replace(config, **{head: _changed(value, rest, text)})
    if isinstance(value, bool) or dataclasses.is_dataclass(value):
        raise ValueError(f"{name!r} cannot be set from the command line")
    if isinstance(value, tuple):
        items = [item for item in text.split("+") if item]
        kind = type(value[0]) if value else str
        return replace(config, **{head: tuple(kind(item) for item in items)})
    return replace(config, **{head: type(value)(text)})


@dataclass(frozen=True)
class Vocabulary:
    """What the model needs to know of its tokenizer. Ids of special tokens."""

    size: int
    mask_id: int
    pad_id: int
    role_end_id: int


def model_config(shape: Shape, vocabulary: Vocabulary) -> dict[str, Any]:
    """config.json of the model (without quantisation), field names as LLaDA2.1-mini's."""
    return {
        "architectures": ["LLaDA2MoeModelLM"],
        "model_type": "llada2_moe",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.dense_width,
        "first_k_dense_replace": shape.dense_layers,
        "moe_intermediate_size": shape.expert_width,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "num_shared_experts": shape.shared_experts,
        "n_group": shape.groups,
        "topk_group": shape.top_groups,
        "routed_scaling_factor": shape.routed_scale,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "router_dtype": "fp32",
        "norm_topk_prob": True,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "partial_rotary_factor": shape.rotary_share,
        "rms_norm_eps": 1e-6,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "use_bias": False,
        "norm_head": False,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "vocab_size": vocabulary.size,
        "max_position_embeddings": shape.context,
        "block_size": BLOCK_LENGTH,
        "mask_token_id": vocabulary.mask_id,
        "pad_token_id": vocabulary.pad_id,
        "eos_token_id": vocabulary.pad_id,
    }


def generation_config(
    vocabulary: Vocabulary, threshold: float, editing_threshold: float | None
) -> dict[str, Any]:
    """generation_config.json: the decoding rule, its defaults and the stop ids."""
    return {
        "decoding": "llada2.1",
        "threshold": threshold,
        "editing_threshold": editing_threshold,
        "max_post_steps": 16,
        "num_to_transfer": 1,
        "block_length": BLOCK_LENGTH,
        "do_sample": False,
        "eos_token_id": [vocabulary.pad_id, vocabulary.role_end_id],
        "pad_token_id": vocabulary.pad_id,
        "mask_token_id": vocabulary.mask_id,
    }


def spec_of(shape: Shape, vocabulary: Vocabulary) -> LLaDA2Spec:
    """The engine's view of the model to be trained."""
    return LLaDA2Spec.from_config(
        model_config(shape, vocabulary), generation_config(vocabulary, 0.95, 0.9)
    )
