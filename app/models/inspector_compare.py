"""The trace that is shown (A) beside another one (B): compared off the GUI thread.

It knows which two are compared and hands the difference to the views as a fill of A. It refuses to
know how traces are aligned (`engine.trace.compare`) and what is said of them (`engine.trace.why`).
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QObject, Signal, Slot

from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background
from app.models.inspector import InspectorModel, Selection, Source
from engine.trace import Trace
from engine.trace.compare import Comparison, Difference, compare
from engine.trace.why import divergence_sentence, why_slower

CLOSE_SECONDS = 10.0
Compared = tuple[Comparison, tuple[str, ...]]


class CompareModel(QObject):
    changed = Signal()
    failed = Signal(object)  # Problem

    def __init__(self, inspector: InspectorModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.other: Trace | None = None
        self.name = ""
        self.result: Comparison | None = None
        self.sentences: tuple[str, ...] = ()
        self._inspector = inspector
        self._asked = 0
        self._lane = Background("trace comparison", 1, self)
        inspector.trace_changed.connect(self.stop)

    @property
    def busy(self) -> bool:
        return self.other is not None and self.result is None

    def start(self, other: Trace, name: str) -> None:
        """Compares the trace that is shown with another one. Does nothing while it grows."""
        data = self._inspector.data
        if data is None or self._inspector.source is Source.LIVE:
            return
        self._asked += 1
        asked, shown = self._asked, data.trace
        self.other, self.name = other, name
        self.result, self.sentences = None, ()

        def work(_stop: Stop) -> Compared:
            found = compare(shown, other)
            words = (divergence_sentence(shown, other, found), *why_slower(shown, other, found))
            return found, (*words, *found.notes)

        def then(compared: Compared) -> None:
            if asked == self._asked:
                self.result, self.sentences = compared
                self._inspector.show_difference(difference_of(shown, self.result))
                self.changed.emit()

        def fail(problem: Problem) -> None:
            if asked == self._asked:
                self.stop()
                self.failed.emit(problem)

        self._lane.run(work, then, fail)
        self.changed.emit()

    @Slot()
    def stop(self) -> None:
        """Compares no longer."""
        if self.other is None:
            return
        self._asked += 1
        self.other, self.name, self.result, self.sentences = None, "", None, ()
        self._inspector.show_difference(None)
        self.changed.emit()

    def go_to_divergence(self) -> bool:
        """Selects where the two part. False when they do not, or it is not known."""
        data, found = self._inspector.data, self.result
        if data is None or found is None or found.diverged is None:
            return False
        at, trace = found.diverged, data.trace
        rows = np.flatnonzero((trace.block_start == at.block_start) & (trace.step == at.step))
        if not rows.size:
            return False
        self._inspector.scrub(int(rows[0]))
        self._inspector.select(position=at.position - data.first_position)
        return True

    def kind_at(self, selection: Selection) -> Difference | None:
        """How the selected cell differs; None where nothing is compared or known."""
        data, difference = self._inspector.data, self._inspector.difference
        if data is None or difference is None:
            return None
        segment = data.segment_of(selection.position)
        if segment is None or selection.step < segment.first:
            return None
        row = min(selection.step, segment.last)
        return Difference(int(difference[row, selection.position - segment.begin]))

    def close(self) -> bool:
        """Ends the thread. True when it ended."""
        return self._lane.close(time.monotonic() + CLOSE_SECONDS)


def difference_of(shown: Trace, found: Comparison) -> npt.NDArray[np.uint8] | None:
    """uint8 [S, L] of the first trace's cells (`Difference`); None when the two lie on different
    grids."""
    raster = found.raster
    if raster is None:
        return None
    values = np.full(shown.ids.shape, Difference.ONLY_A, dtype=np.uint8)
    mine = raster.row_a >= 0
    values[raster.row_a[mine]] = raster.cells[mine]
    return values
