"""Trace files as the window sees them: opened, saved and exported off the GUI thread.

It knows which trace is on its way in or out, and how each failure becomes a `Problem`. It refuses
to know the file format (`engine.trace`) and what the inspector shows of a trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background
from app.models.inspector import Indexed, InspectorModel, Source
from engine.trace import EXTENSION, Trace, TraceError, open_trace, save_trace

CLOSE_SECONDS = 10.0
MOST_POSITIONS = 2**17  # laying them out must not hold the window up
Writer = Callable[[Trace, Path], object]


class InspectorFiles(QObject):
    busy_changed = Signal()
    failed = Signal(object)  # Problem
    opened = Signal(str)  # path
    written = Signal(str)  # path

    def __init__(self, model: InspectorModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.doing = ""  # what is under way, in words; "" = nothing
        self._model = model
        self._asked = 0
        self._lane = Background("trace files", 1, self)

    def open(self, path: str | Path) -> None:
        """Reads a file and shows it. The last one asked for is the one shown."""
        source = Path(path)
        self._asked += 1
        asked = self._asked

        def work(_stop: Stop) -> Indexed:
            return Indexed.of(opened_trace(source))

        def then(indexed: Indexed) -> None:
            self._say("")
            if asked == self._asked:
                self._model.show_indexed(indexed, Source.FILE, source.name)
                self.opened.emit(str(source))

        self._say(self.tr("Opening {0}").format(source.name))
        self._lane.run(work, then, self._fail)

    def compare_with(self, path: str | Path, then: Callable[[Trace, str], None]) -> None:
        """Reads a file and hands it on without showing it."""
        source = Path(path)

        def done(trace: Trace) -> None:
            self._say("")
            then(trace, source.name)

        self._say(self.tr("Opening {0}").format(source.name))
        self._lane.run(lambda _stop: opened_trace(source), done, self._fail)

    def save(self, path: str | Path) -> None:
        """Writes the trace that is shown, as it is now."""
        self.write(path, save_trace)

    def write(self, path: str | Path, writer: Writer) -> None:
        """Calls `writer` with the trace that is shown and the path."""
        data = self._model.data
        if data is None:
            return
        target, trace = Path(path), data.trace

        def then(_result: object) -> None:
            self._say("")
            self.written.emit(str(target))

        self._say(self.tr("Writing {0}").format(target.name))
        self._lane.run(lambda _stop: writer(trace, target), then, self._fail)

    def close(self) -> bool:
        """Ends the thread; a file half written never takes the place of a whole one. True when it
        ended."""
        return self._lane.close(time.monotonic() + CLOSE_SECONDS)

    def _fail(self, problem: Problem) -> None:
        self._say("")
        self.failed.emit(problem)

    def _say(self, doing: str) -> None:
        self.doing = doing
        self.busy_changed.emit()


def opened_trace(path: Path) -> Trace:
    """The trace in a file. Raises TraceError."""
    trace = open_trace(path)
    if len(trace) == 0:
        raise TraceError(
            "trace.empty",
            f"{path.name} holds no step.",
            "Record the answer again, and save it after its first step.",
        )
    positions = int(trace.block_start[-1] - trace.block_start[0]) + trace.ids.shape[1]
    if positions > MOST_POSITIONS:
        raise TraceError(
            "trace.too_long_to_show",
            f"{path.name} holds {positions:,} positions; the window shows up to "
            f"{MOST_POSITIONS:,}.",
            "Look at it in the terminal: unblur trace show FILE.",
        )
    return trace


def is_trace_file(path: str) -> bool:
    """Whether a path is named like a trace file."""
    return path.lower().endswith(EXTENSION)
