"""An NVFP4 copy being made of a model on this computer: one at a time, with its report.

It knows the copy's lifecycle and where it goes. It refuses to know how a weight becomes four bits:
`engine.checkpoint.quantiser` does, and torch is imported in its thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.backend.hub.support import Supported
from app.backend.judge import describe
from app.backend.library.scan import LocalModel
from app.backend.transfer.faults import Interrupted
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background, Task
from app.models.lifecycle import checked_move
from app.models.model_states import COPYING, Copying
from app.models.worker import ProgressHolder
from engine.errors import UnblurError
from engine.protocol import ProgressCallback
from engine.types import LoadProgress

PROGRESS_MS = 100
SUFFIX = "-NVFP4"
WIDE = ("bfloat16", "float16", "float32", "")  # as a library names them; "" = its config is silent


@dataclass(frozen=True)
class CopyReport:
    """A finished copy. text: the report as the terminal has it, a fact a line. summary: its first
    facts in sentences."""

    target: Path
    text: str
    summary: tuple[str, ...]


Copier = Callable[[Path, Path, ProgressCallback, threading.Event], CopyReport]


class CopyModel(QObject):
    changed = Signal()
    finished = Signal()  # a new model is on the disk

    def __init__(self, copier: Copier | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.state = Copying.IDLE
        self.source: LocalModel | None = None
        self.target: Path | None = None
        self.progress: LoadProgress | None = None
        self.report: CopyReport | None = None
        self.problem: Problem | None = None
        self._copier = copier or make_copy
        self._event = threading.Event()
        self._task: Task | None = None
        self._holder = ProgressHolder()
        self._thread = Background("nvfp4 copy", 1, self)
        self._timer = QTimer(self)
        self._timer.setInterval(PROGRESS_MS)
        self._timer.timeout.connect(self._tell_progress)

    @property
    def busy(self) -> bool:
        return self.state in (Copying.COPYING, Copying.STOPPING)

    def start(self, model: LocalModel, target: Path) -> None:
        """Makes the copy in `target`, going on with one that was stopped. Not while `busy`."""
        self._event = event = threading.Event()
        self.source, self.target = model, target
        self.report = self.problem = self.progress = None
        self._holder.take()
        self._move(Copying.COPYING)

        def work(_stop: Stop) -> CopyReport:
            try:
                return self._copier(model.path, target, self._holder.put, event)
            except UnblurError:
                if event.is_set():  # asked for: what is done so far is kept
                    raise Interrupted from None
                raise

        self._task = self._thread.run(work, self._done, self._failed, self._stopped)
        self._timer.start()

    @Slot()
    def stop(self) -> None:
        """What is done is kept, and a new start goes on with it."""
        if self.state is Copying.COPYING:
            self._event.set()
            self._move(Copying.STOPPING)

    @Slot()
    def dismiss(self) -> None:
        """Forgets a report or a failure that was read."""
        if self.state in (Copying.DONE, Copying.FAILED):
            self.report = self.problem = None
            self._move(Copying.IDLE)

    def close(self, until: float) -> bool:
        """See `Background.close`."""
        self._timer.stop()
        self._event.set()
        return self._thread.close(until)

    def _done(self, report: CopyReport) -> None:
        self.report = report
        self._end(Copying.DONE)
        self.finished.emit()

    def _failed(self, problem: Problem) -> None:
        self.problem = problem
        self._end(Copying.FAILED)

    def _stopped(self) -> None:
        self._end(Copying.IDLE)

    def _end(self, state: Copying) -> None:
        self._timer.stop()
        self._move(state)

    def _move(self, state: Copying) -> None:
        self.state = checked_move(COPYING, self.state, state)
        self.changed.emit()

    @Slot()
    def _tell_progress(self) -> None:
        progress = self._holder.take()
        if progress is not None:
            self.progress = progress
            self.changed.emit()


def can_copy(model: LocalModel) -> bool:
    """Whether the quantiser would take it, as far as its config tells."""
    runs = model.support.state in (Supported.YES, Supported.UNKNOWN)
    return runs and model.quantisation in WIDE and not model.problem


def target_of(model: LocalModel, models: Path) -> Path:
    """Where a copy goes: into the models folder, beside its owner's other models."""
    owner, _, name = model.name.rpartition("/")
    return models / owner / f"{name}{SUFFIX}" if owner else models / f"{name}{SUFFIX}"


def make_copy(
    source: Path, target: Path, progress: ProgressCallback, stop: threading.Event
) -> CopyReport:
    """The engine's quantiser with its comparison. Raises as `engine.checkpoint.quantiser.quantise`
    does."""
    progress(LoadProgress(0, 0, "Starting PyTorch"))
    describe()
    from functools import partial

    from engine.checkpoint.quantiser import QuantiseOptions, quantise
    from engine.cli_quantize import report_text
    from engine.logit_distance import compare_logits

    target.parent.mkdir(parents=True, exist_ok=True)
    report = quantise(
        source,
        target,
        QuantiseOptions(),
        compare=partial(compare_logits, progress=progress, stop=stop),
        progress=progress,
        stop=stop,
    )
    text = report_text(report)
    saved = report.source_bytes / max(1, report.written_bytes)
    summary = [
        f"{report.source_bytes / 1e9:.2f} GB became {report.written_bytes / 1e9:.2f} GB"
        f" ({saved:.1f} times smaller)."
    ]
    summary.append(
        f"Relative error of the {len(report.modules)} matrices together:"
        f" {report.relative_error:.4f}."
    )
    if report.logits is not None:
        summary.append(
            f"In one step of one answer, the best token is the same at"
            f" {report.logits.same_best:.0%} of {report.logits.positions} positions."
        )
    else:
        summary.append(f"Predictions were not compared: {report.not_compared}")
    return CopyReport(target, text, tuple(summary))
