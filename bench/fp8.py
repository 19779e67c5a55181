"""FP8 products against bfloat16 ones at Qwen3-4B's shapes, 256 tokens: milliseconds and error.

    PYTHONPATH=. python3 bench/fp8.py [--out FOLDER]

All linear layers of 36 layers, each with weights of its own, in one CUDA graph; both arms in turn.
The error is that of a product of random normal numbers, and with outliers of 20 in some columns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import fp8

LAYERS, TOKENS = 36, 256
SHAPES = {"qkv": (6144, 2560), "o": (2560, 4096), "gate_up": (19456, 2560), "down": (2560, 9728)}


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    options = parser.parse_args()
    weights = [
        {n: (torch.randn(s, device="cuda") * 0.02).bfloat16() for n, s in SHAPES.items()}
        for _ in range(LAYERS)
    ]
    inputs = {
        n: torch.randn(TOKENS, s[1], device="cuda").bfloat16().contiguous()
        for n, s in SHAPES.items()
    }
    rounded = [{n: fp8.round_rows_reference(w) for n, w in layer.items()} for layer in weights]

    def plain() -> None:
        for layer in weights:
            for name, weight in layer.items():
                F.linear(inputs[name], weight)

    def reduced() -> None:
        for layer in rounded:
            for name, weight in layer.items():
                fp8.product(fp8.round_rows(inputs[name]), weight)

    graphs = {"bfloat16": captured(plain), "fp8": captured(reduced)}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(40):
        for name, graph in graphs.items():
            times[name].append(milliseconds(graph))
    result: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "tokens": TOKENS}
    for name, taken in times.items():
        result[f"{name} ms"] = round(statistics.median(taken[5:]), 4)

    def error(x: Tensor, name: str) -> float:
        return round(fp8.relative_error(x, weights[0][name]), 5)

    for name, x in inputs.items():
        outliers = x.clone()
        outliers[:, ::97] *= 20
        result[f"error {name}"] = error(x, name)
        result[f"error {name}, outliers"] = error(outliers, name)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "fp8.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
