"""Which earlier tokens a confidence rests on: asked of the loaded model for the selected cell.

It knows when it can be asked and for which cell the last answer is. It refuses to know how a step
is run again (`engine.attribution`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal, Slot

from app.backend.conversations import new_id
from app.models.engine_model import EngineModel
from app.models.inspector import InspectorModel, Source
from app.models.lifecycle import Lifecycle
from app.models.worker import Answer, Question
from engine.protocol import Engine
from engine.trace.attribution import Attribution, Reach
from engine.types import TokenState

STOPPED = "request.stopped"


@dataclass(frozen=True)
class Asked:
    """What the last answer is of."""

    trace_id: str
    reach: Reach


class WhyModel(QObject):
    changed = Signal()
    failed = Signal(object)  # Failure

    def __init__(
        self, engine: EngineModel, inspector: InspectorModel, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.asked: Asked | None = None
        self.result: Attribution | None = None
        self._engine = engine
        self._inspector = inspector
        self._question = ""
        engine.state_changed.connect(self._on_state)
        engine.answered.connect(self._on_answered)
        inspector.trace_changed.connect(self.changed)

    @property
    def busy(self) -> bool:
        return bool(self._question)

    @property
    def current(self) -> Attribution | None:
        """The last answer about the trace that is shown."""
        data, asked = self._inspector.data, self.asked
        if data is None or asked is None or data.trace.header.trace_id != asked.trace_id:
            return None
        return self.result

    def blocked_reason(self) -> str | None:
        """Why it cannot be asked of the selected cell now, as a sentence; None when it can."""
        data, state = self._inspector.data, self._engine.state
        if data is None:
            return self.tr("No trace is open.")
        segment = data.segment_at(self._inspector.selection.step)
        position, moment = self._inspector.selection.position, self._inspector.moment
        if not segment.begin <= position < segment.begin + data.length or moment is None:
            return self.tr("Choose a position of the block that this step works on.")
        if moment.state == TokenState.PROMPT:
            return self.tr("This position belongs to the prompt.")
        if state in (Lifecycle.NO_MODEL, Lifecycle.FAILED, Lifecycle.UNLOADING):
            name = data.trace.header.model_name or self.tr("the model that wrote it")
            return self.tr("Load {0} to ask: no model is loaded.").format(name)
        if self._inspector.source is Source.LIVE or state is not Lifecycle.READY:
            return self.tr("The model is at work. Wait, or press Esc to stop it.")
        return None

    def ask(self, reach: Reach) -> bool:
        """Asks about the selected cell. False when blocked."""
        data = self._inspector.data
        if data is None or self.blocked_reason() is not None:
            return False
        trace, step = data.trace, self._inspector.selection.step
        position = data.first_position + self._inspector.selection.position

        def question(engine: Engine, stop: threading.Event) -> Attribution:
            return engine.attribute(trace, step, position, reach, stop)

        self.asked = Asked(trace.header.trace_id, reach)
        self.result = None
        self._question = new_id()
        self._engine.ask(Question(self._question, question))
        self.changed.emit()
        return True

    @Slot(object)
    def _on_answered(self, answer: Answer) -> None:
        if answer.question_id != self._question:
            return
        self._question = ""
        if isinstance(answer.value, Attribution):
            self.result = answer.value
        else:
            self.asked = None
            if answer.failure is not None and answer.failure.code != STOPPED:
                self.failed.emit(answer.failure)
        self.changed.emit()

    @Slot(object)
    def _on_state(self, _state: Lifecycle) -> None:
        self.changed.emit()
