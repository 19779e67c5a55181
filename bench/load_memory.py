"""How much memory loading takes: peak against what is held afterwards, in a process of its own.

Writes synthetic LLaDA2 checkpoints (about 1.2 GB in bfloat16, and the same model in NVFP4) into a
temporary folder, loads each through the engine's own path in a fresh child process, and prints
resident memory above the child's baseline. The target is a peak of at most what is held plus 15 %.
Knows nothing of speed beyond the seconds it prints beside.

Usage: `python -m bench.load_memory [--folder DIR] [--json FILE]`.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from engine.checkpoint import open_checkpoint
from engine.loading import Placement, build_model
from engine.models.llada2 import LLaDA2
from engine.models.llada2_spec import LLaDA2Spec, expected_linears, expected_tensors

ALLOWED = 1.15
_WIDTHS = ("F32", "BF16", "F8_E4M3", "U8")
CONFIG: dict[str, object] = {
    "model_type": "llada2_moe",
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 4096,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 512,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "vocab_size": 32768,
    "mask_token_id": 32767,
    "eos_token_id": 32766,
    "max_position_embeddings": 4096,
    "partial_rotary_factor": 0.5,
}
# Loaded before the baseline is taken, so that libraries which arrive at first use are not counted.
WARM_UP = CONFIG | {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "vocab_size": 256,
    "mask_token_id": 255,
    "eos_token_id": 254,
}
# name -> (checkpoint, dtype in place, NVFP4 expanded at load)
SCENARIOS = {
    "bfloat16 as stored": ("bf16", torch.bfloat16, False),
    "bfloat16 to float32": ("bf16", torch.float32, True),
    "NVFP4 kept packed": ("nvfp4", torch.bfloat16, False),
    "NVFP4 to bfloat16": ("nvfp4", torch.bfloat16, True),
    "NVFP4 to float32": ("nvfp4", torch.float32, True),
}


@dataclass(frozen=True)
class Measured:
    """Bytes above the process's baseline, and seconds."""

    scenario: str
    file_bytes: int
    held: int
    peak: int
    check_seconds: float
    load_seconds: float

    @property
    def ratio(self) -> float:
        return self.peak / self.held


def write_checkpoint(
    folder: Path, config: dict[str, object], packed: bool, *, sort: bool = False
) -> None:
    """A valid folder with made-up weights; the routed experts are NVFP4 (ModelOpt) if `packed`.
    sort: in the order the safetensors library writes, widest numbers first, then by name."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = LLaDA2Spec.from_config(config, {})
    tensors = list(_tensors(spec, packed))
    if sort:
        tensors.sort(key=lambda tensor: (_WIDTHS.index(tensor[1]), tensor[0]))
    header: dict[str, object] = {}
    at = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    random = np.random.default_rng(0)
    weights = torch.from_numpy(random.standard_normal(1 << 22, dtype=np.float32) * 0.02)
    content = {
        "BF16": weights.bfloat16().view(torch.uint8).numpy(),
        "U8": random.integers(0, 256, 1 << 22, dtype=np.uint8),
        "F8_E4M3": random.integers(0x40, 0x60, 1 << 22, dtype=np.uint8),
        "F32": np.full(1 << 12, 1e-3, "<f4").view(np.uint8),
    }
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, dtype, _, size in tensors:
            for start in range(0, size, content[dtype].size):
                file.write(content[dtype][: size - start].data)


def _tensors(spec: LLaDA2Spec, packed: bool) -> Iterator[tuple[str, str, list[int], int]]:
    """(name, dtype, shape, bytes) of every tensor."""
    for name, shape in expected_tensors(spec).items():
        count = int(np.prod(shape))
        dtype = "F32" if name.endswith("expert_bias") else "BF16"
        yield name, dtype, list(shape), count * (4 if dtype == "F32" else 2)
    for module, (rows, cols) in expected_linears(spec).items():
        if packed and ".mlp.experts." in module:
            yield f"{module}.weight", "U8", [rows, cols // 2], rows * cols // 2
            yield f"{module}.weight_scale", "F8_E4M3", [rows, cols // 16], rows * cols // 16
            yield f"{module}.weight_scale_2", "F32", [], 4
        else:
            yield f"{module}.weight", "BF16", [rows, cols], rows * cols * 2


class PeakSampler:
    """The process's highest resident memory, read every millisecond in a thread of its own.

    On Linux the kernel's own high-water mark counts too; what came before the start is far below.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak = self.now()

    def now(self) -> int:
        return self._process.memory_info().rss

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> int:
        self._stop.set()
        self._thread.join()
        return max(self.peak, self.now(), _high_water_mark())

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self.peak = max(self.peak, self.now())


def _high_water_mark() -> int:
    """Bytes; 0 where the system does not keep one."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    marks = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(marks[0].split()[1]) * 1024 if marks else 0


def load(scenario: str, folder: Path) -> tuple[LLaDA2, int, float]:
    """The engine's own way: validate, place every weight. Model, file bytes, seconds to check."""
    _, dtype, expand = SCENARIOS[scenario]
    started = time.perf_counter()
    checkpoint = open_checkpoint(folder)
    checked = time.perf_counter() - started
    placement = Placement(torch.device("cpu"), dtype, expand, "measured")
    model = build_model(checkpoint, placement)
    checkpoint.release()
    return model, checkpoint.total_bytes, checked


def measure(scenario: str, folder: Path) -> Measured:
    """Loads one checkpoint in this process. Run it in a fresh one: memory is never quite given
    back."""
    kind = SCENARIOS[scenario][0]
    load(scenario, folder / f"warm-up-{kind}")
    gc.collect()
    sampler = PeakSampler()
    baseline = sampler.now()
    sampler.start()
    started = time.perf_counter()
    model, file_bytes, checked = load(scenario, folder / kind)
    seconds = time.perf_counter() - started
    peak = sampler.finish() - baseline
    gc.collect()
    held = sampler.now() - baseline
    del model  # alive until here
    return Measured(scenario, file_bytes, held, peak, checked, seconds - checked)


def measure_in_child(scenario: str, folder: Path) -> Measured:
    command = [sys.executable, "-m", "bench.load_memory", "--child", scenario]
    answer = subprocess.run(
        [*command, "--folder", str(folder)],
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        check=True,
        encoding="utf-8",
    )
    return Measured(**json.loads(answer.stdout))


def print_table(results: list[Measured]) -> bool:
    """Prints one line a scenario; True when all are within the target."""
    print(f"{'scenario':<22}{'file':>8}{'held':>8}{'peak':>8}{'ratio':>7}{'check':>9}{'load':>9}")
    for r in results:
        sizes = "".join(f"{value / 1e6:>8.0f}" for value in (r.file_bytes, r.held, r.peak))
        verdict = "" if r.ratio <= ALLOWED else "  over the target"
        print(
            f"{r.scenario:<22}{sizes}{r.ratio:>7.3f}{r.check_seconds:>8.1f}s"
            f"{r.load_seconds:>8.1f}s{verdict}"
        )
    print(f"Sizes in MB above the baseline. Target: peak at most {ALLOWED} of what is held.")
    return all(r.ratio <= ALLOWED for r in results)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the memory that loading takes.")
    parser.add_argument("--folder", type=Path, help="keep the synthetic checkpoints here")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--child", choices=SCENARIOS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(asdict(measure(options.child, options.folder))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        for kind in ("bf16", "nvfp4"):
            for name, config in ((kind, CONFIG), (f"warm-up-{kind}", WARM_UP)):
                if not (root / name).exists():
                    write_checkpoint(root / name, config, packed=kind == "nvfp4")
        results = [measure_in_child(name, root) for name in SCENARIOS]
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=2))
    return 0 if print_table(results) else 1


if __name__ == "__main__":
    sys.exit(main())
