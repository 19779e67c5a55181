"""A trace is written and read back as it was."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
from traces import full_trace, plain_trace

from engine.trace import Trace, open_trace, save_trace


def assert_same(found: Trace, wanted: Trace) -> None:
    for field in fields(Trace):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, field.name)
    assert found.header == wanted.header


def test_a_trace_comes_back_as_it_was_written(tmp_path: Path) -> None:
    trace = full_trace()
    save_trace(trace, tmp_path / "a.dntrace")
    found = open_trace(tmp_path / "a.dntrace")
    assert_same(found, trace)
    assert found.logits is not None
    assert trace.logits is not None
    np.testing.assert_array_equal(found.logits.values, trace.logits.values)
    np.testing.assert_array_equal(found.logits.step, trace.logits.step)
    np.testing.assert_array_equal(found.logits.position, trace.logits.position)


def test_what_was_not_captured_is_none(tmp_path: Path) -> None:
    save_trace(plain_trace(), tmp_path / "a.dntrace")
    found = open_trace(tmp_path / "a.dntrace")
    assert found.top_ids is None
    assert found.top_p is None
    assert found.logits is None
    assert_same(found, plain_trace())
