"""What config.json and hf_quant_config.json say of weight-only NVFP4, as the two public tools write
it.

Knows fields and lists of excluded modules. Knows no tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.checkpoint.folder import JsonObject
from engine.kernels.nvfp4 import BLOCK

PRODUCER = {"name": "unblur", "version": "0.1.0"}
# The release of compressed-tensors whose fields these are.
_FORMAT_VERSION = "0.20.1"


def modelopt_config(excluded: Sequence[str]) -> tuple[JsonObject, JsonObject]:
    """config.json's `quantization_config` and hf_quant_config.json. excluded: module names, or
    patterns in the manner of a shell."""
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    section: JsonObject = {
        "quant_method": "modelopt",
        "quant_algo": "W4A16_NVFP4",
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        "ignore": list(excluded),
        "producer": PRODUCER,
    }
    file: JsonObject = {
        "producer": PRODUCER,
        "quantization": {
            "quant_algo": "W4A16_NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": BLOCK,
            "exclude_modules": list(excluded),
        },
    }
    return section, file


def compressed_tensors_config(excluded: Sequence[str]) -> JsonObject:
    """config.json's `quantization_config`. excluded: as for `modelopt_config`; patterns become
    regular expressions, which is what this format has."""
    weights = {
        "dynamic": False,
        "group_size": BLOCK,
        "num_bits": 4,
        "scale_dtype": "torch.float8_e4m3fn",
        "strategy": "tensor_group",
        "symmetric": True,
        "type": "float",
    }
    group = {
        "format": "nvfp4-pack-quantized",
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "nvfp4-pack-quantized",
        "global_compression_ratio": None,
        "ignore": [_regex(name) for name in excluded],
        "kv_cache_scheme": None,
        "moe_sparsity_config": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": _FORMAT_VERSION,
    }


def _regex(name: str) -> str:
    if not name.endswith(".*"):
        return name
    return f"re:{re.escape(name[:-2])}\\..*"
