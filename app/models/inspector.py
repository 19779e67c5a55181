"""What the inspector shows: one trace, one selected step and position, and how it is played.

It knows the selection that every view shares, playback, and following a reply that is being
written. It refuses to know widgets and files: a view is told that something changed and asks for
what it draws.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from app.models.engine_model import EngineModel
from app.models.inspector_curves import Curves, Mark, MarkKind, commit_front, curves_of, marks_of
from app.models.inspector_data import InspectorData, Moment
from app.models.inspector_fills import FillKey, Levels
from app.models.lifecycle import Lifecycle
from app.models.worker import ReplyOutcome
from engine.trace import Trace

FRAME_MS = 16
SPEEDS = (1, 2, 5, 10, 30, 60, 0)  # steps a second; 0 = as it was recorded
DEFAULT_SPEED = 10
KEPT_BYTES = 64 * 2**20  # of traces of answers, newest first


class Source(Enum):
    NONE = "none"
    LIVE = "live"  # the reply being written
    ANSWER = "answer"  # a finished reply of this session
    FILE = "file"


@dataclass(frozen=True)
class Selection:
    """step: row of the trace. position: counted from the reply's first block."""

    step: int = 0
    position: int = 0


@dataclass(frozen=True, eq=False)
class Indexed:
    """A trace with all that is computed of it once. May be made on any thread."""

    data: InspectorData
    curves: Curves
    marks: tuple[Mark, ...]
    front: npt.NDArray[np.intp]

    @staticmethod
    def of(trace: Trace) -> Indexed:
        """Raises ValueError when the trace holds no step."""
        data = InspectorData(trace)
        return Indexed(data, curves_of(data), marks_of(data), commit_front(data))


class InspectorModel(QObject):
    trace_changed = Signal()  # another trace, or none
    grown = Signal()  # the same reply has more steps
    selection_changed = Signal(object, object)  # Selection before, Selection now
    fill_changed = Signal()
    play_changed = Signal()
    kept_changed = Signal()  # an answer's trace was kept or let go

    def __init__(
        self, engine: EngineModel, parent: QObject | None = None, always_live: bool = False
    ) -> None:
        """always_live: the reply being written is shown whatever was shown before."""
        super().__init__(parent)
        self._always_live = always_live
        self.source = Source.NONE
        self.title = ""
        self.reply_id = ""
        self.data: InspectorData | None = None
        self.levels: Levels | None = None
        self.curves: Curves | None = None
        self.marks: tuple[Mark, ...] = ()
        self.front: npt.NDArray[np.intp] | None = None
        self.selection = Selection()
        self.fill: FillKey = "confidence"
        self.difference: npt.NDArray[np.uint8] | None = None  # [S, L] to the trace compared with
        self.follow = True
        self._led = False  # the position was chosen by following, not by a person
        self.speed = DEFAULT_SPEED
        self._engine = engine
        self._kept: dict[str, Trace] = {}
        self._watching = False
        self._stale = False
        self._seen = 0
        self._expected: dict[str, str] = {}  # reply id: title
        self._begun, self._begun_step = 0.0, 0
        self._timer = QTimer(self)
        self._timer.setInterval(FRAME_MS)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._play_on)
        engine.snapshot_changed.connect(self._on_progress)
        engine.reply_ended.connect(self._on_reply_ended)

    # which trace

    def show(self, trace: Trace, source: Source, title: str, reply_id: str = "") -> None:
        """Shows a trace from its first step, or at its last one when it is being written."""
        self.show_indexed(Indexed.of(trace), source, title, reply_id)

    def show_indexed(
        self, indexed: Indexed, source: Source, title: str, reply_id: str = ""
    ) -> None:
        """As `show`, with the work done before."""
        self.pause()
        self.source, self.title, self.reply_id = source, title, reply_id
        self.difference = None
        if self.fill == "difference":
            self.fill = "confidence"
        self._put(indexed)
        self.follow = self._led = source is Source.LIVE
        step = self._last_step if self.follow else 0
        self.selection = Selection(step, self._first_open(step))
        self.trace_changed.emit()

    @Slot()
    def clear(self) -> None:
        """Shows no trace."""
        self.pause()
        self.source, self.title, self.reply_id = Source.NONE, "", ""
        self.data = self.levels = self.curves = self.front = None
        self.marks = ()
        self.selection = Selection()
        self.trace_changed.emit()

    def show_answer(self, reply_id: str, title: str) -> bool:
        """Shows the reply being written or a kept one. False when its steps are not known."""
        running = self._engine.live_trace.latest(reply_id) if self._writing else None
        if running is not None:
            self.show(running, Source.LIVE, title, reply_id)
            return True
        trace = self._kept.get(reply_id)
        if trace is not None:
            self.show(trace, Source.ANSWER, title, reply_id)
        return trace is not None

    def expect(self, reply_id: str, title: str) -> None:
        """Shows this reply as soon as it has a step, whatever is shown now."""
        self._expected[reply_id] = title

    def title_of(self, reply_id: str) -> str:
        """What an expected reply is called."""
        return self._expected.get(reply_id, "")

    def answers(self) -> tuple[Trace, ...]:
        """The kept traces, newest first."""
        return tuple(reversed(self._kept.values()))

    def knows(self, reply_id: str) -> bool:
        """Whether `show_answer` would show this finished reply."""
        return reply_id in self._kept

    def _put(self, indexed: Indexed) -> None:
        self.data, self.curves = indexed.data, indexed.curves
        self.marks, self.front = indexed.marks, indexed.front
        self.levels = Levels(indexed.data, self.fill, self.difference)

    # following a reply

    def watch(self, watching: bool) -> None:
        """Whether anybody looks: a hidden page does not index a growing trace."""
        self._watching = watching
        if watching and self._stale:
            self._on_progress()

    @property
    def _writing(self) -> bool:
        busy = self._engine.state in (Lifecycle.GENERATING, Lifecycle.STOPPING)
        return busy and not self._engine.asking

    @Slot()
    def _on_progress(self) -> None:
        """A running reply takes the page over only when nothing else is being looked at."""
        if not self._watching:
            self._stale = True
            return
        self._stale = False
        live = self._engine.live_trace
        free = self._always_live or self.source in (Source.NONE, Source.LIVE)
        if not free and live.reply_id not in self._expected:
            return
        taken = live.take(self._seen)
        if taken is None:
            return
        self._seen, trace = taken
        again = self.data is not None and len(trace) < self.data.steps
        if self.source is not Source.LIVE or live.reply_id != self.reply_id or again:
            words = self.tr("The answer being written"), self.tr("The last answer")
            source = Source.LIVE if self._writing else Source.ANSWER
            title = self._expected.get(live.reply_id, words[source is Source.ANSWER])
            self.show(trace, source, title, live.reply_id)
            return
        self.extend(trace)

    def extend(self, trace: Trace) -> None:
        """The same reply with more steps than are shown: the selection goes along if it follows."""
        self._put(Indexed.of(trace))
        self.grown.emit()
        if self.follow:
            self.select(self._last_step, self._first_open(self._last_step))

    @Slot(object)
    def _on_reply_ended(self, outcome: ReplyOutcome) -> None:
        trace = self._engine.live_trace.latest(outcome.reply_id)
        if trace is None:
            return
        self._kept.pop(outcome.reply_id, None)
        self._kept[outcome.reply_id] = trace
        self._let_go()
        title = self._expected.get(outcome.reply_id, "")
        if title and self.reply_id != outcome.reply_id and outcome.failure is None:
            # it ended before it was first looked at
            self.show(trace, Source.ANSWER, title, outcome.reply_id)
        elif self.source is Source.LIVE and self.reply_id == outcome.reply_id:
            self.source, self.title = Source.ANSWER, title or self.tr("The last answer")
            self._put(Indexed.of(trace))
            self.grown.emit()
        self.kept_changed.emit()

    def _let_go(self) -> None:
        """Keeps the newest traces within `KEPT_BYTES`, and the newest one in any case."""
        total = 0
        for index, (reply_id, trace) in enumerate(reversed(list(self._kept.items()))):
            total += trace_bytes(trace)
            if index and total > KEPT_BYTES:
                del self._kept[reply_id]

    # the selection

    @property
    def _last_step(self) -> int:
        return self.data.steps - 1 if self.data else 0

    def _first_open(self, step: int) -> int:
        if self.data is None or self.front is None:
            return 0
        return min(int(self.front[step]), self.data.positions - 1)

    def select(self, step: int | None = None, position: int | None = None) -> None:
        """Moves the selection; what is left out stays. Values beyond the ends become the ends."""
        if self.data is None:
            return
        before = self.selection
        step = before.step if step is None else step
        position = before.position if position is None else position
        now = Selection(
            max(0, min(self._last_step, step)), max(0, min(self.data.positions - 1, position))
        )
        if now != before:
            self.selection = now
            self.selection_changed.emit(before, now)

    def scrub(self, step: int) -> None:
        """Selects a step because a person asked for it: following and playing end."""
        self.pause()
        self._set_follow(False)
        if self._led:  # from the end of the reply to where this step works
            self._led = False
            step = max(0, min(self._last_step, step))
            self.select(step, self._first_open(step))
        else:
            self.select(step=step)

    def choose_position(self, position: int) -> None:
        """Selects a position because a person asked for it: it stays selected while they scrub."""
        self._led = False
        self.select(position=position)

    def step_by(self, count: int) -> None:
        self.scrub(self.selection.step + count)

    def go_to_block(self, by: int) -> None:
        """The first step of the next (by = 1) or, from within one, of this block (by = -1)."""
        if self.data is None:
            return
        firsts = [s.first for s in self.data.segments]
        step = self.selection.step
        index = bisect_right(firsts, step) if by > 0 else bisect_right(firsts, step - 1) - 1
        if 0 <= index < len(firsts):
            self.scrub(firsts[index])
            self.select(position=self.data.segments[index].begin)

    def go_to_mark(self, by: int) -> Mark | None:
        """The next or the last mark that is not only a block's beginning, selected; None when there
        is none."""
        step = self.selection.step
        marks = [m for m in self.marks if m.kind is not MarkKind.BLOCK]
        ahead = [m for m in marks if (m.step > step if by > 0 else m.step < step)]
        if not ahead:
            return None
        mark = ahead[0] if by > 0 else ahead[-1]
        self.scrub(mark.step)
        self.select(position=mark.position)
        return mark

    def marks_at(self, step: int) -> tuple[Mark, ...]:
        """What happened in a step."""
        first = bisect_left(self.marks, step, key=_step_of)
        return self.marks[first : bisect_right(self.marks, step, key=_step_of)]

    def marks_from(self, step: int) -> tuple[Mark, ...]:
        """What happened in a step and in those after it."""
        return self.marks[bisect_left(self.marks, step, key=_step_of) :]

    @property
    def moment(self) -> Moment | None:
        """The selected position after the selected step, None when it is not there yet."""
        if self.data is None:
            return None
        return self.data.now(self.selection.step, self.selection.position)

    def show_difference(self, difference: npt.NDArray[np.uint8] | None) -> None:
        """Colours by the difference to another trace; None = no longer."""
        self.difference = difference
        if difference is not None:
            self.choose_fill("difference")
        elif self.fill == "difference":
            self.choose_fill("confidence")

    def choose_fill(self, fill: FillKey) -> None:
        if fill == self.fill:
            return
        self.fill = fill
        if self.data is not None:
            self.levels = Levels(self.data, fill, self.difference)
        self.fill_changed.emit()

    # playing

    @property
    def playing(self) -> bool:
        return self._timer.isActive()

    @Slot()
    def toggle_play(self) -> None:
        if self.playing:
            self.pause()
        elif self.data is not None:
            self._set_follow(False)
            if self.selection.step == self._last_step:
                self.select(step=0)
            self._restart_clock()
            self._timer.start()
            self.play_changed.emit()

    @Slot()
    def pause(self) -> None:
        if self.playing:
            self._timer.stop()
            self.play_changed.emit()

    def choose_speed(self, steps_per_second: int) -> None:
        """0 = at the speed at which it was recorded."""
        self.speed = steps_per_second
        self._restart_clock()
        self.play_changed.emit()

    def choose_follow(self, follow: bool) -> None:
        """Goes along with the reply being written, or stays."""
        self._set_follow(follow and self.source is Source.LIVE)
        if self.follow:
            self._led = True
            self.pause()
            self.select(self._last_step, self._first_open(self._last_step))

    def _set_follow(self, follow: bool) -> None:
        if follow != self.follow:
            self.follow = follow
            self.play_changed.emit()

    def _restart_clock(self) -> None:
        self._begun, self._begun_step = time.monotonic(), self.selection.step

    @Slot()
    def _play_on(self) -> None:
        """The step that is due now; steps that fall between two frames are not shown."""
        if self.curves is None:
            return
        elapsed = time.monotonic() - self._begun
        if self.speed:
            step = self._begun_step + int(elapsed * self.speed)
        else:
            seconds = self.curves.seconds
            due = seconds[min(self._begun_step, len(seconds) - 1)] + elapsed
            step = int(np.searchsorted(seconds, due, side="right")) - 1
        self.select(step=max(step, self._begun_step))
        if self.selection.step == self._last_step:
            self.pause()


def _step_of(mark: Mark) -> int:
    return mark.step


def trace_bytes(trace: Trace) -> int:
    """Memory of a trace's arrays, in bytes."""
    arrays = [value for value in vars(trace).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays)
