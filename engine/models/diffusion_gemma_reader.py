"""Reads the configs of a DiffusionGemma folder.

Knows config.json as released and as transformers writes it again, and generation_config.json
(models.md 2.2, 2.5). Refuses every value that would change the maths and that the engine does not
build. Knows no torch and reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.models.config_fields import ConfigFields, refuse_unbuilt
from engine.models.diffusion_gemma_spec import DiffusionGemmaSpec, LayerKind
from engine.models.family import Family
from engine.models.noise_canvas import NoiseCanvas
from engine.models.residual_spec import FIELD as RESIDUAL
from engine.models.token_fields import read_stop_ids
from engine.types import DecodeSettings

Config = Mapping[str, object]
SLIDING, FULL = "sliding_attention", "full_attention"
PERIOD = 6  # without layer_types: five sliding layers, then a full one
RELEASED_VOCAB, RELEASED_EOS = 262144, 1
GLOBAL_HEAD_DIM, SOFTCAP = 512, 30.0  # where config.json does not say
SAMPLER = "EntropyBoundSamplerConfig"

# Used when a folder brings no template of its own (models.md 2.5).
TEMPLATE = (
    "{{ bos_token | default('<bos>') }}"
    "{% for message in messages %}"
    "{% set name = 'model' if message.role == 'assistant' else message.role %}"
    "<|turn>{{ name }}\n{{ message.content }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)

# Values that the maths assumes. None stands for "absent or null".
_FIXED: dict[str, tuple[object, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh", None),
    "attention_bias": (False, None),
    "use_bidirectional_attention": ("vision", None),
    "tie_word_embeddings": (True, None),
}
_ROPE = {SLIDING: "default", FULL: "proportional"}


def read_diffusion_gemma(
    config: Config,
    generation_config: Config,
    *,
    folder_name: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> DiffusionGemmaSpec:
    """The spec of a folder. Raises CheckpointError naming the file and the field."""
    c = ConfigFields(config, "config.json")
    g = ConfigFields(generation_config, "generation_config.json")
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        raise c.refusal("checkpoint.config_missing", "text_config", "is absent or not an object")
    t = ConfigFields(nested, "config.json")
    refuse_unbuilt(c, {"tie_word_embeddings": (True, None), RESIDUAL: (None,)})
    refuse_unbuilt(t, _FIXED)
    notes: list[str] = []
    if config.get("vision_config") is not None:
        notes.append("The model can look at images; Unblur gives it text alone.")
    layers = t.integer("num_hidden_layers", minimum=1)
    full_layers = _full_layers(t, layers)
    sliding, full = _kinds(t, full_layers)
    vocab = t.integer("vocab_size", minimum=1)
    experts = t.integer("num_experts", minimum=1)
    chosen = t.integer("top_k_experts", minimum=1)
    heads = t.integer("num_attention_heads", minimum=1)
    for kind in (sliding, full):
        if heads % kind.kv_heads:
            raise _inconsistent(
                t, "num_key_value_heads", f"is {kind.kv_heads}, for {heads} query heads"
            )
    if chosen > experts:
        raise _inconsistent(t, "top_k_experts", f"is {chosen}, more than the {experts} experts")
    length = c.integer("canvas_length", default=256, minimum=1)
    context = t.integer("max_position_embeddings", minimum=1)
    if length >= context:
        raise _inconsistent(c, "canvas_length", f"is {length}, no less than the whole context")
    released = RELEASED_EOS if vocab == RELEASED_VOCAB else None
    stops = read_stop_ids(_with_text(c, t), g, vocab, notes, released)
    return DiffusionGemmaSpec(
        hidden_size=t.integer("hidden_size", minimum=1),
        num_layers=layers,
        num_heads=heads,
        sliding=sliding,
        full=full,
        full_layers=full_layers,
        intermediate_size=t.integer("intermediate_size", minimum=1),
        moe_intermediate_size=t.integer("moe_intermediate_size", minimum=1),
        num_experts=experts,
        num_experts_per_tok=chosen,
        rms_norm_eps=t.number("rms_norm_eps", default=1e-6, above=0.0),
        softcap=t.number("final_logit_softcapping", default=SOFTCAP, above=0.0),
        vocab_size=vocab,
        max_position_embeddings=context,
        block_length=length,
        image_token_id=c.optional_id("image_token_id", vocab),
        stop_ids=tuple(dict.fromkeys(stops)),
        defaults=DecodeSettings(
            steps=g.integer("max_denoising_steps", default=48, minimum=1),
            temperature=1.0,
            noise=_noise(g),
        ),
        decoding_evidence="Decoding entropy-bound: a canvas of noise, as DiffusionGemma was"
        " trained for.",
        notes=tuple(notes),
    )


def _with_text(c: ConfigFields, t: ConfigFields) -> ConfigFields:
    """End tokens stand in either object."""
    found = c.get("eos_token_id")
    return ConfigFields({"eos_token_id": t.get("eos_token_id") if found is None else found}, c.file)


def _full_layers(t: ConfigFields, layers: int) -> tuple[int, ...]:
    types = t.get("layer_types")
    if types is None:
        types = [
            FULL if (n + 1) % PERIOD == 0 or n + 1 == layers else SLIDING for n in range(layers)
        ]
    if not isinstance(types, list) or any(item not in _ROPE for item in types):
        raise t.refusal(
            "checkpoint.unsupported_value",
            "layer_types",
            f"names layers that are neither {SLIDING} nor {FULL}, which this engine does not"
            " compute",
        )
    if len(types) != layers:
        raise _inconsistent(t, "layer_types", f"lists {len(types)} layers of {layers}")
    if types[-1] != FULL or SLIDING not in types:
        raise t.refusal(
            "checkpoint.unsupported_value",
            "layer_types",
            f"must have {SLIDING} layers and end with a {FULL} one",
        )
    return tuple(n for n, item in enumerate(types) if item == FULL)


def _kinds(t: ConfigFields, full_layers: tuple[int, ...]) -> tuple[LayerKind, LayerKind]:
    """Sliding and full layers."""
    head_dim = t.integer("head_dim", default=256, minimum=2)
    kv_heads = t.integer("num_key_value_heads", minimum=1)
    window = t.integer("sliding_window", minimum=2)
    theta, _ = _rope(t, SLIDING)
    sliding = LayerKind(_even(t, "head_dim", head_dim), kv_heads, window, head_dim // 2, theta)
    full_dim, full_heads = _full_heads(t, full_layers, head_dim, kv_heads)
    theta, share = _rope(t, FULL)
    full = LayerKind(
        _even(t, "global_head_dim", full_dim),
        full_heads,
        None,
        int(share * full_dim // 2),
        theta,
    )
    return sliding, full


def _full_heads(
    t: ConfigFields, full_layers: tuple[int, ...], head_dim: int, kv_heads: int
) -> tuple[int, int]:
    """Head dimension and KV heads of full layers: in two keys as released, or per layer as
    transformers writes them."""
    per_layer = t.get("per_layer_config")
    if per_layer is None:
        return (
            t.integer("global_head_dim", default=GLOBAL_HEAD_DIM, minimum=2),
            t.integer("num_global_key_value_heads", default=kv_heads, minimum=1),
        )
    names = [str(layer) for layer in full_layers]
    if not isinstance(per_layer, Mapping) or not set(per_layer) <= set(names):
        raise _inconsistent(t, "per_layer_config", f"is not about the {FULL} layers")
    found: set[tuple[int, int]] = set()
    for layer in names:
        value = per_layer.get(layer, {})  # what a layer does not change is as everywhere
        known = isinstance(value, Mapping) and set(value) <= {"head_dim", "num_key_value_heads"}
        if not known:
            raise t.refusal(
                "checkpoint.unsupported_value",
                "per_layer_config",
                f"changes more than the heads of layer {layer}",
            )
        one = ConfigFields(value, t.file)
        dim = one.integer("head_dim", default=head_dim, minimum=2)
        found.add((dim, one.integer("num_key_value_heads", default=kv_heads, minimum=1)))
    if len(found) > 1:
        raise t.refusal(
            "checkpoint.unsupported_value",
            "per_layer_config",
            f"gives {FULL} layers different heads, which this engine does not compute",
        )
    return found.pop()


def _rope(t: ConfigFields, kind: str) -> tuple[float, float]:
    """theta, and the share of dimensions that are turned."""
    default = {"rope_type": _ROPE[kind], "rope_theta": 1e4 if kind == SLIDING else 1e6}
    if kind == FULL:
        default["partial_rotary_factor"] = 0.25
    every = t.get("rope_parameters")
    value = default if every is None else every.get(kind) if isinstance(every, Mapping) else None
    known = {"rope_type", "rope_theta", "partial_rotary_factor"}
    if (
        not isinstance(value, Mapping)
        or value.get("rope_type") != _ROPE[kind]
        or set(value) - known
    ):
        raise t.refusal(
            "checkpoint.unsupported_value",
            "rope_parameters",
            f"gives {kind} {value!r:.80}; only the {_ROPE[kind]} rotary embedding is computed",
        )
    fields = ConfigFields(value, t.file)
    share = fields.number("partial_rotary_factor", default=1.0, above=0.0, maximum=1.0)
    if kind == SLIDING and share != 1.0:
        raise t.refusal(
            "checkpoint.unsupported_value",
            "partial_rotary_factor",
            f"is {share:g} for {kind}, whose heads are turned whole here",
        )
    return fields.number("rope_theta", default=float(default["rope_theta"]), above=0.0), share


def _noise(g: ConfigFields) -> NoiseCanvas:
    sampler = g.get("sampler_config")
    if sampler is None:
        sampler = {}
    name = sampler.get("_cls_name", SAMPLER) if isinstance(sampler, Mapping) else None
    if not isinstance(sampler, Mapping) or name != SAMPLER:
        raise g.refusal(
            "checkpoint.unsupported_value",
            "sampler_config",
            f"is {name or sampler!r:.60}; only the entropy-bound sampler is built",
        )
    base = NoiseCanvas()
    bound = ConfigFields(sampler, g.file).number(
        "entropy_bound", default=base.entropy_bound, above=0.0
    )
    t_min = g.number("t_min", default=base.t_min, minimum=0.0)
    t_max = g.number("t_max", default=base.t_max, above=0.0)
    if t_max <= t_min:
        raise g.refusal(
            "checkpoint.config_inconsistent", "t_max", f"is {t_max:g}, no more than t_min {t_min:g}"
        )
    return NoiseCanvas(
        entropy_bound=bound,
        t_min=t_min,
        t_max=t_max,
        stability=g.integer("stability_threshold", default=base.stability, minimum=0),
        confidence=g.number("confidence_threshold", default=base.confidence, above=0.0),
    )


def _even(t: ConfigFields, name: str, value: int) -> int:
    if value % 2:
        raise _inconsistent(t, name, f"is {value}; RoPE turns pairs of dimensions")
    return value


def _inconsistent(c: ConfigFields, name: str, problem: str) -> Exception:
    return c.refusal("checkpoint.config_inconsistent", name, problem)


FAMILY = Family(
    key="diffusion_gemma",
    title="DiffusionGemma",
    model_types=("diffusion_gemma",),
    architectures=("diffusiongemma",),
    telltale="model.decoder.self_conditioning.pre_norm",
    read=read_diffusion_gemma,
    parts="engine.families.diffusion_gemma",
    template=TEMPLATE,
    kv_fp8=True,
)
