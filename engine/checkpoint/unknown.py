"""What can be said of a model folder whose family the engine does not run.

Knows config.json's common fields and the headers of weight files. Judges nothing: a folder that is
broken besides simply yields fewer facts.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from engine.checkpoint.folder import TensorFiles, read_folder
from engine.checkpoint.refusals import printable
from engine.errors import CheckpointError
from engine.models.registry import NOT_BUILT

_SIZES = ("hidden_size", "d_model", "num_hidden_layers", "n_layers", "vocab_size", "num_experts")
_CAUSAL = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True)
class UnknownModel:
    """architecture, model_type: as config.json says, "" where it does not. sizes: numbers of
    config.json. dtypes: stored dtype -> bytes. kind: what the names suggest."""

    architecture: str
    model_type: str
    kind: str
    sizes: dict[str, int]
    tensors: int
    total_bytes: int
    dtypes: dict[str, int]
    quantisation: str


def describe_unknown(path: str | os.PathLike[str]) -> UnknownModel | None:
    """None where even config.json cannot be read."""
    try:
        folder = read_folder(path)
    except CheckpointError:
        return None
    config = folder.config
    nested = config.get("text_config")
    fields = {**(nested if isinstance(nested, dict) else {}), **config}
    listed = config.get("architectures")
    names = [n for n in listed if isinstance(n, str)] if isinstance(listed, list) else []
    architecture = printable(names[0], 80) if names else ""
    dtypes: Counter[str] = Counter()
    tensors = 0
    try:
        files = TensorFiles(folder)
    except CheckpointError:
        files = None
    if files is not None:
        for entry in files.entries.values():
            dtypes[entry.dtype] += entry.nbytes
            tensors += 1
        files.close()
    section = config.get("quantization_config")
    method = section.get("quant_method") if isinstance(section, dict) else None
    return UnknownModel(
        architecture=architecture,
        model_type=printable(str(config.get("model_type") or ""), 80),
        kind=_kind(str(config.get("model_type") or architecture), architecture),
        sizes={
            name: value
            for name in _SIZES
            if isinstance(value := fields.get(name), int) and not isinstance(value, bool)
        },
        tensors=tensors,
        total_bytes=sum(dtypes.values()),
        dtypes=dict(dtypes.most_common()),
        quantisation=printable(str(method), 80) if method else "",
    )


def _kind(name: str, architecture: str) -> str:
    if name.lower().startswith(tuple(NOT_BUILT)):
        return "a diffusion language model that Unblur does not run yet"
    if architecture.endswith(_CAUSAL):
        return "named like a language model that writes from left to right; Unblur runs none"
    return "unknown to Unblur"
