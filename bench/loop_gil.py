"""What a running reply leaves to the rest of the process: a Python thread that counts beside it,
and the processor time it takes itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from loop_arms import Place, make_arm, make_row, random_model, run_rows

from engine.runtime.graph import GraphRuntime
from engine.types import DecodeSettings

Result = dict[str, Any]
SLOW = DecodeSettings(threshold=1.0, steps=32)  # one token a step


def gil(place: Place) -> Result:
    """A Python thread counts alone, beside a thread that only sleeps (what any polling costs),
    beside a running graph that nobody reads, and beside a running reply; and what the reply costs
    the CPU."""
    model = random_model(place, stops=False)
    runtime = make_arm("graph", model, place, capacity=512 if place.dry else 1024)
    assert isinstance(runtime, GraphRuntime)
    limit = 60 if place.dry else 900

    def one_reply(record: bool) -> int:
        row = make_row(model, [7], limit, SLOW)
        run_rows(runtime, row, record=record)
        return row.forwards

    def unread() -> None:
        row = make_row(model, [7], limit, SLOW)
        runtime.prefill([row])
        graph = runtime._graph(runtime.pieces.load([row], True))
        runtime.backend.mailbox[:] = 0
        runtime.backend.launch(graph).wait()

    one_reply(True)
    alone = _beside(lambda: time.sleep(1.0))
    result: Result = {"ok": True, "counts/s alone": round(alone)}
    for ms in (1, 4, 16):
        rate = _beside(lambda ms=ms: _sleeps(1e-3 * ms))
        result[f"counting beside a thread that sleeps {ms} ms"] = round(rate / alone, 3)
    result["counting beside an unread graph"] = round(_beside(unread) / alone, 3)
    for record in (True, False):
        name = "light" if record else "off"
        rate = _beside(lambda record=record: one_reply(record))
        result[f"counting beside, {name}"] = round(rate / alone, 3)
        cpu, began = time.process_time(), time.perf_counter()
        steps = one_reply(record)
        wall, used = time.perf_counter() - began, time.process_time() - cpu
        result[f"CPU share of one core, {name}"] = round(used / wall, 3)
        result[f"CPU us/step, {name}"] = round(1e6 * used / steps, 1)
    again = _beside(lambda: time.sleep(1.0))
    result["counting alone, again"] = round(again / alone, 3)
    runtime.close()
    light, off = (result[f"counting beside, {name}"] for name in ("light", "off"))
    share = max(result[f"CPU share of one core, {name}"] for name in ("light", "off"))
    result["ok"] = place.dry or (min(light, off) > 0.9 and share <= 0.05)
    return result


def _count_until(over: threading.Event) -> float:
    count, began = 0, time.perf_counter()
    while not over.is_set():
        count += 1
    return count / (time.perf_counter() - began)


def _beside(work: Callable[[], object]) -> float:
    """Counts a second while `work` runs."""
    over, rates = threading.Event(), []
    thread = threading.Thread(target=lambda: rates.append(_count_until(over)))
    thread.start()
    work()
    over.set()
    thread.join()
    return rates[0]


def _sleeps(seconds: float) -> None:
    def run() -> None:
        until = time.perf_counter() + 1.0
        while time.perf_counter() < until:
            time.sleep(seconds)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
