"""Which model family a folder holds, from its config and its tensor names.

Knows the names of the families people will try, built or not, so that a refusal can say what was
found. Knows no maths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.checkpoint.refusals import printable
from engine.errors import CheckpointError, UnsupportedFamilyError
from engine.models.config_fields import ConfigFields
from engine.models.llada2_spec import MODEL_TYPES

BUILT = "LLaDA2"

# model_type (or the start of the architecture's name, lower case) -> family. Diffusion models that
# are not built yet.
_NOT_BUILT = {
    "diffusion_gemma": "DiffusionGemma",
    "diffusiongemma": "DiffusionGemma",
    "sdar": "SDAR",
    "fast_dllm": "Fast-dLLM v2",
    "dream": "Dream",
    "lladamoe": "LLaDA-MoE",
    "llada": "LLaDA (dense)",
    "nemotron_labs_diffusion": "Nemotron-Labs-Diffusion",
    "nemotron_dllm": "Nemotron-Labs-Diffusion",
    "a2d": "dllm A2D",
}

# A module that only one family has. Decides when the config does not, and catches a config of
# another model.
_TELLTALES = {
    "model.word_embeddings": BUILT,
    "model.decoder.self_conditioning.pre_norm": "DiffusionGemma",
    "model.transformer.wte": "LLaDA (dense)",
    "diffusion_head": "Nemotron-Labs-Diffusion",
}


def family_from_config(config: Mapping[str, object]) -> str | None:
    """ "llada2", or None when config.json does not say. Raises UnsupportedFamilyError for anything
    else.
    """
    model_type = config.get("model_type")
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    architecture = next((name for name in names if isinstance(name, str)), "")
    if model_type is not None and not isinstance(model_type, str):
        raise ConfigFields(config, "config.json").refusal(
            "checkpoint.config_value", "model_type", f"is {model_type!r:.60}; it must be a name"
        )
    if model_type in MODEL_TYPES:
        return "llada2"
    if not model_type:
        if architecture.lower().startswith("llada2"):
            return "llada2"
        if not architecture:
            return None
    for text in (str(model_type or "").lower(), architecture.lower()):
        for start, family in _NOT_BUILT.items():
            if text.startswith(start) and not text.startswith("llada2"):
                raise _not_built(family, str(model_type or architecture))
    raise UnsupportedFamilyError(
        "checkpoint.unknown_family",
        f"config.json: model_type {printable(str(model_type or architecture))} is not a diffusion"
        f" language model that Unblur knows.",
        f"Choose a {BUILT} checkpoint.",
        file="config.json",
        item="model_type" if model_type else "architectures",
    )


def family_from_tensors(names: Iterable[str], stated: str | None) -> str:
    """ "llada2" when the tensors agree with the config (or decide alone). Raises CheckpointError
    otherwise.
    """
    present = {name.rpartition(".")[0] for name in names}  # modules: ".weight", ".weight_packed"
    found = next((family for name, family in _TELLTALES.items() if name in present), None)
    if found == BUILT or (found is None and stated is not None):
        return "llada2"
    if found is None:
        raise UnsupportedFamilyError(
            "checkpoint.unknown_family",
            "config.json has no model_type, and the tensor names are of no known family.",
            f"Choose a {BUILT} checkpoint.",
            file="config.json",
            item="model_type",
        )
    if stated is None:
        raise _not_built(found, "absent")
    raise CheckpointError(
        "checkpoint.family_disagrees",
        f"config.json: model_type says {BUILT}, but the tensors are those of {found}.",
        "Download config.json and the weights of one model.",
        file="config.json",
        item="model_type",
    )


def _not_built(family: str, model_type: str) -> UnsupportedFamilyError:
    return UnsupportedFamilyError(
        "checkpoint.unsupported_family",
        f"This is a {family} model (config.json: model_type {printable(model_type)}). That family"
        " is not built yet.",
        f"Choose a {BUILT} checkpoint.",
        file="config.json",
        item="model_type",
    )
