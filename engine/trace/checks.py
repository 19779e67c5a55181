"""Whether the arrays of a trace can be what they say: ranges and order, so that no view trips.

Knows numpy alone. Reads arrays in pieces: a check takes no memory in proportion to the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.trace.header_json import damaged
from engine.trace.trace import Trace
from engine.types import TokenState

MAX_POSITIONS = 2**22  # of one reply: far above any model's context
CHUNK = 2**18  # values looked at together
Array = npt.NDArray[Any]
_ROUNDING = 1e-3  # a softmax in float32 may sum to a little more than 1


def check_trace(trace: Trace) -> None:
    """Raises TraceError `trace.damaged` at the first value that no reply could have given."""
    _check_order(trace)
    vocabulary = trace.header.vocab_size or 2**31 - 1

    def token(values: Array) -> npt.NDArray[np.bool_]:
        return (values >= -1) & (values < vocabulary)

    def share(values: Array) -> npt.NDArray[np.bool_]:
        return np.isnan(values) | ((values >= 0) & (values <= 1 + _ROUNDING))

    prompt = np.array(trace.header.prompt_ids, dtype=np.int64)
    _require(prompt, lambda v: token(v) & (v >= 0), "a prompt's token outside the vocabulary")
    _require(trace.ids, lambda v: token(v) & (v >= 0), "a token id outside the vocabulary")
    _require(trace.edited_from, token, "a replaced token id outside the vocabulary")
    _require(trace.state, lambda v: v <= max(TokenState), "a token in no known state")
    _require(trace.confidence, share, "a confidence outside 0 to 1")
    _require(
        trace.entropy,
        lambda v: np.isnan(v) | ((v > -_ROUNDING) & (v < np.inf)),
        "an entropy below 0",
    )
    if trace.top_ids is not None and trace.top_p is not None:
        _require(trace.top_ids, token, "a candidate's id outside the vocabulary")
        _require(trace.top_p, share, "a candidate's probability outside 0 to 1")
    _check_logits(trace)


def _check_order(trace: Trace) -> None:
    length = trace.ids.shape[1]
    block, step = trace.block.astype(np.int64), trace.step.astype(np.int64)
    start = trace.block_start.astype(np.int64)
    if block[0] < 0 or step.min() < 0 or start[0] < 0 or trace.forwards.min() < 0:
        raise damaged("a step with a number below 0")
    if (np.diff(block) < 0).any():
        raise damaged("blocks out of order")
    if (start != start[0] + (block - block[0]) * length).any():
        raise damaged("a block that does not begin where the one before it ends")
    if start[-1] + length > MAX_POSITIONS:
        raise damaged(f"more than {MAX_POSITIONS} positions")
    if ((np.diff(step) <= 0) & (np.diff(block) == 0)).any():
        raise damaged("steps of a block out of order")
    if not np.isfinite(trace.seconds).all():
        raise damaged("a time that is no number")


def _check_logits(trace: Trace) -> None:
    kept = trace.logits
    if kept is None:
        return
    inside = (kept.step >= 0) & (kept.step < len(trace))
    if not inside.all():
        raise damaged("logits of a step that is not there")
    column = kept.position.astype(np.int64) - trace.block_start[kept.step]
    if ((column < 0) | (column >= trace.ids.shape[1])).any():
        raise damaged("logits of a position outside their step's block")
    _require(kept.values, lambda v: v < np.inf, "a logit that is no number")


def _require(array: Array, good: Callable[[Array], npt.NDArray[np.bool_]], problem: str) -> None:
    for part in _parts(array):
        if not good(part).all():
            raise damaged(problem)


def _parts(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    for begin in range(0, flat.size, CHUNK):
        yield flat[begin : begin + CHUNK]
