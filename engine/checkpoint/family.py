"""Which model family a folder holds, from its config and its tensor names.

Knows how families are recognised (`engine.models.registry`), built or not, so that a refusal can
say what was found. Knows no maths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.checkpoint.refusals import printable
from engine.errors import CheckpointError, UnsupportedFamilyError
from engine.models.config_fields import ConfigFields
from engine.models.family import Family
from engine.models.registry import FAMILIES, NOT_BUILT, NOT_BUILT_TELLTALES, built

BASES = ("qwen2", "qwen3")  # what a diffusion checkpoint may go on calling itself


def family_from_config(config: Mapping[str, object]) -> Family | None:
    """The family, or None when config.json does not say. Raises UnsupportedFamilyError for one
    that is not built or not known."""
    model_type = config.get("model_type")
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    architecture = next((name for name in names if isinstance(name, str)), "")
    if model_type is not None and not isinstance(model_type, str):
        raise ConfigFields(config, "config.json").refusal(
            "checkpoint.config_value", "model_type", f"is {model_type!r:.60}; it must be a name"
        )
    for family in FAMILIES:
        said = model_type in family.model_types
        if not model_type or model_type in BASES:
            said = architecture.lower().startswith(family.architectures)
        if said and family.claims(config):
            return family
    if not model_type and not architecture:
        return None
    for text in (str(model_type or "").lower(), architecture.lower()):
        for start, title in NOT_BUILT.items():
            if text.startswith(start):
                raise _not_built(title, str(model_type or architecture))
    raise UnsupportedFamilyError(
        "checkpoint.unknown_family",
        f"config.json: model_type {printable(str(model_type or architecture))} is not a diffusion"
        f" language model that Unblur knows.",
        f"Choose a {built()} checkpoint.",
        file="config.json",
        item="model_type" if model_type else "architectures",
    )


def family_from_tensors(names: Iterable[str], stated: Family | None) -> Family:
    """The family, when the tensors agree with the config (or decide alone). Raises CheckpointError
    otherwise."""
    present = {name.rpartition(".")[0] for name in names}  # modules: ".weight", ".weight_packed"
    telltale = {family.telltale for family in FAMILIES if family.telltale in present}
    found = [family for family in FAMILIES if family.telltale in telltale]
    unbuilt = next((title for name, title in NOT_BUILT_TELLTALES.items() if name in present), None)
    if stated is not None:
        if stated in found or (not found and unbuilt is None):
            return stated
        title = found[0].title if found else unbuilt
        raise CheckpointError(
            "checkpoint.family_disagrees",
            f"config.json: model_type says {stated.title}, but the tensors are those of {title}.",
            "Download config.json and the weights of one model.",
            file="config.json",
            item="model_type",
        )
    if len(found) == 1:
        return found[0]
    if unbuilt is not None:
        raise _not_built(unbuilt, "absent")
    raise UnsupportedFamilyError(
        "checkpoint.unknown_family",
        "config.json has no model_type, and the tensor names are of no one known family.",
        f"Choose a {built()} checkpoint.",
        file="config.json",
        item="model_type",
    )


def _not_built(family: str, model_type: str) -> UnsupportedFamilyError:
    return UnsupportedFamilyError(
        "checkpoint.unsupported_family",
        f"This is a {family} model (config.json: model_type {printable(model_type)}). That family"
        " is not built yet.",
        f"Choose a {built()} checkpoint.",
        file="config.json",
        item="model_type",
    )
