"""Loading onto a GPU against reading the same file: seconds, GB/s and host memory.

    PYTHONPATH=. python3 -m bench.load_speed [--layers 20] [--folder DIR] [--out DIR] [--unsorted]

Writes a synthetic checkpoint of LLaDA2.1-mini's shape (NVFP4 experts; tensors in the order the
safetensors library writes, unless --unsorted), then, in turn and each in a
fresh process: a sequential read into one buffer as `dd bs=64M` does it, and the engine's own load
(check every value, place every weight, re-order the experts for their kernels). Cold: the file's
pages are dropped from the page cache before (where the system lets a program do that). Targets: at
least 80 % of the read's speed; at most 2 GB of host memory above the process's base.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.load_memory import CONFIG, WARM_UP, PeakSampler, write_checkpoint
from engine.checkpoint import open_checkpoint
from engine.checkpoint.tensor_file import Bytes, TensorFile
from engine.loading import Placement, load_model

MINI = CONFIG | {
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "vocab_size": 157184,
    "mask_token_id": 156895,
    "eos_token_id": 156892,
    "max_position_embeddings": 32768,
}
Row = dict[str, object]


def drop_pages(path: Path) -> None:
    """Asks the system to forget the file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path) -> float:
    """Seconds of a sequential read in pieces of 64 MiB."""
    buffer = bytearray(64 << 20)
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began


def load(folder: Path) -> tuple[float, float, float]:
    """Seconds until the folder is open, weights and kernels are placed, values are checked."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.perf_counter()
    checkpoint = open_checkpoint(folder, check_values_now=device.type != "cuda")
    opened = time.perf_counter()
    load_model(checkpoint, Placement(device, torch.bfloat16, False, "measured"))
    placed = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.synchronize()
    checkpoint.release()
    return opened - began, placed - opened, time.perf_counter() - placed


def count_reads() -> list[int]:
    """Sizes of all reads that fill windows from now on."""
    sizes: list[int] = []
    pread = TensorFile.pread

    def counted(file: TensorFile, out: Bytes, start: int) -> None:
        sizes.append(len(out))
        pread(file, out, start)

    TensorFile.pread = counted
    return sizes


def child(kind: str, folder: Path) -> None:
    """One measurement, printed as JSON."""
    path = folder / "mini" / "model.safetensors"
    if kind == "read":
        print(json.dumps({"seconds": read(path)}))
        return
    load(folder / "warm-up")  # starts CUDA and builds kernels, which is not loading
    sampler = PeakSampler()
    base = sampler.now()
    sampler.start()
    count = count_reads()
    opened, place, rest = load(folder / "mini")
    peak = sampler.finish() - base
    seconds = opened + place + rest
    row = {"seconds": seconds, "open": opened, "place": place, "rest": rest, "peak": peak}
    if count:  # windows are for a GPU
        row["read of file"] = round(sum(count) / path.stat().st_size, 3)
    print(json.dumps(row))


def in_child(kind: str, folder: Path) -> Row:
    command = [sys.executable, "-m", "bench.load_speed", "--child", kind, "--folder", str(folder)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, encoding="utf-8")
    return json.loads(answer.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    parser.add_argument("--unsorted", action="store_true", help="tensors in the model's order")
    parser.add_argument("--child", choices=("read", "load"))
    options = parser.parse_args()
    if options.child:
        child(options.child, options.folder)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        if not (root / "mini").exists():
            shape = MINI | {"num_hidden_layers": options.layers}
            write_checkpoint(root / "mini", shape, True, sort=not options.unsorted)
            write_checkpoint(root / "warm-up", WARM_UP, True)
        path = root / "mini" / "model.safetensors"
        size = path.stat().st_size / 1e9
        rows: list[Row] = []
        for cold in (True, False):
            for _ in range(2):
                for kind in ("read", "load"):
                    if cold:
                        drop_pages(path)
                    rows.append({"kind": kind, "cold": cold, **in_child(kind, root)})
    result: Row = {"file GB": round(size, 2), "rows": rows}
    for cold in (True, False):
        took = {
            kind: statistics.median(
                float(str(r["seconds"])) for r in rows if r["kind"] == kind and r["cold"] == cold
            )
            for kind in ("read", "load")
        }
        name = "cold" if cold else "cached"
        result[f"{name}: read GB/s"] = round(size / took["read"], 2)
        result[f"{name}: load GB/s"] = round(size / took["load"], 2)
        result[f"{name}: load of read"] = round(took["read"] / took["load"], 3)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "load_speed.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
