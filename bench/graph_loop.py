"""Checks and times the graph runtimes on a GPU against the eager one: same ids, no second capture,
stop, bad numbers, memory, a free GIL, and milliseconds a step.

    python bench/graph_loop.py [--out FOLDER] [--dry] [--sections smoke,ids,...]

Each section is a row of results in `graph_loop.jsonl`; the table is printed last. A section that
fails is a row, too; the rest go on in a fresh process, because a CUDA error stays with its process.
`--dry` runs everything on the CPU with the tests' stand-in (its times mean nothing).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
if "--dry" in sys.argv:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from loop_arms import (
    ARMS,
    REPO,
    Place,
    give_back,
    make_arm,
    make_row,
    outcome,
    random_model,
    random_requests,
    run_rows,
    used_bytes,
)
from loop_books import books
from loop_gil import gil

from engine.errors import RuntimeFailure
from engine.runtime.conditional import Mailbox
from engine.runtime.graph import GraphRuntime
from engine.types import DecodeSettings, GenerateRequest, Message

SLOW = DecodeSettings(threshold=1.0, steps=32)  # one token a step
Result = dict[str, Any]
DEAD = 3  # exit status of a process whose CUDA context is lost


def spread(values: list[float]) -> Result:
    ordered = sorted(values)
    at = len(ordered) - 1
    return {
        "ms": round(statistics.median(ordered), 4),
        "p10": round(ordered[round(0.1 * at)], 4),
        "p90": round(ordered[round(0.9 * at)], 4),
    }


def smoke(place: Place) -> Result:
    """One reply by each runtime, with each attention; what was found of the machine."""
    result: Result = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if not place.dry:
        import triton
        from cuda.bindings import __version__ as bindings

        from engine.runtime.choice import choose_loop

        choice = choose_loop(place.device)
        result |= {
            "gpu": torch.cuda.get_device_name(),
            "triton": triton.__version__,
            "bindings": bindings,
            "path": choice.path,
            "reason": choice.reason,
        }
    model = random_model(place)
    found = {}
    for sdpa in (True, False):
        for name in ARMS:
            key = f"{name}, {'SDPA' if sdpa else 'kernel'}"
            try:
                runtime = make_arm(name, model, place, sdpa=sdpa)
                began = time.perf_counter()
                row = make_row(model, list(range(1, 45)), 70, SLOW)
                run_rows(runtime, row)
                first = time.perf_counter() - began
                again = make_row(model, list(range(1, 45)), 70, SLOW)
                began = time.perf_counter()
                run_rows(runtime, again)
                result[f"{key}: first s"] = round(first, 2)
                result[f"{key}: again s"] = round(time.perf_counter() - began, 3)
                found[key] = (outcome(row), outcome(again))
                runtime.close()
            except Exception as error:
                result[f"{key}: failed"] = f"{type(error).__name__}: {error}"[:600]
                if not alive(place):
                    raise
    for attention in ("SDPA", "kernel"):
        arms = {key: value for key, value in found.items() if key.endswith(attention)}
        same = len({value for pair in arms.values() for value in pair}) == 1
        result[f"same ids, {attention}"] = same and len(arms) == len(ARMS)
    result["ok"] = bool(result["same ids, SDPA"] and result["same ids, kernel"])
    return result


def ids(place: Place) -> Result:
    """Random requests through one runtime of each kind: same ids, no second capture, flat
    memory."""
    result: Result = {}
    plans = [("llada2.0", torch.bfloat16, 120), ("llada2.1", torch.bfloat16, 80)]
    plans += [("llada2.1", torch.float32, 40)]
    ok = True
    for decoding, dtype, count in plans:
        here = Place.here(place.dry, dtype)
        model = random_model(here, decoding)
        arms = {name: make_arm(name, model, here) for name in ARMS}
        by_torch = make_arm("graph", model, here, one_launch=False)
        key = f"{decoding} {str(dtype)[6:]}"
        differ: dict[str, int] = {"per step": 0, "graph": 0}
        books_differ = 0  # other sums in the judgement: a near tie may fall either way
        steps, memory, captures = 0, [], []
        wanted_count = 12 if place.dry else count
        capacity = arms["graph"].pieces.reply.capacity
        for n, (prompt, limit, settings) in enumerate(
            random_requests(model, wanted_count, 5, capacity // 3, capacity // 8)
        ):
            rows = {name: make_row(model, prompt, limit, settings) for name in ARMS}
            for name, runtime in arms.items():
                run_rows(runtime, rows[name])
            for name in differ:
                differ[name] += outcome(rows[name]) != outcome(rows["eager"])
            if n < wanted_count // 2:
                other = make_row(model, prompt, limit, settings)
                run_rows(by_torch, other)
                books_differ += other.ids != rows["eager"].ids
            steps += rows["eager"].forwards
            graph = arms["graph"]
            assert isinstance(graph, GraphRuntime)
            captures.append(graph.captures)
            if n >= wanted_count // 2:
                memory.append(used_bytes(place))
        result[key] = {
            "requests": wanted_count,
            "steps": steps,
            "differ": differ,
            "differ with torch's bookkeeping, first half": books_differ,
            "captures": captures[-1],
            "captured again in the second half": captures[-1] - captures[wanted_count // 2],
            "memory grew MB": round((memory[-1] - memory[0]) / 1e6, 2),
        }
        ok &= not any(differ.values()) and memory[-1] - memory[0] < 32e6
        kinds = 4 if graph.pieces.ahead else 2  # captures a variant
        ok &= captures[-1] <= 2 + 3 * kinds + 2
        for runtime in (*arms.values(), by_torch):
            runtime.close()
    return result | {"ok": ok}


def stop(place: Place) -> Result:
    """A long reply is stopped from another thread: how many steps, and how long, until it is
    over."""
    model = random_model(place, stops=False)
    runtime = make_arm("graph", model, place, capacity=512 if place.dry else 2048)
    assert isinstance(runtime, GraphRuntime)
    after, latency = [], []
    for trial in range(3 if place.dry else 8):
        row = make_row(model, [5 + trial], 480 if place.dry else 1900, SLOW)
        event = threading.Event()
        runtime.prefill([row])
        at: dict[str, float] = {}

        def set_later(event: threading.Event = event, at: dict[str, float] = at) -> None:
            time.sleep(0.1)
            at["steps"] = float(runtime.backend.mailbox[Mailbox.STEPS])
            at["time"] = time.perf_counter()
            event.set()

        thread = threading.Thread(target=set_later)
        thread.start()
        for _ in runtime.run([row], event):
            pass
        latency.append(1e3 * (time.perf_counter() - at["time"]))
        after.append(row.forwards - at["steps"])
        thread.join()
        if row.reason != "stopped":
            return {"ok": False, "reason": row.reason}
    # The reader looks once a millisecond; with that apart, one step.
    return {"ok": True, "steps after the flag": after, "ms until over": latency}


def nonfinite(place: Place) -> Result:
    """Bad numbers end a reply on the device with the typed error; the next reply is as before."""
    result: Result = {"ok": True}
    for name in ARMS:
        model = random_model(place)
        runtime = make_arm(name, model, place)
        first = make_row(model, list(range(40)), 40, SLOW)
        run_rows(runtime, first)
        kept = model.norm.weight.clone()
        bad = make_row(model, list(range(40)), 40, SLOW)
        runtime.prefill([bad])
        model.norm.weight.data.fill_(float("nan"))
        try:
            list(runtime.run([bad]))
            result |= {"ok": False, name: "no error"}
        except RuntimeFailure as failure:
            result[name] = failure.code
            result["ok"] &= failure.code == "runtime.nonfinite"
        model.norm.weight.data.copy_(kept)
        again = make_row(model, list(range(40)), 40, SLOW)
        run_rows(runtime, again)
        result["ok"] &= outcome(again) == outcome(first)
        runtime.close()
    return result


def timing(place: Place) -> Result:
    """Milliseconds a step: three arms, recording off and on, and launches a step."""
    model = random_model(place, stops=False)
    limit = 60 if place.dry else 480
    result: Result = {"ok": True, "dtype": str(place.dtype)[6:]}
    for name in ARMS:
        runtime = make_arm(name, model, place, capacity=512 if place.dry else 1024)
        run_rows(runtime, make_row(model, [3] * 40, limit, SLOW))
        for record in (False, True):
            wall, device = [], []
            for _ in range(2 if name == "eager" or place.dry else 5):
                row = make_row(model, [3] * 40, limit, SLOW)
                runtime.prefill([row])
                began = time.perf_counter()
                marks = list(runtime.run([row], record=record))
                wall.append(1e3 * (time.perf_counter() - began) / row.forwards)
                if record:
                    times = [mark.seconds for mark in marks]
                    gaps = zip(times[1:], times, strict=False)
                    device += [1e3 * (later - earlier) for later, earlier in gaps]
            key = f"{name}, {'light' if record else 'off'}"
            result[key] = {"wall ms/step": round(min(wall), 4)} | (spread(device) if device else {})
        if isinstance(runtime, GraphRuntime) and not place.dry:
            captured = runtime.captured.of_reply(runtime.pieces.variant)
            calls: Any = runtime.backend.calls
            nodes = {piece: calls.node_count(graph) for piece, graph in captured.items()}
            result["launches"] = nodes
        runtime.close()
    off, light = (result[f"graph, {level}"]["wall ms/step"] for level in ("off", "light"))
    result["light costs %"] = round(100 * (light / off - 1), 2)
    return result


def commits(place: Place) -> Result:
    """What fewer forwards are worth (float32): commits that share the next block's first forward,
    and last looks that share it; forwards and time with and without."""
    here = Place.here(place.dry, torch.float32)
    quota = DecodeSettings(threshold=1.0, steps=4)  # eight tokens a step
    edits = DecodeSettings(threshold=1.0, editing_threshold=0.999, min_transfer=8)
    plans = {
        "llada2.0 commits": ("llada2.0", quota, {"fused": True}, {"fused": False}),
        "llada2.1 last looks": ("llada2.1", edits, {"ahead": True}, {"ahead": False}),
    }
    result: Result = {"ok": True}
    for name, (decoding, settings, *options) in plans.items():
        model = random_model(here, decoding, stops=False)
        texts = []
        for shared, option in zip(("shared", "apart"), options, strict=True):
            runtime = make_arm("graph", model, here, **option)
            limit = 60 if place.dry else 400
            run_rows(runtime, make_row(model, [3], limit, settings), record=False)
            row = make_row(model, [3], limit, settings)
            runtime.prefill([row])
            began = time.perf_counter()
            list(runtime.run([row], record=False))
            ms = 1e3 * (time.perf_counter() - began)
            result[f"{name}, {shared}"] = {"forwards": row.forwards, "ms": round(ms, 2)}
            texts.append(row.ids)
            runtime.close()
        result["ok"] &= texts[0] == texts[1]
    return result


def batch(place: Place) -> Result:
    """A batch against its rows alone (float32), and tokens a second of batches (bfloat16)."""
    here = Place.here(place.dry, torch.float32)
    model = random_model(here)
    count = 3 if place.dry else 16
    together = make_arm("graph", model, here, batch=count)
    alone = make_arm("graph", model, here)
    capacity = together.pieces.reply.capacity
    requests = list(random_requests(model, count, 9, capacity // 3, capacity // 8))
    rows = [make_row(model, *request) for request in requests]
    run_rows(together, *rows, record=False)
    differ = 0
    for row, request in zip(rows, requests, strict=True):
        single = make_row(model, *request)
        run_rows(alone, single, record=False)
        differ += row.ids != single.ids
    result: Result = {"rows": count, "differ from alone (float32)": differ}
    together.close()
    alone.close()
    model = random_model(place, stops=False)
    for size in (1, 3) if place.dry else (1, 16, 64):
        runtime = make_arm("graph", model, place, batch=size)
        for _ in range(2):  # the second is warm
            rows = [make_row(model, [n + 1] * 40, 128, SLOW) for n in range(size)]
            runtime.prefill(rows)
            began = time.perf_counter()
            list(runtime.run(rows, record=False))
            seconds = time.perf_counter() - began
        tokens = sum(len(row.ids) for row in rows)
        result[f"B={size} tokens/s at one a step"] = round(tokens / seconds)
        runtime.close()
    # Larger matrix products round differently: a confidence at a threshold may fall either way.
    return result | {"ok": differ <= 1}


def engine(place: Place) -> Result:
    """The engine as the app loads it, on the demo where it is."""
    folder = REPO / "assets" / "demo"
    if place.dry or not (folder / "config.json").exists():
        return {"ok": True, "skipped": "no demo model here"}
    from engine.engine import load_engine

    began = time.perf_counter()
    loaded = load_engine(folder)
    result: Result = {"load s": round(time.perf_counter() - began, 2)}
    result |= {"runtime": loaded.info.runtime, "notes": list(loaded.info.notes)}
    for _ in range(2):
        request = GenerateRequest((Message("user", "What is 12 + 30?"),), 256)
        events = list(loaded.generate(request))
        finished: Any = events[-1]
        result["reply"] = finished.text[:200]
        result["tok/s"] = round(finished.stats.tokens_per_second)
        result["TPF"] = round(finished.stats.tpf, 2)
        result["first block ms"] = round(1e3 * finished.stats.time_to_first_block, 2)
    loaded.unload()
    return result | {"ok": True}


def cycles(place: Place) -> Result:
    """Load, capture, reply, unload, again and again: memory comes back."""

    def cycle() -> float:
        began = time.perf_counter()
        model = random_model(place)
        runtime = make_arm("graph", model, place)
        run_rows(runtime, make_row(model, [3] * 40, 40, SLOW))
        runtime.close()
        return time.perf_counter() - began

    first = cycle()
    give_back(place)
    before, seconds, used = used_bytes(place), [], []
    began = time.perf_counter()
    while len(seconds) < (3 if place.dry else 20) and time.perf_counter() - began < 60:
        seconds.append(cycle())
        give_back(place)
        used.append((used_bytes(place) - before) / 1e6)
    return {
        "ok": used[-1] < 200,
        "cycles": len(seconds),
        "MB after each": [round(value, 1) for value in used],
        "s each": round(statistics.median(seconds), 2),
        "first s": round(first, 2),
    }


SECTIONS: dict[str, Callable[[Place], Result]] = {
    "smoke": smoke,
    "ids": ids,
    "books": books,
    "stop": stop,
    "nonfinite": nonfinite,
    "gil": gil,
    "timing": timing,
    "commits": commits,
    "batch": batch,
    "engine": engine,
    "cycles": cycles,
}


def alive(place: Place) -> bool:
    """Whether the CUDA context still works."""
    if place.dry:
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def run_sections(names: list[str], place: Place, out: Path) -> int:
    for name in names:
        began = time.perf_counter()
        faulthandler.dump_traceback_later(150, exit=True)
        try:
            result = SECTIONS[name](place)
        except Exception as error:  # noqa: BLE001 (a section's failure is a result)
            words = f"{type(error).__name__}: {error}"
            result = {"ok": False, "error": words, "trace": traceback.format_exc()[-2500:]}
        faulthandler.cancel_dump_traceback_later()
        row = {"section": name, "s": round(time.perf_counter() - began, 1)} | result
        with (out / "graph_loop.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row, indent=1), flush=True)
        if not alive(place):
            return DEAD
        give_back(place)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench-out")))
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--sections", default="")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.sections:
        place = Place.here(options.dry)
        return run_sections(options.sections.split(","), place, options.out)
    log = options.out / "graph_loop.jsonl"
    log.unlink(missing_ok=True)
    left = list(SECTIONS)
    while left:
        command = [sys.executable, __file__, "--out", str(options.out), "--sections"]
        command += [",".join(left), *["--dry"] * options.dry]
        status = subprocess.run(command, check=False).returncode
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        done = {row["section"] for row in rows}
        after = [name for name in left if name not in done]
        if after and status != DEAD:  # it died inside the first section left
            with log.open("a", encoding="utf-8") as file:
                lost = {"section": after[0], "s": 0, "ok": False, "error": f"status {status}"}
                file.write(json.dumps(lost) + "\n")
            after = after[1:]
        left = after
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for row in rows:
        print(f"{row['section']:<10} {'ok' if row['ok'] else 'FAILED':<7} {row['s']:>6} s")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
