"""Runs one step of a recorded reply again, with one accepted token taken away at a time.

The rows of a batch differ in one token each; the first is the step as it was. Tokens of finished
blocks are taken away where they stand, and every block from theirs on is read anew. Knows programs
and caches; what may be asked is `engine.trace.attribution`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.decoding.state import RowSettings
from engine.decoding.steering import SteeringState
from engine.errors import RequestError
from engine.runtime.rows import Row
from engine.runtime.shifted import ShiftedBlockProgram
from engine.runtime.step import StepProgram
from engine.trace.attribution import Attribution, Reach, StepInput, step_input
from engine.trace.errors import TraceError
from engine.trace.trace import Trace

ROWS = 32  # of one batch, at most
LOGITS = 2**28  # numbers that the logits of a batch may have
MakeProgram = Callable[[int, int], StepProgram]  # of rows, and positions of their cache


def attribute(
    trace: Trace,
    step: int,
    position: int,
    reach: Reach,
    row: Row,
    make_program: MakeProgram,
    stop: threading.Event | None,
) -> Attribution:
    """Raises TraceError `trace.attribution` for what cannot be asked, RequestError
    `request.stopped` when `stop` is set on the way."""
    asked = step_input(trace, step, position)
    column = position - asked.start
    token = int(trace.ids[step, column])
    taken = _candidates(asked, column, reach, trace)
    capacity = max(asked.start + len(asked.canvas), row.block_length)
    single = make_program(1, capacity)
    if single.remembers and (asked.within or not row.on_grid):
        raise TraceError(
            "trace.attribution",
            "A step of this model also reads what the step before expected, which a trace does not"
            " keep.",
            "Fork at this step with a token masked, and compare the two.",
        )
    length = single.state.tokens.shape[1]
    most = max(1, min(ROWS, LOGITS // (length * single.model.spec.vocab_size)))
    question = _Question(asked, row, token, column, int(trace.ids[step, 0]))
    shares: dict[int, float] = {}
    with torch.inference_mode():
        one = _Again(single, question)
        one.read(one.prefix, 0)
        base = one.probabilities([None])[0]
        again = one
        for group in _groups(taken, asked.start, len(asked.canvas), most):
            if stop is not None and stop.is_set():
                raise RequestError("request.stopped", "The question was stopped.", "Ask again.")
            if len(group) != again.batch or again is one:
                again = _Again(make_program(len(group), capacity), question)
            again.take_keys(single)
            shares |= zip(group, again.probabilities(group), strict=True)
    if single.foresees:  # the block's first token is put there again whatever stands there
        shares.pop(asked.start, None)
    places = np.array(sorted(shares), dtype=np.int32)
    every = np.concatenate((asked.before, asked.canvas))
    without = np.array([shares[place] for place in sorted(shares)], dtype=np.float32)
    return Attribution(step, position, token, base, places, every[places].astype(np.int32), without)


def _candidates(asked: StepInput, column: int, reach: Reach, trace: Trace) -> list[int]:
    """Absolute positions of what can be taken away, ascending. Finished blocks of a canvas of noise
    hold no mask that a model would know."""
    here = np.flatnonzero(asked.settled & ~asked.given)
    own = [asked.start + int(c) for c in here if c != column]
    if reach == "block" or trace.header.mask_id < 0:
        return own
    first = asked.start - len(asked.canvas) if reach == "near" else 0
    return [*range(max(len(trace.header.prompt_ids), first), asked.start), *own]


def _groups(taken: list[int], start: int, length: int, most: int) -> list[list[int]]:
    """At most `most` of one block together, since all blocks from theirs on are read anew."""
    blocks: dict[int, list[int]] = {}
    for place in taken:
        blocks.setdefault((place - start) // length, []).append(place)
    return [
        places[begin : begin + most]
        for places in blocks.values()
        for begin in range(0, len(places), most)
    ]


@dataclass(frozen=True)
class _Question:
    """The probability of `token` at a column of the step. first: what the trace shows at the
    block's first position."""

    asked: StepInput
    row: Row
    token: int
    column: int
    first: int


class _Again:
    """The step over a batch of rows."""

    def __init__(self, program: StepProgram, question: _Question) -> None:
        self.program, self.question, self.asked = program, question, question.asked
        self.batch, self.length = program.state.tokens.shape
        self.device = program.state.tokens.device
        row = question.row
        plain = replace(row.settings, temperature=0.0)
        self.settings = RowSettings.of([plain] * self.batch, self.device)
        program.load([row] * self.batch)
        self.steering: SteeringState | None = None
        if row.steering.within_steps:  # bans and settings; what was placed is on the canvas
            self.steering = SteeringState(self.batch, program.cache.capacity, self.device)
            self.steering.load([replace(row.steering, placements=())] * self.batch)
        self.prefix = torch.from_numpy(self.asked.before).to(self.device).repeat(self.batch, 1)

    def probabilities(self, taken: Sequence[int | None]) -> list[float]:
        """Of the token, in a row for each of B absolute positions that are taken away (None =
        none), all of one block. The keys of all blocks before the step's are those of the trace."""
        state, asked = self.program.state, self.asked
        mask_id = self.program.rule.mask_id
        canvas = self._row(np.where(asked.settled, asked.canvas, mask_id), mask_id)
        held = self._row(asked.given, False)
        prefix, changed = self.prefix.clone(), asked.start
        for row, place in enumerate(taken):
            if place is None:
                continue
            if place >= asked.start:
                canvas[row, place - asked.start] = mask_id
            else:
                prefix[row, place] = mask_id
                changed = min(changed, place // self.length * self.length)
        self.read(prefix, changed)
        if isinstance(self.program, ShiftedBlockProgram):
            self.program.foreseen.fill_(self.question.first)
        start = torch.full_like(state.start, asked.start)
        state.begin(canvas, held, start, mask_id)
        state.step.fill_(asked.within)
        state.finished.zero_()
        settings = self.settings
        if self.steering is not None:
            settings = self.steering.settings_at(settings, state.start, state.step)
            settings.temperature.zero_()
        judged = self.program.step(settings, asked.start + self.length, False, self.steering)
        token = torch.full_like(state.tokens, self.question.token)
        return judged.probability(token)[:, self.question.column].tolist()

    def _row(self, values: npt.NDArray[Any], fill: int | bool) -> Tensor:
        """[B, L]: the same in every row; `fill` behind the end of a canvas that was cut."""
        width = self.length - len(values)
        padded = np.pad(values, (0, width), constant_values=fill)
        return torch.from_numpy(padded).to(self.device).repeat(self.batch, 1)

    def read(self, prefix: Tensor, begin: int) -> None:
        """Writes the keys of prefix (int64 [B, start]) from position `begin` on, block by block."""
        if not self.program.prefills:
            return
        for first in range(begin, self.asked.start, self.length):
            positions = torch.arange(first, first + self.length, device=self.device)
            ids = prefix[:, first : first + self.length]
            where = positions.expand(self.batch, -1)
            self.program.prefill(ids, where, first + self.length)

    def take_keys(self, single: StepProgram) -> None:
        """Those that a program of one row has read, into every row."""
        end = self.asked.start
        if self.program.prefills and end:
            pairs = zip(self.program.cache.first(end), single.cache.first(end), strict=True)
            for every, read in pairs:
                every.copy_(read.expand_as(every))
