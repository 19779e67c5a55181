"""What a LLaDA2 checkpoint is: its numbers, its tensor names and the shapes they must have.

Knows config.json and generation_config.json of the family (design: models.md 1.2, 1.3, 1.6-1.8).
Refuses every value that would change the maths and that the engine does not build, instead of
ignoring it. Knows no torch and reads no files, so that a window without torch can use it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from engine.errors import CheckpointError
from engine.models.config_fields import ConfigFields, refuse_unbuilt, rope_fields
from engine.models.family import ExpertTable, Family, TensorTable
from engine.models.residual_spec import ResidualSpec, read_residual
from engine.models.token_fields import read_mask_id, read_stop_ids
from engine.types import DecodeSettings

Decoding = Literal["llada2.0", "llada2.1", "llada2.2"]

# Used when a folder brings no template of its own (models.md 1.9).
TEMPLATE = (
    "{% for message in messages %}"
    "{% set names = {'system': 'SYSTEM', 'user': 'HUMAN', 'assistant': 'ASSISTANT'} %}"
    "<role>{{ names[message.role] }}</role>{{ message.content }}<|role_end|>"
    "{% endfor %}{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)

MODEL_TYPES = ("llada2_moe", "llada2_moe_veomni", "llada21_moe")

# Constants of the released vocabulary. The released config names neither the mask nor the role-end
# token: the reference code carries them as argument defaults. Used only for that vocabulary, and
# said in a note.
RELEASED_VOCAB = 157184
RELEASED_MASK, RELEASED_EOS, RELEASED_ROLE_END = 156895, 156892, 156900

ROLE_END_TOKEN = "<|role_end|>"

# models.md 1.6-1.8. Off is None, and never 0.0.
DEFAULTS: dict[Decoding, DecodeSettings] = {
    "llada2.0": DecodeSettings(threshold=0.95, editing_threshold=None, steps=32),
    "llada2.1": DecodeSettings(threshold=0.95, editing_threshold=0.9, max_post_steps=16),
    "llada2.2": DecodeSettings(threshold=0.5, editing_threshold=0.0, max_post_steps=16, steps=32),
}

# Values that the engine's maths assumes. Anything else is refused by name. None stands for "absent
# or null".
_FIXED: dict[str, tuple[object, ...]] = {
    "score_function": ("sigmoid", None),
    "rope_scaling": (None,),
    "hidden_act": ("silu", "swish", None),
    "router_dtype": ("fp32", "float32", "torch.float32", None),
    "use_sliding_window": (False, None),
    "use_bias": (False, None),
    "use_qkv_bias": (False, None),
    "norm_head": (False, None),
    "rope_interleave": (False, None),
    "moe_layer_freq": (1, None),
}


@dataclass(frozen=True)
class LLaDA2Spec:
    """The numbers of one LLaDA2 checkpoint. Sizes in elements, ids in the checkpoint's vocabulary.

    expert_capacity: experts in a block's pool under 2.2 routing; 0 = group-limited routing (2.0,
    2.1). router_bias: `mlp.gate.expert_bias` exists and takes part in the choice of experts (never
    in their weights). rotary_dim: leading head dimensions that RoPE turns. block_length: positions
    per block, on the absolute grid. decoding_evidence: the sentence that says why `decoding` is
    what it is. notes: other things a person should know.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    first_k_dense_replace: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    num_shared_experts: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    router_bias: bool
    rope_theta: float
    rotary_dim: int
    rms_norm_eps: float
    use_qk_norm: bool
    use_qkv_bias: bool
    use_bias: bool
    norm_head: bool
    tie_word_embeddings: bool
    vocab_size: int
    mask_token_id: int
    pad_token_id: int | None
    stop_ids: tuple[int, ...]
    max_position_embeddings: int
    block_length: int
    expert_capacity: int
    delete_token_id: int | None
    split_token_id: int | None
    decoding: Decoding
    defaults: DecodeSettings
    residual: ResidualSpec | None = None
    decoding_evidence: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        generation_config: Mapping[str, object],
        *,
        folder_name: str = "",
        special_tokens: Mapping[str, int] | None = None,
    ) -> LLaDA2Spec:
        """Reads the two JSON objects of a folder.

        folder_name: evidence for the decoding rule when nothing better is there. special_tokens:
        the tokenizer's added tokens, text -> id, if there is a tokenizer; they fill ids the config
        leaves out (mask, role end). Raises CheckpointError naming the file and the field.
        """
        c = ConfigFields(config, "config.json")
        g = ConfigFields(generation_config, "generation_config.json")
        refuse_unbuilt(c, _FIXED)
        tokens = special_tokens or {}
        notes: list[str] = []
        decoding, evidence = _decoding_rule(c, g, folder_name)
        vocab = c.integer("vocab_size", minimum=1)
        num_heads = c.integer("num_attention_heads", minimum=1)
        hidden = c.integer("hidden_size", minimum=1)
        head_dim = c.integer("head_dim", default=hidden // num_heads, minimum=2)
        experts = c.integer("num_experts", minimum=1)
        rope = rope_fields(c)
        spec = cls(
            hidden_size=hidden,
            num_layers=c.integer("num_hidden_layers", minimum=1),
            num_heads=num_heads,
            num_kv_heads=c.integer("num_key_value_heads", default=num_heads, minimum=1),
            head_dim=head_dim,
            intermediate_size=c.integer("intermediate_size", minimum=1),
            first_k_dense_replace=c.integer("first_k_dense_replace", default=0, minimum=0),
            moe_intermediate_size=c.integer("moe_intermediate_size", minimum=1),
            num_experts=experts,
            num_experts_per_tok=c.integer("num_experts_per_tok", minimum=1),
            num_shared_experts=c.integer("num_shared_experts", default=0, minimum=0),
            n_group=c.integer("n_group", default=1, minimum=1),
            topk_group=c.integer("topk_group", default=1, minimum=1),
            routed_scaling_factor=c.number("routed_scaling_factor", default=1.0),
            norm_topk_prob=c.boolean("norm_topk_prob", default=True),
            router_bias=c.boolean("moe_router_enable_expert_bias", default=True),
            rope_theta=rope.number("rope_theta", default=10000.0, above=0.0),
            rotary_dim=_rotary_dim(c, rope, head_dim),
            rms_norm_eps=c.number("rms_norm_eps", default=1e-6, above=0.0),
            use_qk_norm=c.boolean("use_qk_norm", default=True),
            use_qkv_bias=c.boolean("use_qkv_bias", default=False),
            use_bias=c.boolean("use_bias", default=False),
            norm_head=c.boolean("norm_head", default=False),
            tie_word_embeddings=c.boolean("tie_word_embeddings", default=False),
            vocab_size=vocab,
            mask_token_id=_mask_id(c, g, tokens, vocab, notes),
            pad_token_id=c.optional_id("pad_token_id", vocab),
            stop_ids=_stop_ids(c, g, tokens, vocab, notes),
            max_position_embeddings=c.integer("max_position_embeddings", minimum=1),
            block_length=c.integer("block_size", default=32, minimum=1),
            expert_capacity=c.integer("expert_capacity", default=0, minimum=0),
            delete_token_id=c.optional_id("delete_token_id", vocab),
            split_token_id=c.optional_id("split_token_id", vocab),
            decoding=decoding,
            defaults=_defaults(decoding, g, notes),
            residual=read_residual(c, hidden),
            decoding_evidence=evidence,
        )
        spec = replace(spec, notes=tuple(notes))
        _check_consistency(spec)
        return spec

    @property
    def moe_layers(self) -> range:
        """Indices of the layers with routed experts."""
        return range(min(self.first_k_dense_replace, self.num_layers), self.num_layers)

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused projection: all query heads, then all key, then all value heads."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    family = "llada2"
    whole_sequence = False
    on_grid = True
    kv_fixed_numbers = 0

    @property
    def parameters(self) -> int:
        """Number of weights, embeddings and biases included."""
        return self.table.parameters

    @property
    def kv_numbers(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def block_rule(self) -> str:
        return (
            f"blocks of {self.block_length} tokens on absolute positions; a token sees its own"
            " block and all before it"
        )

    @property
    def table(self) -> TensorTable:
        return _table(self)

    def checkpoint_name(self, module: str) -> str:
        """Everything but `lm_head` and the residual's lies under `model.`."""
        outside = module == "lm_head" or module.startswith("residual")
        return module if outside else f"model.{module}"

    def kind(self, module: str) -> str:
        if ".attention." in module:
            return "attention"
        if module.startswith("residual."):
            return "residual adapter"
        if ".mlp.experts." in module:
            return "routed experts"
        if ".mlp.shared_experts." in module:
            return "shared experts"
        return "router" if module.endswith(".mlp.gate") else "dense MLP"


@lru_cache(maxsize=8)
def _table(spec: LLaDA2Spec) -> TensorTable:
    return TensorTable(
        linears=expected_linears(spec),
        tensors=expected_tensors(spec),
        embedding="model.word_embeddings",
        final_norm="model.norm",
        layers="model.layers",
        experts=ExpertTable(
            layers=tuple(spec.moe_layers),
            count=spec.num_experts,
            hidden=spec.hidden_size,
            intermediate=spec.moe_intermediate_size,
            per_token=spec.num_experts_per_tok,
            shared=spec.num_shared_experts,
            experts="model.layers.{layer}.mlp.experts",
            router="model.layers.{layer}.mlp.gate",
        ),
    )


def expected_linears(spec: LLaDA2Spec) -> dict[str, tuple[int, int]]:
    """Every linear module of the checkpoint, experts one by one: name without `.weight` -> (out,
    in).

    Includes the routers (`mlp.gate`) and, unless tied, `lm_head`. The embedding is in
    `expected_tensors`; it too may be stored packed. Source: models.md 1.3.
    """
    hidden, shared = spec.hidden_size, spec.num_shared_experts * spec.moe_intermediate_size
    linears: dict[str, tuple[int, int]] = {}
    for layer in range(spec.num_layers):
        base = f"model.layers.{layer}"
        linears[f"{base}.attention.query_key_value"] = (spec.qkv_rows, hidden)
        linears[f"{base}.attention.dense"] = (hidden, spec.num_heads * spec.head_dim)
        if layer not in spec.moe_layers:
            _add_mlp(linears, f"{base}.mlp", hidden, spec.intermediate_size)
            continue
        linears[f"{base}.mlp.gate"] = (spec.num_experts, hidden)
        if shared:
            _add_mlp(linears, f"{base}.mlp.shared_experts", hidden, shared)
        for expert in range(spec.num_experts):
            _add_mlp(linears, f"{base}.mlp.experts.{expert}", hidden, spec.moe_intermediate_size)
    if not spec.tie_word_embeddings:
        linears["lm_head"] = (spec.vocab_size, hidden)
    return linears | (spec.residual.linears(hidden) if spec.residual else {})


def expected_tensors(spec: LLaDA2Spec) -> dict[str, tuple[int, ...]]:
    """Every tensor that is not a linear weight: full name -> shape. Norms, router biases and the
    embedding.
    """
    tensors: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (spec.vocab_size, spec.hidden_size),
        "model.norm.weight": (spec.hidden_size,),
    }
    for layer in range(spec.num_layers):
        base = f"model.layers.{layer}"
        tensors[f"{base}.input_layernorm.weight"] = (spec.hidden_size,)
        tensors[f"{base}.post_attention_layernorm.weight"] = (spec.hidden_size,)
        if spec.use_qk_norm:
            tensors[f"{base}.attention.query_layernorm.weight"] = (spec.head_dim,)
            tensors[f"{base}.attention.key_layernorm.weight"] = (spec.head_dim,)
        if layer in spec.moe_layers and spec.router_bias:
            tensors[f"{base}.mlp.gate.expert_bias"] = (spec.num_experts,)
    return tensors | (spec.residual.tensors(spec.hidden_size) if spec.residual else {})


def _add_mlp(linears: dict[str, tuple[int, int]], base: str, hidden: int, inter: int) -> None:
    linears[f"{base}.gate_proj"] = (inter, hidden)
    linears[f"{base}.up_proj"] = (inter, hidden)
    linears[f"{base}.down_proj"] = (hidden, inter)


def _rotary_dim(c: ConfigFields, rope: ConfigFields, head_dim: int) -> int:
    factor = rope.number("partial_rotary_factor", default=1.0, above=0.0, maximum=1.0)
    stated = c.get("rotary_dim") is not None
    rotary = c.integer("rotary_dim", minimum=2) if stated else int(head_dim * factor)
    if rotary < 2 or rotary > head_dim or rotary % 2:
        raise c.refusal(
            "checkpoint.config_inconsistent",
            "rotary_dim" if stated else "partial_rotary_factor",
            f"gives {rotary} rotary dimensions for heads of {head_dim}; it must be even, at least 2"
            " and no larger",
        )
    return rotary


def _mask_id(
    c: ConfigFields, g: ConfigFields, tokens: Mapping[str, int], vocab: int, notes: list[str]
) -> int:
    released = RELEASED_MASK if vocab == RELEASED_VOCAB else None
    return read_mask_id(c, g, tokens, vocab, notes, released)


def _stop_ids(
    c: ConfigFields, g: ConfigFields, tokens: Mapping[str, int], vocab: int, notes: list[str]
) -> tuple[int, ...]:
    released = RELEASED_EOS if vocab == RELEASED_VOCAB else None
    ids = list(read_stop_ids(c, g, vocab, notes, released))
    role_end = tokens.get(ROLE_END_TOKEN, RELEASED_ROLE_END if vocab == RELEASED_VOCAB else None)
    if role_end is not None and role_end not in ids and role_end < vocab:
        ids.append(role_end)
        notes.append(f"{ROLE_END_TOKEN} ({role_end}) also ends a reply.")
    return tuple(dict.fromkeys(ids))


def _decoding_rule(c: ConfigFields, g: ConfigFields, folder_name: str) -> tuple[Decoding, str]:
    for name in ("expert_capacity", "delete_token_id"):
        value = c.get(name)
        if value not in (None, 0, False):
            return "llada2.2", f"Decoding llada2.2: config.json has {name} = {value}."
    for fields in (g, c):
        value = fields.get("decoding")
        if value is not None:
            return _named_rule(fields, value), f"Decoding {value}: {fields.file} says so."
    if c.get("model_type") == "llada21_moe":
        return "llada2.1", "Decoding llada2.1: config.json has model_type llada21_moe."
    for origin, text in (("_name_or_path", c.get("_name_or_path")), ("folder name", folder_name)):
        # "2.1" as a version of its own, so that a folder called tool-0.2.1 proves nothing.
        match = re.search(r"(?<![\d.])2\.([01])(?!\d)", text) if isinstance(text, str) else None
        if match:
            rule: Decoding = "llada2.1" if match.group(1) == "1" else "llada2.0"
            return rule, f"Decoding {rule}: the {origin} says {match.group(0)}."
    if "editing_threshold" in g.values:
        return "llada2.1", "Decoding llada2.1: generation_config.json has editing_threshold."
    return "llada2.0", "Decoding llada2.0: nothing in the folder speaks of token editing."


def _named_rule(fields: ConfigFields, value: object) -> Decoding:
    text = str(value)
    name = text if text.startswith("llada") else f"llada{text}"
    for rule in ("llada2.0", "llada2.1"):
        if name == rule:
            return rule
    why = "needs delete_token_id and split_token_id in config.json" if name == "llada2.2" else ""
    raise fields.refusal(
        "checkpoint.unsupported_value",
        "decoding",
        f"is {value!r}, which {why or 'is not one of llada2.0, llada2.1, llada2.2'}",
    )


def _defaults(decoding: Decoding, g: ConfigFields, notes: list[str]) -> DecodeSettings:
    base = DEFAULTS[decoding]
    editing = base.editing_threshold
    if "editing_threshold" in g.values:
        if decoding == "llada2.0":
            notes.append("generation_config.json sets editing_threshold; llada2.0 does not edit.")
        else:  # an explicit null means off
            given = g.get("editing_threshold")
            editing = None if given is None else g.number("editing_threshold", minimum=0.0)
    temperature = g.number("temperature", default=base.temperature, minimum=0.0)
    if g.get("do_sample") is False:
        temperature = 0.0
    transfer = "num_to_transfer" if decoding == "llada2.1" else "minimal_topk"
    return DecodeSettings(
        threshold=g.number("threshold", default=base.threshold, minimum=0.0, maximum=1.0),
        editing_threshold=editing,
        max_post_steps=g.integer("max_post_steps", default=base.max_post_steps, minimum=0),
        min_transfer=g.integer(transfer, default=base.min_transfer, minimum=1),
        steps=g.integer("steps", default=base.steps, minimum=1),
        temperature=temperature,
        top_k=g.integer("top_k", default=0, minimum=0) if temperature > 0 else 0,
        top_p=g.number("top_p", default=1.0, above=0.0, maximum=1.0) if temperature > 0 else 1.0,
    )


def _check_consistency(s: LLaDA2Spec) -> None:
    def fail(field: str, problem: str) -> CheckpointError:
        return ConfigFields({}, "config.json").refusal(
            "checkpoint.config_inconsistent", field, problem
        )

    if s.num_heads % s.num_kv_heads:
        raise fail("num_key_value_heads", f"is {s.num_kv_heads}, for {s.num_heads} query heads")
    if s.block_length > s.max_position_embeddings:
        raise fail("block_size", f"is {s.block_length}, more than the whole context")
    if s.mask_token_id in s.stop_ids:
        raise fail("mask_token_id", f"is {s.mask_token_id}, which is also a stop id")
    if (s.delete_token_id is None) != (s.split_token_id is None):
        field = "split_token_id" if s.split_token_id is None else "delete_token_id"
        raise fail(field, "is absent, but the other edit token is there; they come as a pair")
    if s.num_experts % s.n_group:
        raise fail("n_group", f"is {s.n_group}, which does not divide {s.num_experts} experts")
    if s.topk_group > s.n_group:
        raise fail("topk_group", f"is {s.topk_group}, more than the {s.n_group} groups there are")
    pool = s.expert_capacity or s.num_experts // s.n_group * s.topk_group
    if pool > s.num_experts:
        raise fail("expert_capacity", f"is {pool}, more than the {s.num_experts} experts")
    if s.num_experts_per_tok > pool:
        raise fail(
            "num_experts_per_tok", f"is {s.num_experts_per_tok}, but a token may use only {pool}"
        )
    if not s.expert_capacity and s.n_group > 1 and s.num_experts // s.n_group < 2:
        raise fail("n_group", "leaves fewer than two experts a group; a group's score needs two")


FAMILY = Family(
    key="llada2",
    title="LLaDA2",
    model_types=MODEL_TYPES,
    architectures=("llada2moe",),
    telltale="model.word_embeddings",
    read=LLaDA2Spec.from_config,
    parts="engine.families.llada2",
    template=TEMPLATE,
)
