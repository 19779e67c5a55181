"""Speed of the shipped demo model at batch 1: tok/s, ms per forward, and the operations that take
the time.

    python -m bench.generate [--threads N] [--busy] [--profile]

--busy runs one endless Python loop beside it: a desktop is never quiet.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics

import torch

from engine.engine import load_engine
from engine.paths import demo_folder
from engine.types import Finished, GenerateRequest, Message

PROMPTS = (
    "What is 17 * 24 + 9? Show the working.",
    "Sort these numbers: 52, 7, 33, 18",
    "How many days are there from 10 March 1934 to 12 July 1934?",
    "What is TPF?",
)
ROUNDS = 5


def _spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, help="torch threads (default: the engine's choice)")
    parser.add_argument("--busy", action="store_true", help="a busy neighbour on one core")
    parser.add_argument("--profile", action="store_true", help="print the costliest operations")
    options = parser.parse_args()
    neighbour = multiprocessing.Process(target=_spin, daemon=True) if options.busy else None
    if neighbour:
        neighbour.start()
    engine = load_engine(demo_folder(), device="cpu")
    if options.threads:
        torch.set_num_threads(options.threads)

    def reply(prompt: str) -> Finished:
        *_, last = engine.generate(GenerateRequest((Message("user", prompt),), 256))
        assert isinstance(last, Finished)
        return last

    reply(PROMPTS[0])
    print(f"{torch.get_num_threads()} threads, neighbour {'busy' if neighbour else 'none'}")
    print(f"{'tok/s':>8} {'ms/forward':>11} {'TPF':>6}  prompt (median of {ROUNDS})")
    for prompt in PROMPTS:
        stats = [reply(prompt).stats for _ in range(ROUNDS)]
        speed = statistics.median(s.tokens_per_second for s in stats)
        each = statistics.median(1000 * s.seconds / s.forwards for s in stats)
        print(f"{speed:8.1f} {each:11.2f} {stats[0].tpf:6.2f}  {prompt}")
    if options.profile:
        with torch.profiler.profile() as profile:
            reply(PROMPTS[0])
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=12))
    engine.unload()


if __name__ == "__main__":
    main()
