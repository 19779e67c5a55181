"""Running out of GPU memory while loading, capturing and growing: a typed error each time, the
memory comes back, and the same engine answers afterwards. Also load and unload, twenty times.

    PYTHONPATH=. python3 bench/gpu_faults.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import torch

from engine.engine import TorchEngine, load_engine
from engine.errors import RuntimeFailure
from engine.memory import release_memory
from engine.types import DecodeSettings, Finished, GenerateRequest, Message

DEMO = Path(__file__).resolve().parents[1] / "assets" / "demo"
WARM = DecodeSettings(temperature=0.7, top_p=0.9, seed=3)
Result = dict[str, Any]


def ask(engine: TorchEngine, settings: DecodeSettings | None = None) -> str:
    request = GenerateRequest((Message("user", "What is 12 + 30?"),), 96, settings)
    last = list(engine.generate(request))[-1]
    assert isinstance(last, Finished)
    return last.text


def fill(leave: int) -> list[torch.Tensor]:
    """Takes GPU memory until about `leave` bytes are free."""
    release_memory()
    taken: list[torch.Tensor] = []
    size = 32 << 30
    while size >= 1 << 20:
        free = torch.cuda.mem_get_info()[0]
        if free - size < leave:
            size //= 2
            continue
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return taken


def caught(work: Callable[[], object]) -> Result:
    """What a call raised, which should be a RuntimeFailure."""
    try:
        work()
    except RuntimeFailure as failure:
        return {"typed": True, "code": failure.code, "message": failure.message}
    except Exception as error:  # noqa: BLE001 - what it was is the result
        return {"typed": False, "error": f"{type(error).__name__}: {error}"[:400]}
    return {"typed": False, "error": "nothing was raised"}


def loading() -> Result:
    taken = fill(8 << 20)
    result = caught(lambda: load_engine(DEMO))
    taken.clear()
    release_memory()
    engine = load_engine(DEMO)
    result["afterwards"] = ask(engine)[-20:]
    engine.unload()
    return result


def capturing() -> Result:
    """A first sampled request must capture steps of its own."""
    engine = load_engine(DEMO)
    before = ask(engine)
    taken = fill(2 << 20)
    result = caught(lambda: ask(engine, WARM))
    result["greedy while full"] = ask(engine) == before
    taken.clear()
    release_memory()
    result["afterwards"] = ask(engine, WARM)[-20:]
    result["same as before"] = ask(engine) == before
    engine.unload()
    return result


def growing() -> Result:
    """A batch needs a cache and graphs of its own."""
    engine = load_engine(DEMO)
    before = ask(engine)
    prompts = [[5, 6, 7, 8] * 8] * 32
    taken = fill(64 << 20)
    result = caught(lambda: engine.generate_batch(prompts, DecodeSettings(), 64, 32))
    result["greedy while full"] = ask(engine) == before
    taken.clear()
    release_memory()
    result["afterwards"] = len(engine.generate_batch(prompts, DecodeSettings(), 64, 32))
    engine.unload()
    return result


def cycles() -> Result:
    """NVML's count of used memory after each load, answer and unload."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def used() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    def cycle() -> None:
        engine = load_engine(DEMO)
        ask(engine)
        ask(engine, WARM)
        engine.unload()
        release_memory()

    cycle()
    before = used()
    grown = []
    for _ in range(20):
        cycle()
        grown.append(round((used() - before) / 1e6, 1))
    return {"typed": True, "MB over the first": grown, "ok": grown[-1] < 200}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for part in (loading, capturing, growing, cycles):
        try:
            result = {"part": part.__name__, **part()}
        except Exception as error:  # noqa: BLE001 - the other parts still run
            traceback.print_exc()
            result = {"part": part.__name__, "typed": False, "error": f"{error}"[:400]}
        results.append(result)
        print(json.dumps(result), flush=True)
    (options.out / "gpu_faults.json").write_text(json.dumps(results, indent=1))
    return 0 if all(result["typed"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
