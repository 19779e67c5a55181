"""What if: forks of the trace that is shown, run by the loaded model, and the tree they form.

It knows when a fork can be run, which traces belong to one tree, and what each changed. It refuses
to know widgets and how a fork is taken (`engine.forks`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal, Slot

from app.backend.conversations import new_id
from app.models.engine_model import EngineModel
from app.models.inspector import InspectorModel, Selection, Source, trace_bytes
from app.models.lifecycle import Lifecycle
from app.models.worker import Answer, GenerationJob, Question, ReplyOutcome
from engine.protocol import Engine
from engine.trace import Change, Fork, Trace, TraceParent
from engine.types import Capture

LOOKED_AT = 4096  # tokens at a time
KEPT_BYTES = 128 * 2**20  # of the traces of all trees, newest first


@dataclass(frozen=True, eq=False)
class Branch:
    """One trace of a tree. depth: 0 for the root. parent: what it changed, None for the root, or
    when it came from a file whose parent is not here."""

    trace: Trace
    title: str
    depth: int
    parent: TraceParent | None


class ForkModel(QObject):
    changed = Signal()  # the tree, or whether a fork can be run
    failed = Signal(object)  # Failure
    token_found = Signal(str, object)  # what was looked for, the token's id or None

    def __init__(
        self, engine: EngineModel, inspector: InspectorModel, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._engine = engine
        self._inspector = inspector
        self._traces: dict[str, tuple[Trace, str]] = {}  # trace id: (trace, title), oldest first
        self._running = ""
        self._looking: tuple[str, str] | None = None  # question id, text
        self._back_to = Selection()
        engine.state_changed.connect(self._on_state)
        engine.reply_ended.connect(self._on_reply_ended)
        engine.answered.connect(self._on_answered)
        inspector.trace_changed.connect(self._on_trace)

    def blocked_reason(self) -> str | None:
        """Why no fork can be run now, as a sentence; None when one can."""
        data, state = self._inspector.data, self._engine.state
        if data is None:
            return self.tr("No trace is open.")
        if state in (Lifecycle.NO_MODEL, Lifecycle.FAILED, Lifecycle.UNLOADING):
            name = data.trace.header.model_name or self.tr("the model that wrote it")
            return self.tr("Load {0} to run a fork: no model is loaded.").format(name)
        if self._inspector.source is Source.LIVE or state is not Lifecycle.READY:
            return self.tr("The model is at work. Wait, or press Esc to stop it.")
        return None

    @property
    def running(self) -> bool:
        return bool(self._running)

    def run(self, change: Change, title: str) -> bool:
        """Forks the trace that is shown at the selected step. title: the change in words. False
        when blocked."""
        data = self._inspector.data
        if data is None or self.blocked_reason() is not None:
            return False
        header = data.trace.header
        top_k = header.top_k or Capture().top_k
        fork = Fork(data.trace, self._inspector.selection.step, change, Capture("top-k", top_k))
        self._running = f"fork-{new_id()}"
        self._back_to = self._inspector.selection
        self._keep(data.trace, self._inspector.title)
        self._inspector.expect(self._running, title)
        self._engine.generate(GenerationJob(self._running, fork, _NoSink()))
        return True

    def look_for(self, text: str) -> bool:
        """Asks the loaded model which token of its vocabulary reads `text`. False when blocked."""
        data = self._inspector.data
        vocabulary = data.trace.header.vocab_size if data else None
        if vocabulary is None or self.blocked_reason() is not None:
            return False
        self._looking = (new_id(), text)
        self._engine.ask(
            Question(
                self._looking[0], lambda engine, stop: _token_of(engine, vocabulary, text, stop)
            )
        )
        return True

    @Slot(object)
    def _on_answered(self, answer: Answer) -> None:
        if self._looking is None or answer.question_id != self._looking[0]:
            return
        text, self._looking = self._looking[1], None
        if answer.failure is not None:
            self.failed.emit(answer.failure)
        else:
            self.token_found.emit(text, answer.value)

    def tree(self) -> tuple[Branch, ...]:
        """The tree of the trace that is shown, every trace after its parent."""
        data = self._inspector.data
        if data is None:
            return ()
        root = root_of(data.trace)
        members = [(t, title) for t, title in self._traces.values() if root_of(t) == root]
        known = {t.header.trace_id for t, _ in members}
        if data.trace.header.trace_id not in known and self._inspector.source is not Source.LIVE:
            members.append((data.trace, self._inspector.title))
            known.add(data.trace.header.trace_id)
        branches: list[Branch] = []

        def add(parent_id: str | None, depth: int) -> None:
            for trace, title in members:
                parent = trace.header.parent
                above = parent.trace_id if parent and parent.trace_id in known else None
                if above == parent_id:
                    branches.append(Branch(trace, title, depth, parent))
                    add(trace.header.trace_id, depth + 1)

        add(None, 0)
        return tuple(branches)

    def show(self, trace_id: str) -> None:
        """Shows a trace of a tree at the same place."""
        kept = self._traces.get(trace_id)
        if kept is None:
            return
        selection = self._inspector.selection
        self._inspector.show(kept[0], Source.ANSWER, kept[1])
        self._inspector.select(selection.step, selection.position)

    def _keep(self, trace: Trace, title: str) -> None:
        """Keeps the newest traces within `KEPT_BYTES`, and the tree that is shown in any case."""
        self._traces.pop(trace.header.trace_id, None)
        self._traces[trace.header.trace_id] = (trace, title)
        total, root = 0, root_of(trace)
        for trace_id, (other, _) in reversed(list(self._traces.items())):
            total += trace_bytes(other)
            if total > KEPT_BYTES and root_of(other) != root:
                del self._traces[trace_id]

    @Slot()
    def _on_trace(self) -> None:
        self.changed.emit()

    @Slot(object)
    def _on_state(self, _state: Lifecycle) -> None:
        self.changed.emit()

    @Slot(object)
    def _on_reply_ended(self, outcome: ReplyOutcome) -> None:
        if outcome.reply_id != self._running:
            return
        self._running = ""
        if outcome.failure is not None:
            self.failed.emit(outcome.failure)
            return
        trace = self._engine.live_trace.latest(outcome.reply_id)
        if trace is None:
            return
        self._keep(trace, self._inspector.title_of(outcome.reply_id))
        if self._inspector.reply_id == outcome.reply_id:
            self._inspector.choose_follow(False)
            self._inspector.select(self._back_to.step, self._back_to.position)
        self.changed.emit()


class _NoSink:
    """A fork belongs to no conversation: nothing of it is kept with the chats."""

    def begun(self) -> None: ...

    def block(self, text: str) -> None: ...

    def ended(self, outcome: ReplyOutcome) -> None: ...


def _token_of(engine: Engine, vocabulary: int, text: str, stop: threading.Event) -> int | None:
    """The first id whose display text is `text`, a part of the vocabulary at a time."""
    for first in range(0, vocabulary, LOOKED_AT):
        if stop.is_set():
            return None
        ids = range(first, min(first + LOOKED_AT, vocabulary))
        pieces = engine.pieces(ids)
        if text in pieces:
            return ids[pieces.index(text)]
    return None


def root_of(trace: Trace) -> str:
    """Id of the trace that the tree began with."""
    ancestry = trace.header.ancestry
    return ancestry[0].trace_id if ancestry else trace.header.trace_id
