"""Reads the configs of the families on the dense backbone: SDAR and TraDo, dllm's BD3LM and MDLM,
Fast-dLLM v2, Dream, and LLaDA-8B.

Knows what each family calls its sizes, how it decodes, and what its reference code takes as
defaults (models.md 3, 4). Refuses every value that would change the maths and that the engine does
not build. Knows no torch and reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from engine.models.config_fields import ConfigFields, refuse_unbuilt, rope_fields
from engine.models.dense_spec import Blocks, DenseSpec
from engine.models.family import Family
from engine.models.residual_spec import read_residual
from engine.models.token_fields import read_mask_id, read_stop_ids
from engine.types import DecodeSettings

Config = Mapping[str, object]
END_OF_TURN = ("<|im_end|>", "<|eot_id|>")
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
A2dRule = Literal["bd3lm", "mdlm"]
A2D_RULES: tuple[A2dRule, ...] = ("bd3lm", "mdlm")
DREAM_RULES = ("origin", "maskgit_plus", "topk_margin", "entropy")
QWEN_MASKS = {"sdar": 151669, "a2d": 151669, "fast_dllm": 151665, "dream": 151666}
QWEN_ENDS = {
    "sdar": 151645,
    "a2d": 151645,
    "fast_dllm": 151645,
    "dream": 151643,
    "qwen_dlm": 151645,
}
QWEN_VOCABS = (151936, 152064)  # of the released checkpoints; their special ids hold only there
LLADA_VOCAB, LLADA_MASK, LLADA_END = 126464, 126336, 126081

# Values that the maths assumes. None stands for "absent or null".
_HF_FIXED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", None),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_mrope": (False, None),
    "num_experts": (0, None),
}
_LLADA_FIXED: dict[str, tuple[object, ...]] = {
    "block_type": ("llama", None),
    "block_group_size": (1, None),
    "activation_type": ("silu", "swiglu", None),
    "layer_norm_type": ("rms", None),
    "layer_norm_with_affine": (True, None),
    "bias_for_layer_norm": (False, None),
    "attention_layer_norm": (False, None),
    "input_emb_norm": (False, None),
    "scale_logits": (False, None),
    "include_bias": (False, None),
    "include_qkv_bias": (False, None),
    "alibi": (False, None),
    "rope": (True, None),
    "rope_full_precision": (True, None),
    "clip_qkv": (None,),
}


class Reading:
    """One folder's two configs on the way to a spec, with the notes that gather."""

    def __init__(self, config: Config, generation: Config, tokens: Mapping[str, int] | None):
        self.c = ConfigFields(config, "config.json")
        self.g = ConfigFields(generation, "generation_config.json")
        self.tokens = tokens or {}
        self.notes: list[str] = []

    def stop_ids(self, released: int | None, vocab: int) -> tuple[int, ...]:
        """released: the end token of a released vocabulary."""
        stops = list(read_stop_ids(self.c, self.g, vocab, self.notes, released))
        for text in END_OF_TURN:
            token = self.tokens.get(text)
            if token is not None and token not in stops and token < vocab:
                stops.append(token)
                self.notes.append(f"{text} ({token}) also ends a reply.")
        return tuple(dict.fromkeys(stops))

    def mask_id(self, released: int | None, vocab: int, stops: tuple[int, ...]) -> int:
        """released: the mask of a released vocabulary. stops: what it must not be."""
        found = read_mask_id(self.c, self.g, self.tokens, vocab, self.notes, released)
        if found in stops:
            raise self.c.refusal(
                "checkpoint.config_inconsistent",
                "mask_token_id",
                f"is {found}, which is also a stop id",
            )
        return found

    def settings(self, base: DecodeSettings) -> DecodeSettings:
        """The family's defaults with what generation_config.json says otherwise."""
        g = self.g
        temperature = g.number("temperature", default=base.temperature, minimum=0.0)
        if g.get("do_sample") is False:
            temperature = 0.0
        warm = temperature > 0
        return replace(
            base,
            threshold=g.number("threshold", default=base.threshold, minimum=0.0, maximum=1.0),
            steps=g.integer("steps", default=base.steps, minimum=1),
            temperature=temperature,
            top_k=g.integer("top_k", default=base.top_k, minimum=0) if warm else 0,
            top_p=(g.number("top_p", default=base.top_p, above=0.0, maximum=1.0) if warm else 1.0),
        )

    def hf_spec(
        self,
        key: str,
        blocks: Blocks,
        decoding: str,
        evidence: str,
        base: DecodeSettings,
        *,
        bias: bool,
        noise: bool = False,
    ) -> DenseSpec:
        """A spec of the Hugging Face layout. bias: Qwen2.5 (biases, no QK-norm), else Qwen3. noise:
        the canvas has no masks."""
        c = self.c
        refuse_unbuilt(c, _HF_FIXED if not bias else _HF_FIXED | {"attention_bias": (True, None)})
        _refuse_other_layers(c)
        rope = rope_fields(c)
        vocab = c.integer("vocab_size", minimum=1)
        heads = c.integer("num_attention_heads", minimum=1)
        hidden = c.integer("hidden_size", minimum=1)
        released = vocab in QWEN_VOCABS
        stops = self.stop_ids(QWEN_ENDS[key] if released else None, vocab)
        mask = None
        if not noise:
            mask = self.mask_id(QWEN_MASKS[key] if released else None, vocab, stops)
        defaults, residual = self.settings(base), read_residual(c, hidden)
        return _checked(
            DenseSpec(
                family=key,
                names="hf",
                hidden_size=hidden,
                num_layers=c.integer("num_hidden_layers", minimum=1),
                num_heads=heads,
                num_kv_heads=c.integer("num_key_value_heads", default=heads, minimum=1),
                head_dim=c.integer("head_dim", default=hidden // heads, minimum=2),
                intermediate_size=c.integer("intermediate_size", minimum=1),
                qk_norm=not bias,
                qkv_bias=bias,
                rope_theta=rope.number("rope_theta", default=10000.0, above=0.0),
                rms_norm_eps=c.number("rms_norm_eps", default=1e-6, above=0.0),
                tie_word_embeddings=c.boolean("tie_word_embeddings", default=False),
                vocab_size=vocab,
                max_position_embeddings=c.integer("max_position_embeddings", minimum=1),
                blocks=blocks,
                mask_token_id=mask,
                stop_ids=stops,
                decoding=decoding,
                defaults=defaults,
                residual=residual,
                noise=noise,
                decoding_evidence=evidence,
                notes=tuple(self.notes),
            )
        )


def read_sdar(
    config: Config,
    generation_config: Config,
    *,
    folder_name: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> DenseSpec:
    """SDAR and TraDo (models.md 3.1, 3.2). Raises CheckpointError naming the file and the field."""
    r = Reading(config, generation_config, special_tokens)
    length = r.c.integer("block_size", default=4, minimum=1)
    base = DecodeSettings(threshold=0.9, steps=length, temperature=1.0)
    evidence = (
        "Decoding sdar: what is above the threshold, or an even share of the block per step"
        " (a threshold of 1 is the reference's static rule)."
    )
    return r.hf_spec("sdar", Blocks(length, length), "sdar", evidence, base, bias=False)


def read_a2d(
    config: Config,
    generation_config: Config,
    *,
    folder_name: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> DenseSpec:
    """dllm's Qwen3 diffusion models, BD3LM (blocks) or MDLM (whole sequence); models.md 3.6. Raises
    CheckpointError where nothing says which."""
    r = Reading(config, generation_config, special_tokens)
    kind, evidence = _a2d_kind(r, folder_name)
    if kind == "bd3lm":
        length = _first(r, ("block_size", "block_length"), 32)
        base = DecodeSettings(threshold=1.0, steps=length)
        return r.hf_spec("a2d", Blocks(length, length), kind, evidence, base, bias=False)
    length = _first(r, ("block_size", "block_length"), 128)
    base = DecodeSettings(threshold=1.0, steps=length)
    blocks = Blocks(length, length, whole=True)
    return r.hf_spec("a2d", blocks, kind, evidence, base, bias=False)


def read_fast_dllm(
    config: Config,
    generation_config: Config,
    *,
    folder_name: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> DenseSpec:
    """Fast-dLLM v2 (models.md 3.3)."""
    r = Reading(config, generation_config, special_tokens)
    length = r.c.integer("bd_size", default=32, minimum=1)
    window = _first(r, ("small_block_size",), min(8, length))
    if length % window:
        raise r.c.refusal(
            "checkpoint.config_inconsistent",
            "small_block_size",
            f"is {window}, which does not divide blocks of {length}",
        )
    base = DecodeSettings(threshold=0.9, top_p=0.95)
    evidence = "Decoding fast-dllm-v2: what is above the threshold, at least one token per step."
    blocks = Blocks(length, window, shift=True)
    return r.hf_spec("fast_dllm", blocks, "fast-dllm-v2", evidence, base, bias=True)


def read_dream(
    config: Config,
    generation_config: Config,
    *,
    folder_name: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> DenseSpec:
    """Dream-7B (models.md 3.4)."""
    r = Reading(config, generation_config, special_tokens)
    rule = r.g.get("alg")
    evidence = f"Decoding dream.{rule}: generation_config.json names alg {rule}."
    if rule is None:
        rule = "entropy"
        evidence = "Decoding dream.entropy: nothing names alg; the project's README uses this one."
    if rule not in DREAM_RULES:
        raise r.g.refusal(
            "checkpoint.unsupported_value",
            "alg",
            f"is {rule!r:.60}, which is not one of {', '.join(DREAM_RULES)}",
        )
    if r.g.get("alg_temp") not in (None, 0, 0.0):
        r.notes.append("generation_config.json sets alg_temp; positions are chosen without noise.")
    base = DecodeSettings(threshold=1.0, steps=512, temperature=0.0)
    length = r.c.integer("max_position_embeddings", minimum=1)
    blocks = Blocks(length, length, whole=True, shift=True)
    return r.hf_spec("dream", blocks, f"dream.{rule}", evidence, base, bias=True)


def read_llada(
    config: Config,
    generation_config: Config,
    *,
    folder_name: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> DenseSpec:
    """LLaDA-8B (models.md 4)."""
    r = Reading(config, generation_config, special_tokens)
    c = r.c
    refuse_unbuilt(c, _LLADA_FIXED)
    stated = c.integer("vocab_size", minimum=1)
    vocab = c.integer("embedding_size", default=stated, minimum=stated)
    heads = c.integer("n_heads", minimum=1)
    hidden = c.integer("d_model", minimum=1)
    released = vocab == LLADA_VOCAB
    stops = r.stop_ids(LLADA_END if released else None, vocab)
    mask = r.mask_id(LLADA_MASK if released else None, vocab, stops)
    window = _first(r, ("block_length",), 32)
    return _checked(
        DenseSpec(
            family="llada",
            names="llada",
            hidden_size=hidden,
            num_layers=c.integer("n_layers", minimum=1),
            num_heads=heads,
            num_kv_heads=c.integer("n_kv_heads", default=heads, minimum=1),
            head_dim=hidden // heads,
            intermediate_size=c.integer("mlp_hidden_size", minimum=1),
            qk_norm=False,
            qkv_bias=False,
            rope_theta=c.number("rope_theta", default=500000.0, above=0.0),
            rms_norm_eps=c.number("rms_norm_eps", default=1e-5, above=0.0),
            tie_word_embeddings=c.boolean("weight_tying", default=False),
            vocab_size=vocab,
            max_position_embeddings=c.integer("max_sequence_length", minimum=1),
            blocks=Blocks(window, window, whole=True),
            mask_token_id=mask,
            stop_ids=stops,
            decoding="llada",
            defaults=r.settings(DecodeSettings(threshold=1.0, steps=window)),
            residual=read_residual(c, hidden),
            decoding_evidence="Decoding llada: an even share of each window per step, or all that"
            " is above the threshold (1 is the reference's rule).",
            notes=tuple(r.notes),
        )
    )


def _a2d_kind(r: Reading, folder_name: str) -> tuple[A2dRule, str]:
    for fields in (r.g, r.c):
        stated = fields.get("decoding")
        for kind in A2D_RULES:
            if stated == kind:
                return kind, f"Decoding {kind}: {fields.file} says so."
        if stated is not None:
            raise fields.refusal(
                "checkpoint.unsupported_value",
                "decoding",
                f"is {stated!r:.60}, which is not one of bd3lm, mdlm",
            )
    path = r.c.get("_name_or_path")
    for origin, text in (("_name_or_path", path), ("folder name", folder_name)):
        for kind in A2D_RULES:
            if isinstance(text, str) and kind in text.lower():
                return kind, f"Decoding {kind}: the {origin} says so."
    raise r.c.refusal(
        "checkpoint.decoding_unknown",
        "decoding",
        "is absent, and nothing says whether this model writes block by block (bd3lm) or on the"
        " whole sequence (mdlm)",
        'Add "decoding": "bd3lm" or "mdlm" to generation_config.json.',
    )


def _first(r: Reading, names: tuple[str, ...], default: int) -> int:
    """The first of some names that generation_config.json or config.json has."""
    for fields in (r.g, r.c):
        for name in names:
            if fields.get(name) is not None:
                return fields.integer(name, minimum=1)
    return default


def _refuse_other_layers(c: ConfigFields) -> None:
    types = c.get("layer_types")
    if isinstance(types, list) and any(item != "full_attention" for item in types):
        raise c.refusal(
            "checkpoint.unsupported_value",
            "layer_types",
            "names layers that are not full_attention, which this engine does not compute",
        )


def _checked(s: DenseSpec) -> DenseSpec:
    heads, context = (
        ("num_key_value_heads", "max_position_embeddings")
        if s.names == "hf"
        else ("n_kv_heads", "max_sequence_length")
    )
    c = ConfigFields({}, "config.json")
    code = "checkpoint.config_inconsistent"
    if s.num_heads % s.num_kv_heads:
        raise c.refusal(code, heads, f"is {s.num_kv_heads}, for {s.num_heads} query heads")
    if s.head_dim % 2:
        raise c.refusal(code, "head_dim", f"is {s.head_dim}; RoPE turns pairs of dimensions")
    if not s.blocks.whole and s.blocks.length > s.max_position_embeddings:
        raise c.refusal(code, context, f"is less than one block of {s.blocks.length}")
    return s


_HF_TELLTALE = "model.embed_tokens"
SDAR = Family(
    key="sdar",
    title="SDAR",
    model_types=("sdar",),
    architectures=("sdarforcausallm",),
    telltale=_HF_TELLTALE,
    read=read_sdar,
    parts="engine.families.dense",
    template=CHATML,
)
A2D = Family(
    key="a2d",
    title="Qwen3 BD3LM/MDLM",
    model_types=("a2d-qwen3",),
    architectures=("a2dqwen3",),
    telltale=_HF_TELLTALE,
    read=read_a2d,
    parts="engine.families.dense",
    template=CHATML,
)
FAST_DLLM = Family(
    key="fast_dllm",
    title="Fast-dLLM v2",
    model_types=("Fast_dLLM_Qwen",),
    architectures=("fast_dllm_qwen",),
    telltale=_HF_TELLTALE,
    read=read_fast_dllm,
    parts="engine.families.dense",
    template=CHATML,
)
DREAM = Family(
    key="dream",
    title="Dream",
    model_types=("Dream", "dream"),
    architectures=("dreammodel",),
    telltale=_HF_TELLTALE,
    read=read_dream,
    parts="engine.families.dense",
    template=CHATML,
)
LLADA = Family(
    key="llada",
    title="LLaDA (dense)",
    model_types=("llada",),
    architectures=("lladamodel",),
    telltale="model.transformer.wte",
    read=read_llada,
    parts="engine.families.dense",
)
