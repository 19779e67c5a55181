"""The shipped demo on a GPU with its weights packed: kernels against plain torch, and the three
runtimes against each other.

    PYTHONPATH=. python3 bench/demo_gpu.py [--out FOLDER] [--prompts 1000]

Same ids are wanted from eager, one graph per step and one graph per reply on the same kernels.
Against plain torch (weights expanded at every step, and float32) rounding differs, so divergences
are counted, with the margin of the closest decision in such replies. Prompts are held-out ones
of the demo's skills, half of them sampled with a temperature.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from engine.engine import TorchEngine, load_engine
from engine.types import DecodeSettings, Finished, GenerateRequest, Message, StepTaken
from trainer.data.skills import SKILLS, generate_examples

DEMO = Path(__file__).resolve().parents[1] / "assets" / "demo"
Result = dict[str, Any]


def requests(count: int) -> list[GenerateRequest]:
    """Held-out prompts; every second one sampled, with settings that differ."""
    each = -(-count // len(SKILLS))
    found = []
    for skill in sorted(SKILLS):
        for index, example in enumerate(generate_examples(7, 0, each, "heldout", skills=[skill])):
            warm = index % 2
            settings = DecodeSettings(
                threshold=(0.95, 0.8, 0.6)[index % 3],
                editing_threshold=(None, 0.9)[index // 2 % 2],
                temperature=0.7 * warm,
                seed=index,
            )
            message = Message("user", example.prompt)
            found.append(GenerateRequest((message,), 96 + 32 * (index % 4), settings))
    return found[:count]


def answers(engine: TorchEngine, asked: list[GenerateRequest]) -> tuple[list[Finished], float]:
    """Every reply, and the median tokens per second."""
    replies, speeds = [], []
    for request in asked:
        events = list(engine.generate(request))
        last = events[-1]
        assert isinstance(last, Finished)
        replies.append(last)
        speeds.append(last.stats.tokens_per_second)
    return replies, statistics.median(speeds)


def margin(engine: TorchEngine, request: GenerateRequest) -> float:
    """How close the closest decision of a reply was: the least distance of a shown confidence from
    the request's thresholds."""
    settings = request.settings
    assert settings is not None
    nearest = float("inf")
    for event in engine.generate(request):
        if isinstance(event, StepTaken):
            known = event.confidence[event.confidence == event.confidence]
            for wall in (settings.threshold, settings.editing_threshold):
                if wall is not None and len(known):
                    nearest = min(nearest, float(abs(known - wall).min()))
    return nearest


def compare(
    name: str, asked: list[GenerateRequest], wanted: list[Finished], engine: TorchEngine
) -> Result:
    began = time.perf_counter()
    found, speed = answers(engine, asked)
    differ = [i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if a.ids != b.ids]
    cold = [i for i in differ if asked[i].settings.temperature == 0]  # pyright: ignore
    result: Result = {
        "arm": name,
        "requests": len(asked),
        "differ": len(differ),
        "differ at temperature 0": len(cold),
        "median tok/s": round(speed),
        "s": round(time.perf_counter() - began, 1),
        "runtime": engine.info.runtime,
    }
    if differ:
        margins = sorted(margin(engine, asked[i]) for i in differ[:40])
        result["margin median"] = round(statistics.median(margins), 5)
        result["margin largest"] = round(margins[-1], 5)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    parser.add_argument("--prompts", type=int, default=1000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    asked = requests(options.prompts)
    few = asked[:: max(1, len(asked) // 100)]
    rows: list[Result] = []

    def note(row: Result) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        (options.out / "demo_gpu.json").write_text(json.dumps(rows, indent=1))

    engine = load_engine(DEMO)
    note({"notes": list(engine.info.notes), "gpu": torch.cuda.get_device_name()})
    wanted, speed = answers(engine, asked)
    note({"arm": "graph", "requests": len(asked), "median tok/s": round(speed)})
    note(compare("graph again", few, [wanted[asked.index(r)] for r in few], engine))
    from engine.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer.open(DEMO)
    greedy = [r for r in asked if r.settings is not None and r.settings.temperature == 0]
    prompts = [tokenizer.encode_chat(r.messages) for r in greedy]
    settings = DecodeSettings(threshold=0.95, editing_threshold=None)
    for _ in range(2):
        began = time.perf_counter()
        batch = engine.generate_batch(prompts, settings, 160, 64)
        seconds = time.perf_counter() - began
    tokens = sum(len(reply.ids) for reply in batch)
    note({"arm": "batch of 64", "prompts": len(prompts), "tok/s": round(tokens / seconds)})
    engine.unload()
    arms: list[tuple[str, dict[str, Any], list[GenerateRequest]]] = [
        ("per step", {"loop": "one graph per step"}, asked),
        ("eager", {"loop": "eager"}, few),
        ("torch, bfloat16", {"kernels": False}, few),
        ("torch, float32", {"kernels": False, "dtype": torch.float32}, few),
    ]
    for name, how, which in arms:
        engine = load_engine(DEMO, **how)
        note(compare(name, which, [wanted[asked.index(r)] for r in which], engine))
        engine.unload()
    same = [row for row in rows if row.get("arm") in ("graph again", "per step", "eager")]
    return 1 if any(row["differ"] for row in same) else 0


if __name__ == "__main__":
    sys.exit(main())
