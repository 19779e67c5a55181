"""The families the engine runs, and the diffusion families it only knows by name.

One line a family. Knows no torch; a family's parts are imported when a checkpoint of it is loaded.
"""

from __future__ import annotations

from engine.models import dense_readers, diffusion_gemma_reader, llada2_spec, qwen_dlm
from engine.models.family import Family

FAMILIES: tuple[Family, ...] = (
    llada2_spec.FAMILY,
    dense_readers.SDAR,
    dense_readers.A2D,
    dense_readers.FAST_DLLM,
    dense_readers.DREAM,
    dense_readers.LLADA,
    qwen_dlm.FAMILY,
    diffusion_gemma_reader.FAMILY,
)

# Start of model_type, or of the architecture's name, lower case -> family. Diffusion models that
# are not built yet.
NOT_BUILT = {
    "sdar_moe": "SDAR (mixture of experts)",
    "lladamoe": "LLaDA-MoE",
    "nemotron_labs_diffusion": "Nemotron-Labs-Diffusion",
    "nemotron_dllm": "Nemotron-Labs-Diffusion",
    "a2d": "dllm A2D",
}

# A module that only one family has, of families that are not built yet.
NOT_BUILT_TELLTALES = {
    "diffusion_head": "Nemotron-Labs-Diffusion",
}


def family_of(key: str) -> Family:
    """The family with this key. StopIteration for one that is not there."""
    return next(family for family in FAMILIES if family.key == key)


def built() -> str:
    """Names of the families that run, for a sentence."""
    titles = list(dict.fromkeys(family.title for family in FAMILIES))
    return titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} or {titles[-1]}"
