"""How long an NVFP4 copy takes and how much memory, on random weights in LLaDA2-mini's true shapes
(fewer layers), beside a plain copy of the same file.

Writes the source itself, in pieces, into a temporary folder that is removed at the end. Random
weights say nothing of quality: the relative error is that of Gaussian numbers.

Usage: `python -m bench.quantise [--layers N] [--folder DIR] [--compare] [--json FILE]`.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
import time
from pathlib import Path

import torch

from engine.checkpoint.quantiser import QuantiseOptions, quantise
from engine.checkpoint.quantiser.memory import peak_memory
from engine.checkpoint.tensor_writer import FileLayout, NewFile, NewTensor
from engine.logit_distance import compare_logits
from engine.models.llada2_spec import LLaDA2Spec

PIECE = 4 << 20  # numbers
CONFIG = {
    "model_type": "llada2_moe",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "vocab_size": 157184,
    "mask_token_id": 156895,
    "eos_token_id": 156892,
    "max_position_embeddings": 32768,
}


def write_source(folder: Path, layers: int) -> None:
    """A folder of bfloat16 noise with a standard deviation of 0.02; norms are ones."""
    config = CONFIG | {"num_hidden_layers": layers}
    table = LLaDA2Spec.from_config(config, {}).table
    shapes: dict[str, tuple[int, ...]] = dict(table.tensors)
    shapes |= {f"{name}.weight": shape for name, shape in table.linears.items()}
    tensors = [NewTensor(name, "BF16", shape) for name, shape in shapes.items()]
    noise = torch.randn(PIECE, generator=torch.Generator().manual_seed(0)) * 0.02
    raw = noise.bfloat16().view(torch.uint8).numpy()
    ones = torch.ones(4096, dtype=torch.bfloat16).view(torch.uint8).numpy()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with NewFile(folder / "model.safetensors", FileLayout(tensors)) as file:
        for number, tensor in enumerate(tensors):
            if len(tensor.shape) == 1 and "expert_bias" not in tensor.name:
                file.write(tensor.name, 0, ones[: tensor.nbytes])
                continue
            turn = 2 * (number * 7919 % 4096)  # neighbours are not equal
            for start in range(0, tensor.nbytes, len(raw) - 8192):
                count = min(len(raw) - 8192, tensor.nbytes - start)
                file.write(tensor.name, start, raw[turn : turn + count])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the temporary files go")
    parser.add_argument("--compare", action="store_true", help="compare predictions too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    before = peak_memory()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        source = Path(place) / "source"
        write_source(source, options.layers)
        began = time.perf_counter()
        shutil.copyfile(source / "model.safetensors", Path(place) / "plain")
        copying = time.perf_counter() - began
        (Path(place) / "plain").unlink()
        began, used = time.perf_counter(), time.process_time()
        report = quantise(source, Path(place) / "copy", QuantiseOptions())
        processor = time.process_time() - used
        distance = compare_logits(source, Path(place) / "copy") if options.compare else None
        whole = time.perf_counter() - began
    figures = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "source_bytes": report.source_bytes,
        "written_bytes": report.written_bytes,
        "plain_copy_seconds": round(copying, 2),
        "seconds": round(report.seconds, 2),
        "processor_seconds": round(processor, 2),
        "seconds_with_comparison": round(whole, 2),
        "peak_before_bytes": before,
        "peak_bytes": report.peak_bytes,
        "peak_with_comparison_bytes": distance.peak_bytes if distance else None,
        "relative_error": report.relative_error,
        "mean_kl": distance.mean_kl if distance else None,
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
