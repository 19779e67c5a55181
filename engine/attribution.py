"""Runs one step of a recorded reply again, with one accepted token taken away at a time.

The rows of a batch differ in one token each; the first is the step as it was. Tokens of finished
blocks are taken away where they stand, and every block from theirs on is read anew. Knows programs
and caches; what may be asked is `engine.trace.attribution`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
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

ROWS = 32  # of one batch
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
    taken = _candidates(asked, column, reach, len(trace.header.prompt_ids))
    groups = _groups(taken, asked.start, len(asked.canvas))
    batch = max((len(group) for group in groups), default=1)
    capacity = max(asked.start + len(asked.canvas), row.block_length)
    program = make_program(batch, capacity)
    if program.remembers and (asked.within or not row.on_grid):
        raise TraceError(
            "trace.attribution",
            "A step of this model also reads what the step before expected, which a trace does not"
            " keep.",
            "Fork at this step with a token masked, and compare the two.",
        )
    again = _Again(program, asked, row, token, column, int(trace.ids[step, 0]))
    shares: dict[int, float] = {}
    with torch.inference_mode():
        again.read_once(make_program(1, capacity))
        base = again.probabilities([None])[0]
        for group in groups:
            if stop is not None and stop.is_set():
                raise RequestError("request.stopped", "The question was stopped.", "Ask again.")
            shares |= zip(group, again.probabilities(group), strict=True)
    if program.foresees:  # the block's first token is put there again whatever stands there
        shares.pop(asked.start, None)
    places = np.array(sorted(shares), dtype=np.int32)
    every = np.concatenate((asked.before, asked.canvas))
    without = np.array([shares[place] for place in sorted(shares)], dtype=np.float32)
    return Attribution(step, position, token, base, places, every[places].astype(np.int32), without)


def _candidates(asked: StepInput, column: int, reach: Reach, prompt: int) -> list[int]:
    """Absolute positions of what can be taken away, ascending."""
    here = np.flatnonzero(asked.settled & ~asked.given)
    own = [asked.start + int(c) for c in here if c != column]
    first = {"block": asked.start, "near": asked.start - len(asked.canvas), "reply": 0}[reach]
    return [*range(max(prompt, first), asked.start), *own]


def _groups(taken: list[int], start: int, length: int) -> list[list[int]]:
    """At most `ROWS` of one block together, since all blocks from theirs on are read anew; the last
    block first, so that none is read to be put back."""
    blocks: dict[int, list[int]] = {}
    for place in reversed(taken):
        blocks.setdefault((place - start) // length, []).append(place)
    return [
        places[begin : begin + ROWS]
        for places in blocks.values()
        for begin in range(0, len(places), ROWS)
    ]


class _Again:
    """The step over a batch of rows. read: positions before which every row's keys
    are those of the trace's tokens."""

    def __init__(
        self, program: StepProgram, asked: StepInput, row: Row, token: int, column: int, first: int
    ) -> None:
        self.program, self.asked, self.column = program, asked, column
        self.batch, self.length = program.state.tokens.shape
        self.device = program.state.tokens.device
        plain = replace(row.settings, temperature=0.0)
        self.settings = RowSettings.of([plain] * self.batch, self.device)
        self.token = torch.full((self.batch, self.length), token, device=self.device)
        program.load([row] * self.batch)
        self.first = first
        self.steering: SteeringState | None = None
        if row.steering.within_steps:  # bans and settings; what was placed is on the canvas
            self.steering = SteeringState(self.batch, program.cache.capacity, self.device)
            self.steering.load([replace(row.steering, placements=())] * self.batch)
        self.before = torch.from_numpy(asked.before).to(self.device)
        self.read = asked.start

    def probabilities(self, taken: Sequence[int | None]) -> list[float]:
        """Of the token, in a row for each of at most B absolute positions that are taken away (None
        = none), all of one block."""
        state, asked = self.program.state, self.asked
        mask_id = self.program.rule.mask_id
        canvas = self._row(np.where(asked.settled, asked.canvas, mask_id), mask_id)
        held = self._row(asked.given, False)
        prefix = self.before.repeat(self.batch, 1)
        changed = asked.start
        for row, place in enumerate(taken):
            if place is None:
                continue
            if place >= asked.start:
                canvas[row, place - asked.start] = mask_id
            else:
                prefix[row, place] = mask_id
                changed = min(changed, place // self.length * self.length)
        self._read(prefix, changed)
        if isinstance(self.program, ShiftedBlockProgram):
            self.program.foreseen.fill_(self.first)
        start = torch.full_like(state.start, asked.start)
        state.begin(canvas, held, start, mask_id)
        state.step.fill_(asked.within)
        state.finished.zero_()
        bound = asked.start + self.length
        settings = self.settings
        if self.steering is not None:
            settings = self.steering.settings_at(settings, state.start, state.step)
            settings.temperature.zero_()
        judged = self.program.step(settings, bound, False, self.steering)
        return judged.probability(self.token)[: len(taken), self.column].tolist()

    def _row(self, values: npt.NDArray[Any], fill: int | bool) -> Tensor:
        """[B, L]: the same in every row; `fill` behind the end of a canvas that was cut."""
        width = self.length - len(values)
        padded = np.pad(values, (0, width), constant_values=fill)
        return torch.from_numpy(padded).to(self.device).repeat(self.batch, 1)

    def read_once(self, single: StepProgram) -> None:
        """Keys of all blocks before the step's, by a program of one row over the same positions,
        taken over into every row."""
        if not self.program.prefills or not self.asked.start:
            return
        _read_blocks(single, self.before.unsqueeze(0), 0)
        end = self.asked.start
        for every, read in zip(self.program.cache.first(end), single.cache.first(end), strict=True):
            every.copy_(read.expand_as(every))

    def _read(self, prefix: Tensor, changed: int) -> None:
        """Keys of the blocks before the step's from the first one that is not as it was."""
        begin, self.read = min(self.read, changed), changed
        if self.program.prefills:
            _read_blocks(self.program, prefix, begin)


def _read_blocks(program: StepProgram, prefix: Tensor, begin: int) -> None:
    """prefix int64 [B, T]: tokens from position 0 on; their keys from `begin` on are written."""
    batch, length = program.state.tokens.shape
    for first in range(begin, prefix.shape[1], length):
        positions = torch.arange(first, first + length, device=prefix.device)
        ids = prefix[:, first : first + length]
        program.prefill(ids, positions.expand(batch, -1), first + length)
