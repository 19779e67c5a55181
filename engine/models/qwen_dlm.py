"""The QwenDLM configuration: Qwen3's layers, a canvas of noise on an absolute grid, a renoising
sampler, a residual adapter (models.md 3.7).

Built from this project's own parts. **The released QwenDLM files have not been read or checked**:
what they must mean to be run here is assumed, and every assumption is said. Fields of the configs
that this reader does not know are named in a note, never passed over. Knows no torch and reads no
files.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.models.dense_readers import CHATML, Config, Reading
from engine.models.dense_spec import Blocks, DenseSpec
from engine.models.family import Family
from engine.models.noise_canvas import NoiseCanvas
from engine.models.residual_spec import FIELD as RESIDUAL
from engine.types import DecodeSettings

UNCHECKED = (
    "QwenDLM has not been checked against its released files: this is Unblur's own reading of what"
    " is public about it, and answers may be wrong."
)
CANVAS = 256
STEPS = 48

# What the reader reads of config.json, and what transformers writes there that changes nothing.
_READ = {
    "model_type",
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "tie_word_embeddings",
    "hidden_act",
    "attention_bias",
    "use_sliding_window",
    "layer_types",
    "eos_token_id",
    "canvas_length",
    "commit_attention",
    "quantization_config",
    RESIDUAL,
}
_HARMLESS = {
    "_name_or_path",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "initializer_range",
    "max_window_layers",
    "pad_token_id",
    "sliding_window",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
_GENERATION = {
    "_from_model_config",
    "bos_token_id",
    "confidence_threshold",
    "do_sample",
    "entropy_bound",
    "eos_token_id",
    "max_denoising_steps",
    "max_length",
    "max_new_tokens",
    "pad_token_id",
    "seed",
    "stability_threshold",
    "t_max",
    "t_min",
    "temperature",
    "top_k",
    "top_p",
    "transformers_version",
}


def read_qwen_dlm(
    config: Config,
    generation_config: Config,
    *,
    folder_name: str = "",
    special_tokens: Mapping[str, int] | None = None,
) -> DenseSpec:
    """Raises CheckpointError naming the file and the field."""
    r = Reading(config, generation_config, special_tokens)
    g = r.g
    r.notes.append(UNCHECKED)
    length = r.c.integer("canvas_length", default=CANVAS, minimum=1)
    if r.c.get("canvas_length") is None:
        r.notes.append(f"Assumed, since config.json does not say: canvases of {CANVAS} tokens.")
    causal = _commits_causally(r)
    noise = NoiseCanvas(
        entropy_bound=g.number("entropy_bound", default=0.1, minimum=0.0),
        t_min=g.number("t_min", default=0.4, above=0.0),
        t_max=g.number("t_max", default=0.8, above=0.0),
        stability=g.integer("stability_threshold", default=1, minimum=0),
        confidence=g.number("confidence_threshold", default=0.005, above=0.0),
    )
    if g.get("entropy_bound") is None:
        r.notes.append("Assumed, since nothing says otherwise: DiffusionGemma's sampler settings.")
    if r.c.get(RESIDUAL) is None:
        r.notes.append("The checkpoint brings no residual adapter (config.json: residual_input).")
    _name_unknown_fields(r)
    steps = g.integer("max_denoising_steps", default=STEPS, minimum=1)
    base = DecodeSettings(steps=steps, temperature=1.0, noise=noise)
    blocks = Blocks(length, length, causal_commit=causal)
    evidence = "Decoding entropy-bound: a canvas of noise, renoised where it is not sure."
    return r.hf_spec("qwen_dlm", blocks, "entropy-bound", evidence, base, bias=False, noise=True)


def _commits_causally(r: Reading) -> bool:
    stated = r.c.get("commit_attention")
    if stated is None:
        r.notes.append(
            "Assumed, since config.json does not say (commit_attention): finished tokens see only"
            " what is before them."
        )
    elif stated not in ("causal", "bidirectional"):
        raise r.c.refusal(
            "checkpoint.unsupported_value",
            "commit_attention",
            f"is {stated!r:.60}, which is not one of causal, bidirectional",
        )
    return stated != "bidirectional"


def _name_unknown_fields(r: Reading) -> None:
    for fields, known in ((r.c, _READ | _HARMLESS), (r.g, _GENERATION)):
        unknown = sorted(name for name in fields.values if name not in known)
        if unknown:
            r.notes.append(
                f"{fields.file} has fields whose meaning is not known here, and which are not used:"
                f" {', '.join(unknown)[:300]}."
            )


FAMILY = Family(
    key="qwen_dlm",
    title="QwenDLM (unchecked)",
    model_types=("qwen_dlm", "qwendlm", "QwenDLM"),
    architectures=("qwendlm", "qwen_dlm"),
    telltale="model.embed_tokens",
    read=read_qwen_dlm,
    parts="engine.families.dense",
    template=CHATML,
    caveat=UNCHECKED,
)
