"""What config.json and hf_quant_config.json say about quantisation, and whether that is a scheme
the engine reads.

Only refuses schemes that tensors alone would not give away. Which module is packed is decided by
tensors, never by the lists here: exclude patterns can match more than they mean (`model.layers.1*`
also matches layers 10 to 19).
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.checkpoint.folder import ModelFolder
from engine.checkpoint.refusals import printable, refuse
from engine.errors import CheckpointError

_MODELOPT_ALGORITHMS = ("NVFP4", "W4A16_NVFP4", "MIXED_PRECISION")
_CT_FORMATS = ("nvfp4-pack-quantized", "mixed-precision", "dense")


def check_quantisation(folder: ModelFolder) -> tuple[str, ...]:
    """Notes for a person. Raises CheckpointError naming the file and field of a scheme that is not
    read.
    """
    notes: list[str] = []
    section = folder.config.get("quantization_config")
    if section is not None:
        if not isinstance(section, dict):
            raise _refused("config.json", "quantization_config", "is not an object")
        method = section.get("quant_method")
        if method == "compressed-tensors":
            _check_ct(section)
        elif method == "modelopt":
            _check_algorithm("config.json", "quant_algo", section.get("quant_algo"))
        else:
            raise _refused("config.json", "quant_method", f"is {printable(repr(method))}")
    declared = folder.hf_quant_config.get("quantization")
    if isinstance(declared, dict):
        _check_algorithm("hf_quant_config.json", "quant_algo", declared.get("quant_algo"))
        size = declared.get("group_size")
        if size not in (None, 16):
            raise _refused("hf_quant_config.json", "group_size", f"is {size!r}; NVFP4 has 16")
        if declared.get("kv_cache_quant_algo"):
            notes.append("The checkpoint was meant for a quantised KV cache; here it is not.")
    return tuple(notes)


def _check_algorithm(file: str, item: str, value: object) -> None:
    if value is not None and value not in _MODELOPT_ALGORITHMS:
        raise _refused(file, item, f"is {printable(repr(value))}")


def _check_ct(section: Mapping[str, object]) -> None:
    groups = section.get("config_groups")
    formats = [section.get("format")]
    if isinstance(groups, dict):
        formats += [group.get("format") for group in groups.values() if isinstance(group, dict)]
    for value in formats:
        if value is not None and value not in _CT_FORMATS:
            raise _refused("config.json", "format", f"is {printable(repr(value))}")


def _refused(file: str, item: str, problem: str) -> CheckpointError:
    return refuse(
        "checkpoint.unsupported_quantisation",
        f"{file}: {item} {problem}, which is not read here.",
        "Use a checkpoint in bfloat16 or in NVFP4 (ModelOpt, or compressed-tensors"
        " nvfp4-pack-quantized).",
        file=file,
        item=item,
    )
