"""What a DiffusionGemma checkpoint is: its numbers, its tensor names and the shapes they must have.

Knows the two layouts of names that are published: routed experts as fused stacks, or one by one
(models.md 2.3, 2.6). How a config says these numbers is `engine.models.diffusion_gemma_reader`'s
business. Knows no torch and reads no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from engine.models.family import PROJECTIONS, ExpertTable, TensorTable
from engine.types import DecodeSettings

CHUNK = 1024
STACK = "model.decoder"
ENCODER = "model.encoder.language_model"

# Norms of a layer over the residual stream; those of heads are apart.
LAYER_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "pre_feedforward_layernorm_2",
    "post_feedforward_layernorm_2",
)


@dataclass(frozen=True)
class LayerKind:
    """Heads of one layer. window: keys a query sees, itself included; None = all of them, in which
    case the values are the keys and there is no v_proj. angles: how many pairs of dimensions (i,
    i + head_dim / 2) RoPE turns, the first ones; pair j by theta^(-2j / head_dim) a position."""

    head_dim: int
    kv_heads: int
    window: int | None
    angles: int
    theta: float


@dataclass(frozen=True)
class DiffusionGemmaSpec:
    """The numbers of one checkpoint. Sizes in elements, ids in the checkpoint's vocabulary.

    full_layers: indices of the layers that see everything before them; the others see a window.
    block_length: positions of a canvas. softcap: logits are squashed to (-softcap, softcap).
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    sliding: LayerKind
    full: LayerKind
    full_layers: tuple[int, ...]
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    rms_norm_eps: float
    softcap: float
    vocab_size: int
    max_position_embeddings: int
    block_length: int
    image_token_id: int | None
    stop_ids: tuple[int, ...]
    defaults: DecodeSettings
    decoding_evidence: str = ""
    notes: tuple[str, ...] = ()

    family = "diffusion_gemma"
    decoding = "entropy-bound"
    whole_sequence = False
    on_grid = False
    mask_token_id = None

    def kind_of(self, layer: int) -> LayerKind:
        return self.full if layer in self.full_layers else self.sliding

    @property
    def kv_numbers(self) -> int:
        """Of the layers that see everything: the others keep a window, whatever the length."""
        return 2 * len(self.full_layers) * self.full.kv_heads * self.full.head_dim

    @property
    def kv_fixed_numbers(self) -> int:
        """Of the others: a window, and what one forward adds to it."""
        layers, kind = self.num_layers - len(self.full_layers), self.sliding
        return 2 * layers * kind.kv_heads * kind.head_dim * ((kind.window or 0) + self.chunk)

    @property
    def chunk(self) -> int:
        """Most positions of a forward over finished tokens: bounds the windows' rings and a
        prefill's activations."""
        return max(CHUNK, self.block_length)

    @property
    def block_rule(self) -> str:
        return (
            f"canvases of {self.block_length} tokens, the first where the prompt ends; a canvas"
            " sees itself both ways and all before it"
            f" ({len(self.full_layers)} layers of {self.num_layers}; the others see the last"
            f" {(self.sliding.window or 0) - 1} tokens before it); a finished token sees what is"
            " before it"
        )

    @property
    def table(self) -> TensorTable:
        return _table(self)

    def checkpoint_name(self, module: str) -> str:
        """`layers.N.encoder` holds what the encoder pass has for itself."""
        if module.endswith(".encoder"):
            return f"{ENCODER}.{module.removesuffix('.encoder')}"
        return f"{STACK}.{module}"

    def kind(self, module: str) -> str:
        if ".self_attn." in module:
            return "attention"
        if ".experts." in module:
            return "routed experts"
        if module.endswith(".router.proj"):
            return "router"
        return "self-conditioning" if ".self_conditioning." in module else "dense MLP"


@lru_cache(maxsize=8)
def _table(spec: DiffusionGemmaSpec) -> TensorTable:
    hidden = spec.hidden_size
    linears = dict(_mlp(f"{STACK}.self_conditioning", hidden, spec.intermediate_size))
    tensors: dict[str, tuple[int, ...]] = {
        f"{STACK}.embed_tokens.weight": (spec.vocab_size, hidden),
        f"{STACK}.norm.weight": (hidden,),
        f"{STACK}.self_conditioning.pre_norm.weight": (hidden,),
    }
    for layer in range(spec.num_layers):
        base = f"{STACK}.layers.{layer}"
        linears.update(_attention(spec, layer))
        linears.update(_mlp(f"{base}.mlp", hidden, spec.intermediate_size))
        linears[f"{base}.router.proj"] = (spec.num_experts, hidden)
        for expert in range(spec.num_experts):
            module = f"{base}.experts.{expert}"
            linears.update(_mlp(module, hidden, spec.moe_intermediate_size))
        for norm in LAYER_NORMS:
            tensors[f"{base}.{norm}.weight"] = (hidden,)
        for norm in ("q_norm", "k_norm"):
            tensors[f"{base}.self_attn.{norm}.weight"] = (spec.kind_of(layer).head_dim,)
        tensors[f"{base}.router.scale"] = (hidden,)
        tensors[f"{base}.router.per_expert_scale"] = (spec.num_experts,)
        tensors[f"{base}.layer_scalar"] = (1,)
        tensors[f"{ENCODER}.layers.{layer}.layer_scalar"] = (1,)
    return TensorTable(
        linears=linears,
        tensors=tensors,
        embedding=f"{STACK}.embed_tokens",
        final_norm=f"{STACK}.norm",
        layers=f"{STACK}.layers",
        copies=(f"{ENCODER}.", f"{STACK}."),
        experts=ExpertTable(
            layers=tuple(range(spec.num_layers)),
            count=spec.num_experts,
            hidden=hidden,
            intermediate=spec.moe_intermediate_size,
            per_token=spec.num_experts_per_tok,
            shared=0,
            experts=f"{STACK}.layers.{{layer}}.experts",
            router=f"{STACK}.layers.{{layer}}.router.proj",
        ),
    )


def _mlp(base: str, hidden: int, inter: int) -> Iterator[tuple[str, tuple[int, int]]]:
    for part in PROJECTIONS[:2]:
        yield f"{base}.{part}", (inter, hidden)
    yield f"{base}.{PROJECTIONS[2]}", (hidden, inter)


def _attention(spec: DiffusionGemmaSpec, layer: int) -> Iterator[tuple[str, tuple[int, int]]]:
    base, kind = f"{STACK}.layers.{layer}.self_attn", spec.kind_of(layer)
    rows, kv_rows = spec.num_heads * kind.head_dim, kind.kv_heads * kind.head_dim
    yield f"{base}.q_proj", (rows, spec.hidden_size)
    yield f"{base}.k_proj", (kv_rows, spec.hidden_size)
    if kind.window is not None:
        yield f"{base}.v_proj", (kv_rows, spec.hidden_size)
    yield f"{base}.o_proj", (spec.hidden_size, rows)
