"""Writes a trained demo as checkpoint folders: NVFP4 in ModelOpt's layout, and the bfloat16 master.

    python -m trainer.demo_export --from runs/demo --tokenizer assets/demo \
        --nvfp4 assets/demo --bf16 runs/demo-bf16

Reads a run folder or the small files that `trainer.pretrain --carry` wrote. Both folders come from
the same bfloat16 weights and are opened by the engine's own validation before this program calls
them done. Knows the file layout of models.md 1.3 and 5a; the quantiser is the engine's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import open_checkpoint
from engine.checkpoint.quantiser.layout_config import modelopt_config
from engine.errors import CheckpointError, UnblurError
from engine.kernels.nvfp4 import global_scale_of, quantize
from trainer.demo_config import Shape, Vocabulary, generation_config, model_config
from trainer.pretrain import read_vocabulary
from trainer.pretrain_files import BIAS, load_carried, read_state
from trainer.qat import part_of

MAX_BYTES = 24 * 10**6  # of the folder that goes into git

# Training stack name -> checkpoint name, {n} the layer and {e} the expert.
_NAMES = {
    "word_embeddings.weight": "model.word_embeddings",
    "norm.weight": "model.norm",
    "lm_head.weight": "lm_head",
}
_EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}

README = """# The demo model of Unblur

A {parameters:.1f} M parameter mixture-of-experts diffusion language model of the LLaDA2 family,
trained from scratch by `trainer/pretrain.py` on examples that generators in this repository make
from a seed. It knows a closed set of skills and nothing else; it is not a general assistant.
How it was trained, how good it is and how to make it again: docs/demo-model.md.

Weights: {quantised} in NVFP4 (ModelOpt's layout), the rest in bfloat16. Licence: Apache-2.0, as the
rest of this repository.
"""


def load_masters(folder: Path) -> tuple[dict[str, Tensor], Tensor, dict[str, Any]]:
    """Masters bfloat16 [L, ...] by stack name, expert biases float32 [layers, E] and the state of a
    run folder or a carried folder. Raises CheckpointError when it is neither."""
    state = read_state(folder)
    if state is None:
        raise CheckpointError(
            "demo_export.no_run",
            f"{folder} holds no training run (no state.json).",
            "Name a folder that trainer.pretrain wrote.",
            file=str(folder),
        )
    if "carried" in state:
        masters, bias = load_carried(folder, state)
        return masters, bias, state
    tensors = load_file(folder / state["tensors"])
    masters = {
        key.removeprefix("master/"): value.to(torch.bfloat16)
        for key, value in tensors.items()
        if key.startswith("master/")
    }
    return masters, tensors[BIAS], state


def checkpoint_matrices(
    masters: dict[str, Tensor], bias: Tensor, shape: Shape
) -> Iterator[tuple[str, str, Tensor]]:
    """Every tensor of the checkpoint as (stack it is of, name, values): 2-D matrices bfloat16 named
    without `.weight`, 1-D ones with their full name."""
    for stack, values in masters.items():
        if stack in _NAMES:
            name = _NAMES[stack] + ("" if values.dim() == 3 else ".weight")
            yield stack, name, values[0]
            continue
        rest = stack.removeprefix("layers.*.")
        first = _first_layer(rest, shape)
        for index, value in enumerate(values):
            base = f"model.layers.{first + index}."
            if rest.startswith("mlp.experts."):
                projection = _EXPERTS[rest.rpartition(".")[2]]
                for expert, matrix in enumerate(value):
                    yield stack, f"{base}mlp.experts.{expert}.{projection}", matrix
            elif value.dim() == 2:
                yield stack, base + rest.removesuffix(".weight"), value
            else:
                yield stack, base + rest, value
    for index, row in enumerate(bias):
        name = f"model.layers.{shape.dense_layers + index}.mlp.gate.expert_bias"
        yield "", name, row.float()


def _first_layer(name: str, shape: Shape) -> int:
    """The layer that a stack's first entry belongs to: routed layers come after the dense ones."""
    sparse = name.startswith(("mlp.experts.", "mlp.shared_experts.", "mlp.gate."))
    return shape.dense_layers if sparse else 0


def pack_tensors(
    masters: dict[str, Tensor], bias: Tensor, shape: Shape, parts: frozenset[str]
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of the NVFP4 checkpoint, and the matrices that stay as they are."""
    entries = list(checkpoint_matrices(masters, bias, shape))
    matrices = {name: value for _, name, value in entries}
    tensors: dict[str, Tensor] = {}
    plain: list[str] = []
    for stack, name, value in entries:
        if value.dim() == 1:
            tensors[name] = value.contiguous()
        elif part_of(stack) in parts:
            packed = quantize(value.float(), _shared_scale(name, matrices))
            tensors[f"{name}.weight"] = packed.codes
            tensors[f"{name}.weight_scale"] = packed.scales
            tensors[f"{name}.weight_scale_2"] = packed.global_scale
        else:
            tensors[f"{name}.weight"] = value.contiguous()
            plain.append(name)
    return tensors, plain


def _shared_scale(name: str, matrices: dict[str, Tensor]) -> Tensor:
    """The second level scale of a matrix; gate and up of one MLP have the larger one of the two."""
    scale = global_scale_of(matrices[name].float())
    base, _, projection = name.rpartition(".")
    partner = {"gate_proj": "up_proj", "up_proj": "gate_proj"}.get(projection)
    if partner is None:
        return scale
    return torch.maximum(scale, global_scale_of(matrices[f"{base}.{partner}"].float()))


def write_folder(
    folder: Path,
    tokenizer: Path,
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    generation: dict[str, Any],
    extra: dict[str, Any],
) -> None:
    """Writes a checkpoint folder and proves that the engine opens it. extra: further JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / name).resolve() != (folder / name).resolve():
            shutil.copyfile(tokenizer / name, folder / name)
    files = {"config.json": config, "generation_config.json": generation, **extra}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    part = folder / "model.safetensors.part"
    save_file(tensors, part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(folder / "model.safetensors")
    open_checkpoint(folder).release()


def export(
    source: Path,
    tokenizer: Path,
    nvfp4: Path | None,
    bf16: Path | None,
    threshold: float,
    editing: float | None,
) -> list[str]:
    """Writes the folders asked for; returns lines that say what they are."""
    masters, bias, state = load_masters(source)
    shape = Shape(**state["config"]["shape"])
    parts = frozenset(state["config"]["quantised"])
    vocabulary = read_vocabulary(tokenizer)
    _check_vocabulary(state, vocabulary)
    config = model_config(shape, vocabulary)
    generation = generation_config(vocabulary, threshold, editing)
    said = []
    if bf16 is not None:
        plain, _ = pack_tensors(masters, bias, shape, frozenset())
        write_folder(bf16, tokenizer, plain, config, generation, {})
        said.append(f"{bf16}: bfloat16, {_megabytes(bf16):.2f} MB")
    if nvfp4 is not None:
        packed, excluded = pack_tensors(masters, bias, shape, parts)
        section, file = modelopt_config(excluded)
        write_folder(
            nvfp4,
            tokenizer,
            packed,
            {**config, "quantization_config": section},
            generation,
            {"hf_quant_config.json": file},
        )
        count = sum(value.numel() for value in masters.values()) + bias.numel()
        words = ", ".join(sorted(part.replace("_", " ") for part in parts))
        readme = README.format(parameters=count / 1e6, quantised=words)
        (nvfp4 / "README.md").write_text(readme, encoding="utf-8")
        size = _megabytes(nvfp4)
        said.append(f"{nvfp4}: NVFP4 ({words}), {size:.2f} MB, step {state['step']}")
        if size * 1e6 > MAX_BYTES:
            raise CheckpointError(
                "demo_export.too_large",
                f"the folder has {size:.2f} MB; it may have {MAX_BYTES / 1e6:.0f} MB.",
                "Quantise more parts (the recipe's `quantised`), or train a smaller shape.",
                file=str(nvfp4),
            )
    return said


def _check_vocabulary(state: dict[str, Any], vocabulary: Vocabulary) -> None:
    trained = state["vocabulary"]
    if trained != {"size": vocabulary.size, "mask_id": vocabulary.mask_id}:
        raise CheckpointError(
            "demo_export.other_tokenizer",
            f"the run was trained with another tokenizer: {trained}.",
            "Name the tokenizer folder of the run.",
        )


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 1e6


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="python -m trainer.demo_export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--from", dest="source", type=Path, required=True, metavar="DIR")
    p.add_argument("--tokenizer", type=Path, default=Path("assets/demo"))
    p.add_argument("--nvfp4", type=Path, metavar="DIR", help="write the NVFP4 checkpoint here")
    p.add_argument("--bf16", type=Path, metavar="DIR", help="write the bfloat16 checkpoint here")
    p.add_argument("--threshold", type=float, default=0.95, help="threshold it decodes with")
    p.add_argument(
        "--editing-threshold", type=float, help="editing threshold (not given: editing is off)"
    )
    args = p.parse_args(arguments)
    try:
        lines = export(
            args.source,
            args.tokenizer,
            args.nvfp4,
            args.bf16,
            args.threshold,
            args.editing_threshold,
        )
    except UnblurError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
