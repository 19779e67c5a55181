"""Judging and bookkeeping by kernels against the torch functions, on random requests through the
whole-reply graph: ids and records, launches of each piece, and milliseconds a step."""

from __future__ import annotations

import random
import time
from typing import Any

import torch
from loop_arms import (
    Place,
    make_arm,
    make_row,
    outcome,
    random_model,
    random_requests,
    run_rows,
)
from torch import Tensor

from engine.decoding.judge import judge
from engine.decoding.said import Said
from engine.decoding.state import RowSettings
from engine.decoding.steering import EVERYWHERE, Steering, SteeringState
from engine.models.llada2 import LLaDA2
from engine.runtime.graph import GraphRuntime
from engine.runtime.rows import Row, StepMark
from engine.types import DecodeSettings

Result = dict[str, Any]
SLOW = DecodeSettings(threshold=1.0, steps=32)  # one token a step
PLANS = [("llada2.0", torch.float32), ("llada2.1", torch.float32), ("llada2.1", torch.bfloat16)]


def books(place: Place) -> Result:
    """Three arms: all by torch; logits judged by torch and the books kept by kernels, which must
    agree in every bit; all by kernels, whose sums differ, so that a near tie may fall either
    way."""
    result: Result = {"ok": True}
    for decoding, dtype in PLANS:
        here = Place.here(place.dry, dtype)
        model = random_model(here, decoding)
        found = _compare(model, here, batch=1, count=2 if place.dry else 14)
        found["batch of 3"] = _compare(model, here, batch=3, count=1 if place.dry else 4)
        result[f"{decoding} {str(dtype)[6:]}"] = found
        for part in (found, found["batch of 3"]):
            result["ok"] &= part["books differ"] == 0 and part["records differ"] == 0
    result |= _launches(place)
    return result


def _compare(model: LLaDA2, place: Place, batch: int, count: int) -> Result:
    arms = {name: _arm(name, model, place, batch) for name in ("torch", "books", "kernels")}
    capacity = arms["torch"].pieces.reply.capacity
    requests = list(random_requests(model, count * batch, 11, capacity // 4, capacity // 8))
    rng = random.Random(4)
    found: Result = {"requests": len(requests), "steps": 0}
    found |= {"books differ": 0, "records differ": 0, "all by kernels differ": 0}
    apart = 0.0
    for first in range(0, len(requests), batch):
        group = requests[first : first + batch]
        steering = [_steering(rng, len(prompt)) for prompt, _, _ in group]
        rows: dict[str, list[Row]] = {}
        marks: dict[str, list[StepMark]] = {}
        for name, runtime in arms.items():
            rows[name] = [make_row(model, *request) for request in group]
            for row, hand in zip(rows[name], steering, strict=True):
                row.steering = hand
            marks[name] = run_rows(runtime, *rows[name])
        outcomes = {name: [outcome(row) for row in rows[name]] for name in arms}
        found["steps"] += len(marks["torch"])
        found["books differ"] += outcomes["books"] != outcomes["torch"]
        records = [[_bits(mark) for mark in marks[name]] for name in ("torch", "books")]
        found["records differ"] += records[0] != records[1]
        found["all by kernels differ"] += outcomes["kernels"] != outcomes["torch"]
        if outcomes["kernels"] == outcomes["torch"]:
            apart = max(apart, _apart(marks["kernels"], marks["torch"]))
    found["confidences apart where ids agree"] = apart
    found["words"] = arms["kernels"].pieces.words
    for runtime in arms.values():
        runtime.close()
    return found


def _arm(name: str, model: LLaDA2, place: Place, batch: int = 1) -> GraphRuntime:
    runtime = make_arm("graph", model, place, batch=batch, one_launch=name != "torch")
    assert isinstance(runtime, GraphRuntime)
    if name == "books":
        assert runtime.pieces.books is not None
        runtime.pieces.books.judge = TorchJudge(runtime.pieces.program.suppressed)
    return runtime


class TorchJudge:
    """The reference behind the kernels' seam."""

    def __init__(self, suppressed: int | None) -> None:
        self.suppressed = suppressed

    def __call__(
        self,
        logits: Tensor,
        settings: RowSettings,
        start: Tensor,
        step: Tensor,
        canvas: Tensor,
        steering: SteeringState | None,
        ahead: bool = False,
    ) -> Said:
        positions = start + torch.arange(canvas.shape[1], device=canvas.device)
        judgement = judge(logits, settings, positions, step, self.suppressed, steering)
        return Said.of(judgement, canvas)


def _steering(rng: random.Random, prompt: int) -> Steering:
    """A person's hand on every third request."""
    if rng.random() < 0.67:
        return Steering()
    places = [prompt + rng.randrange(20) for _ in range(4)]
    banned = [(EVERYWHERE, rng.randrange(90)), (places[0], rng.randrange(90))]
    return Steering({places[1]: rng.randrange(90)}, banned, {places[2]: 1, places[3]: 2})


def _bits(mark: StepMark) -> tuple[object, ...]:
    step = mark.step_taken
    if step is None:
        return mark.block_done, mark.dropped
    numbers = (mark.block_done, step.block, step.step, step.block_start, step.forwards)
    arrays = (step.ids, step.state, step.confidence, step.entropy, step.edited_from)
    return (*numbers, *(array.tobytes() for array in arrays))


def _apart(marks: list[StepMark], wanted: list[StepMark]) -> float:
    most = 0.0
    for mark, other in zip(marks, wanted, strict=True):
        if mark.step_taken is not None and other.step_taken is not None:
            pair = [
                torch.from_numpy(m.confidence.copy()) for m in (mark.step_taken, other.step_taken)
            ]
            most = max(most, float((pair[0] - pair[1]).abs().nan_to_num(0.0).max()))
    return most


def _launches(place: Place) -> Result:
    """Nodes of each piece and milliseconds a step, with and without kernels."""
    result: Result = {}
    model = random_model(place, "llada2.1", stops=False)
    limit = 60 if place.dry else 300
    for name in ("torch", "kernels"):
        runtime = _arm(name, model, place)
        run_rows(runtime, make_row(model, [3] * 40, limit, SLOW))
        times = []
        for record in (False, True):
            row = make_row(model, [3] * 40, limit, SLOW)
            runtime.prefill([row])
            began = time.perf_counter()
            list(runtime.run([row], record=record))
            times.append(round(1e3 * (time.perf_counter() - began) / row.forwards, 4))
        result[f"{name}: ms/step off, light"] = times
        if not place.dry:
            captured = runtime.captured.of_reply(runtime.pieces.variant)
            calls: Any = runtime.backend.calls
            result[f"{name}: nodes"] = {n: calls.node_count(g) for n, g in captured.items()}
        runtime.close()
    return result
