"""What a checkpoint of the dense backbone is: its numbers, its tensor names and the shapes they
must have.

Knows two layouts of names, Hugging Face's (Qwen3, Qwen2.5) and LLaDA's own (models.md 3, 4). How a
family's config says these numbers is `engine.models.dense_readers`' business. Knows no torch and
reads no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from engine.models.family import TensorTable
from engine.models.residual_spec import ResidualSpec
from engine.types import DecodeSettings

Names = Literal["hf", "llada"]

# Module of the backbone -> its name in a LLaDA checkpoint, inside and outside a layer.
_LLADA_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}
_LLADA_TOP = {"embed_tokens": "wte", "norm": "ln_f", "lm_head": "ff_out"}


@dataclass(frozen=True)
class Blocks:
    """Which positions are denoised together, and who sees whom.

    length: positions of a block, on the absolute grid; of a window where the canvas is the whole
    sequence. window: positions that are open at a time inside a block (a divisor of it). whole:
    prompt and answer are one canvas that sees itself both ways, without a cache. shift: logits at
    i - 1 predict token i. causal_commit: the cache holds keys of a causal forward over finished
    tokens, not of a forward that sees its whole block.
    """

    length: int
    window: int
    whole: bool = False
    shift: bool = False
    causal_commit: bool = False


@dataclass(frozen=True)
class DenseSpec:
    """The numbers of one checkpoint. Sizes in elements, ids in the checkpoint's vocabulary.

    qk_norm: heads are normalised before RoPE. qkv_bias: on the three projections alone. noise: the
    canvas is random tokens, and there is no mask.
    """

    family: str
    names: Names
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    qk_norm: bool
    qkv_bias: bool
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    vocab_size: int
    max_position_embeddings: int
    blocks: Blocks
    mask_token_id: int | None
    stop_ids: tuple[int, ...]
    decoding: str
    defaults: DecodeSettings
    residual: ResidualSpec | None = None
    noise: bool = False
    decoding_evidence: str = ""
    notes: tuple[str, ...] = ()

    on_grid = True
    kv_fixed_numbers = 0

    @property
    def block_length(self) -> int:
        return self.blocks.length

    @property
    def whole_sequence(self) -> bool:
        return self.blocks.whole

    @property
    def kv_numbers(self) -> int:
        if self.blocks.whole:
            return 0
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def block_rule(self) -> str:
        b = self.blocks
        if b.whole:
            return (
                "prompt and answer are one canvas that sees itself both ways, without a cache; the"
                f" answer is filled in windows of {b.window} tokens"
            )
        inner = f", filled in windows of {b.window}" if b.window < b.length else ""
        seen = "its own block and all before it"
        return (
            f"blocks of {b.length} tokens on absolute positions{inner}; a token sees {seen}"
            + (", a finished token only what is before it" if b.causal_commit else "")
            + (" (logits predict the next position's token)" if b.shift else "")
        )

    @property
    def table(self) -> TensorTable:
        return _table(self)

    def checkpoint_name(self, module: str) -> str:
        if module.startswith("residual"):
            return module
        if self.names == "hf":
            return module if module == "lm_head" else f"model.{module}"
        _, _, inside = module.partition("layers.")
        layer, _, part = inside.partition(".")
        if layer:  # modules that only hold others keep their names
            return f"model.transformer.blocks.{layer}.{_LLADA_LAYER.get(part, part)}"
        return f"model.transformer.{_LLADA_TOP.get(module, module)}"

    def kind(self, module: str) -> str:
        if module.startswith("residual."):
            return "residual adapter"
        attention = ("q_proj", "k_proj", "v_proj", "o_proj", "attn_out")
        return "attention" if module.endswith(attention) else "dense MLP"


@lru_cache(maxsize=8)
def _table(spec: DenseSpec) -> TensorTable:
    hidden, name = spec.hidden_size, spec.checkpoint_name
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    linears: dict[str, tuple[int, int]] = {}
    tensors: dict[str, tuple[int, ...]] = {
        f"{name('embed_tokens')}.weight": (spec.vocab_size, hidden),
        f"{name('norm')}.weight": (hidden,),
    }
    for layer in range(spec.num_layers):
        base = f"layers.{layer}"
        rows = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        for part, count in rows.items():
            linears[name(f"{base}.self_attn.{part}")] = (count, hidden)
            if spec.qkv_bias:
                tensors[f"{name(f'{base}.self_attn.{part}')}.bias"] = (count,)
        linears[name(f"{base}.self_attn.o_proj")] = (hidden, q_rows)
        for part in ("gate_proj", "up_proj"):
            linears[name(f"{base}.mlp.{part}")] = (spec.intermediate_size, hidden)
        linears[name(f"{base}.mlp.down_proj")] = (hidden, spec.intermediate_size)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name(f'{base}.{norm}')}.weight"] = (hidden,)
        if spec.qk_norm:
            for norm in ("q_norm", "k_norm"):
                tensors[f"{name(f'{base}.self_attn.{norm}')}.weight"] = (spec.head_dim,)
    if not spec.tie_word_embeddings:
        linears[name("lm_head")] = (spec.vocab_size, hidden)
    if spec.residual is not None:
        linears |= spec.residual.linears(hidden)
        tensors |= spec.residual.tensors(hidden)
    return TensorTable(
        linears=linears,
        tensors=tensors,
        embedding=name("embed_tokens"),
        final_norm=name("norm"),
        layers="model.layers" if spec.names == "hf" else "model.transformer.blocks",
    )
