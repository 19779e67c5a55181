"""Everything in the copy but the weights: config.json, the shard index, and the source's other
files, taken over as they are.

Knows what the layouts want in JSON, and which files are weights. Opens no file of the source but
its JSON; copies of the rest (tokenizer, licence, model card, templates) are byte for byte, and none
of them is ever run.
"""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

from engine.checkpoint.checkpoint import Checkpoint
from engine.checkpoint.folder import INDEX, JsonObject, ModelFolder
from engine.checkpoint.quantiser.choice import Chosen, excluded_names
from engine.checkpoint.quantiser.layout_config import compressed_tensors_config, modelopt_config
from engine.checkpoint.quantiser.options import QuantiseOptions
from engine.checkpoint.quantiser.plan import Plan
from engine.checkpoint.quantiser.report import REPORT, QuantiseReport
from engine.checkpoint.tokenizer_ids import read_tokenizer_ids
from engine.models.registry import family_of

CONFIG, GENERATION, HF_QUANT = "config.json", "generation_config.json", "hf_quant_config.json"

# Weights in any form, and what this program writes itself.
_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".onnx", ".h5", ".msgpack"),
    *(".npz", ".index.json"),
)
_WRITTEN = (CONFIG, GENERATION, HF_QUANT, REPORT)


def copied_names(folder: ModelFolder) -> tuple[str, ...]:
    """The source's files that the copy has too, byte for byte. Hidden files and weights are not."""
    return tuple(
        name
        for name in folder.file_names
        if name not in _WRITTEN
        and not name.startswith(".")
        and not name.endswith(_WEIGHTS)
        and stat.S_ISREG((folder.path / name).stat().st_mode)
    )


def write_side_files(
    folder: ModelFolder,
    checkpoint: Checkpoint,
    chosen: Chosen,
    plan: Plan,
    options: QuantiseOptions,
    partial: Path,
    final_name: str,
) -> tuple[str, ...]:
    """Writes everything but weights and report. Returns notes for a person. Raises OSError."""
    notes: list[str] = []
    for name in copied_names(folder):
        shutil.copyfile(folder.path / name, partial / name)
    excluded = excluded_names(
        checkpoint.spec, chosen.modules, embedding=options.layout == "modelopt"
    )
    if options.layout == "modelopt":
        section, hf_quant = modelopt_config(excluded)
        write_json(partial / HF_QUANT, hf_quant)
    else:
        section = compressed_tensors_config(excluded)
    write_json(partial / CONFIG, {**checkpoint.config, "quantization_config": section})
    generation = _generation_config(folder, checkpoint, final_name)
    if generation != checkpoint.generation_config:
        notes.append(
            f"{GENERATION} of the copy says decoding {checkpoint.spec.decoding}: of the source only"
            " the folder's name said so."
        )
    if generation == checkpoint.generation_config and GENERATION in folder.file_names:
        shutil.copyfile(folder.path / GENERATION, partial / GENERATION)
    elif generation:
        write_json(partial / GENERATION, generation)
    index = plan.index()
    if index is not None:
        write_json(partial / INDEX, index)
    return tuple(notes)


def write_report(report: QuantiseReport, folder: Path) -> None:
    write_json(folder / REPORT, report.as_json())


def write_json(path: Path, value: JsonObject) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _generation_config(folder: ModelFolder, checkpoint: Checkpoint, final_name: str) -> JsonObject:
    """The source's, with the decoding rule spelt out where the copy would otherwise be taken for
    another: a folder's name can be all the evidence there is, and the copy has another name."""
    ids = read_tokenizer_ids(folder)
    spec = family_of(checkpoint.family).read(
        checkpoint.config,
        checkpoint.generation_config,
        folder_name=final_name,
        special_tokens=ids.added if ids else None,
    )
    if spec.decoding == checkpoint.spec.decoding:
        return checkpoint.generation_config
    return {**checkpoint.generation_config, "decoding": checkpoint.spec.decoding}
