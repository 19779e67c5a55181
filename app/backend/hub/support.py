"""Whether the engine runs a model, in its own words: nothing here knows a family by name.

It knows the engine's detection (family, quantisation scheme, tensor inventory) and hands it what
was read over the network instead of a folder. It refuses to promise: what was not looked at is
"unknown".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.checkpoint.family import family_from_config, family_from_tensors
from engine.checkpoint.folder import ModelFolder
from engine.checkpoint.inventory import Inventory, take_inventory
from engine.checkpoint.quantisation import check_quantisation
from engine.checkpoint.refusals import printable
from engine.checkpoint.tensor_file import TensorEntry
from engine.errors import CheckpointError, UnsupportedFamilyError
from engine.models.family import FamilySpec

MOST_CONTEXT = 10**12  # tokens
WORDS_LIMIT = 60  # letters of what a stranger's config calls its quantisation


class Supported(StrEnum):
    YES = "supported"
    NOT_YET = "not yet"
    NO = "refused"
    UNKNOWN = "unknown"


class Looked(StrEnum):
    """At what: the more, the surer."""

    NOTHING = "nothing"
    CONFIG = "config.json"
    HEADERS = "config.json and every tensor's name, type and shape"


@dataclass(frozen=True)
class Support:
    """reason: a sentence for a person. family: its name, "" if unknown."""

    state: Supported
    reason: str
    looked: Looked
    family: str = ""


@dataclass(frozen=True)
class JsonFiles:
    """The JSON of a repository, parsed; {} for a file that is not there."""

    config: dict[str, object]
    generation_config: dict[str, object]
    hf_quant_config: dict[str, object]
    tokenizer_config: dict[str, object]


@dataclass(frozen=True)
class Layout:
    """A model that the engine would load: its numbers, and where every weight is."""

    spec: FamilySpec
    inventory: Inventory


def support_of_config(config: Mapping[str, object] | None) -> Support:
    """From config.json alone (or the extract of it that a search gives)."""
    if not config:
        return Support(Supported.UNKNOWN, "Its config.json has not been read.", Looked.NOTHING)
    try:
        family = family_from_config(config)
    except CheckpointError as error:
        return refusal(error, Looked.CONFIG)
    if family is None:
        reason = "Its config.json does not say which family it is."
        return Support(Supported.UNKNOWN, reason, Looked.CONFIG)
    if family.caveat:
        return Support(Supported.UNKNOWN, family.caveat, Looked.CONFIG, family.title)
    reason = f"{family.title} models run here. This one's tensors have not been looked at."
    return Support(Supported.YES, reason, Looked.CONFIG, family.title)


def support_of_model(
    name: str,
    files: JsonFiles,
    entries: Mapping[str, TensorEntry],
    shards: Sequence[str],
) -> tuple[Support, Layout | None]:
    """From everything but the values, by the checks that loading makes. name: of the folder.
    Layout is None when the engine would refuse."""
    folder = ModelFolder(
        Path(name), files.config, files.generation_config, files.hf_quant_config, (), ()
    )
    try:
        stated = family_from_config(files.config)
        check_quantisation(folder)
        family = family_from_tensors(entries, stated)
        spec = family.read(
            files.config,
            files.generation_config,
            folder_name=name,
            special_tokens=added_tokens(files.tokenizer_config),
        )
        inventory = take_inventory(entries, tuple(shards), spec)
    except CheckpointError as error:
        return refusal(error, Looked.HEADERS), None
    reason = f"A {family.title} model; every tensor is where the engine expects it."
    state = Supported.UNKNOWN if family.caveat else Supported.YES
    reason = f"{reason} {family.caveat}".rstrip()
    return Support(state, reason, Looked.HEADERS, family.title), Layout(spec, inventory)


def refusal(error: CheckpointError, looked: Looked) -> Support:
    unbuilt = isinstance(error, UnsupportedFamilyError)
    known = error.code == "checkpoint.unsupported_family"
    state = Supported.NOT_YET if unbuilt and known else Supported.NO
    return Support(state, error.message, looked)


def stated_context(config: Mapping[str, object]) -> int | None:
    """The longest context that a config.json states; None for what cannot be one."""
    stated = config.get("max_position_embeddings")
    return stated if type(stated) is int and 0 < stated <= MOST_CONTEXT else None


def added_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, int]:
    """Text -> id of the tokens beside the vocabulary, which name the mask where no config does."""
    listed = tokenizer_config.get("added_tokens_decoder")
    found: dict[str, int] = {}
    for number, token in listed.items() if isinstance(listed, dict) else ():
        text = token.get("content") if isinstance(token, dict) else None
        if isinstance(text, str) and str(number).isdigit():
            found[text] = int(number)
    return found


def json_object(data: bytes) -> dict[str, object]:
    """A JSON object from a file of a repository. Raises ValueError."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def quantisation_words(files: JsonFiles, entries: Mapping[str, TensorEntry] | None = None) -> str:
    """How the weights are stored, e.g. "bfloat16" or "NVFP4 (ModelOpt)"; "" while unknown. Tensors
    decide where they are known; a config may say more than is true."""
    if entries is not None:
        names = set(entries)
        if any(name.endswith(".weight_packed") for name in names):
            return "NVFP4 (compressed-tensors)"
        if any(name.endswith(".weight_scale_2") for name in names):
            return "NVFP4 (ModelOpt)"
        largest = max(entries.values(), key=lambda entry: entry.nbytes, default=None)
        words = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
        return words.get(largest.dtype, largest.dtype) if largest is not None else ""
    section = files.config.get("quantization_config")
    if isinstance(section, dict):
        method = {"modelopt": "ModelOpt"}.get(str(section.get("quant_method")), "")
        method = method or str(section.get("quant_method"))
        algorithm = str(section.get("quant_algo") or section.get("format") or "")
        words = f"{'NVFP4' if 'nvfp4' in algorithm.lower() else algorithm} ({method})"
        return printable(words, WORDS_LIMIT)
    stated = files.config.get("torch_dtype") or files.config.get("dtype")
    return printable(stated, WORDS_LIMIT) if isinstance(stated, str) else ""
