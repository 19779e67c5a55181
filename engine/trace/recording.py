"""Records whole replies of an engine: from a request, or as a fork of a trace.

Knows the engine by its protocol alone, so that a scripted one can be recorded, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from engine.trace.errors import TraceError
from engine.trace.fork import Fork, header_of_fork
from engine.trace.header import TraceHeader
from engine.trace.recorder import TraceRecorder
from engine.trace.trace import Trace
from engine.types import Event, GenerateRequest

OnEvent = Callable[[Event], None]


class TracedEngine(Protocol):
    """What an engine offers whose replies can be recorded and forked."""

    def trace_header(self, request: GenerateRequest) -> TraceHeader:
        """What is known of a reply before it begins. Raises RequestError as `generate` does."""
        ...

    def generate(
        self, request: GenerateRequest, stop: threading.Event | None = None
    ) -> Iterator[Event]: ...

    def fork(self, fork: Fork, stop: threading.Event | None = None) -> Iterator[Event]:
        """The events of a fork, from the reply's first step on."""
        ...

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]: ...


def record(
    engine: TracedEngine,
    request: GenerateRequest,
    stop: threading.Event | None = None,
    on_event: OnEvent | None = None,
) -> Trace:
    """One reply, recorded at `request.capture`. Raises UnblurError as `generate` does, and
    TraceError `trace.empty` when not a single step was taken."""
    header = engine.trace_header(request)
    return _recorded(engine, header, engine.generate(request, stop), on_event)


def record_fork(
    engine: TracedEngine,
    fork: Fork,
    stop: threading.Event | None = None,
    on_event: OnEvent | None = None,
) -> Trace:
    """A fork's whole reply: the parent's steps, then its own. Raises as `record`, and TraceError
    `trace.fork_...` for what cannot be forked."""
    header = header_of_fork(fork)
    return _recorded(engine, header, engine.fork(fork, stop), on_event)


def with_pieces(trace: Trace, pieces: Callable[[Sequence[int]], tuple[str, ...]]) -> Trace:
    """The trace with the display text of every id that occurs in it."""
    header = trace.header
    known = np.array([*header.prompt_ids, *header.stop_ids], dtype=np.int64)
    arrays = [known, trace.ids, trace.edited_from]
    if trace.top_ids is not None:
        arrays.append(trace.top_ids)
    ids = np.unique(np.concatenate([array.ravel() for array in arrays]))
    present = ids[ids >= 0].tolist()
    texts = dict(zip(present, pieces(present), strict=True))
    return replace(trace, header=replace(header, pieces=texts))


def _recorded(
    engine: TracedEngine, header: TraceHeader, events: Iterator[Event], on_event: OnEvent | None
) -> Trace:
    recorder = TraceRecorder(header)
    for event in events:
        recorder.take(event)
        if on_event is not None:
            on_event(event)
    if not len(recorder):
        raise TraceError(
            "trace.empty",
            "The reply was stopped before its first step, or recorded at level 'off'.",
            "Record it again, at level 'light' or above.",
        )
    return with_pieces(recorder.trace(), engine.pieces)
