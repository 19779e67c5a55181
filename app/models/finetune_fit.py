"""What training would take: terms that follow from sizes, and a trial that measures.

It knows the trial's process and its outcome. It refuses to guess a time or a peak.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.backend.training import trainer_command
from app.backend.transfer.faults import Interrupted
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background, Task
from app.models.finetune import Draft
from engine.errors import RequestError, RuntimeFailure

LOOK = 0.2  # seconds between looks at the trial's process


class FitModel(QObject):
    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.terms: tuple[tuple[str, int], ...] = ()
        self.words = ""
        self.measured: Mapping[str, Any] | None = None
        self.problem: Problem | None = None
        self._measured_for: Draft | None = None
        self._work = Background("unblur-fit", 1, self)
        self._task: Task | None = None
        self._sizes: dict[str, int] = {}

    @property
    def trying(self) -> bool:
        return self._task is not None

    def reckon(self, draft: Draft) -> None:
        """The terms of a draft. Only sizes of files are looked at, once a model."""
        if not draft.model:
            self.terms, self.words = (), ""
            return
        if draft.model not in self._sizes:
            files = Path(draft.model).glob("*.safetensors")
            self._sizes[draft.model] = sum(path.stat().st_size for path in files)
        weights = self._sizes[draft.model]
        try:
            recipe = draft.recipe()
        except RequestError as error:
            self.terms, self.words = (), error.message
            return
        self.terms = ((self.tr("Weights as they are on the disk"), weights),)
        how = self.tr("Everything trains") if recipe.trains == "all" else self.tr("LoRA trains")
        self.words = self.tr(
            "{0}: {1} replies an update, {2} side by side, windows of {3} blocks. The trial says "
            "what that takes."
        ).format(how, recipe.rollouts, recipe.rows, recipe.window)
        if self._measured_for is not None and self._measured_for != draft:
            self.measured, self._measured_for = None, None

    @property
    def state_words(self) -> str:
        if self.trying:
            return self.tr("Loading the model and taking two updates of each kind…")
        if self.measured is None:
            return self.tr("Not measured yet.")
        return ""

    @property
    def measured_words(self) -> str:
        """The trial's outcome, "" without one."""
        found = self.measured
        if found is None:
            return ""
        lines = [
            (self.tr("An ORL update"), f"{found['update']:.2f} s"),
            (self.tr("A measurement"), f"{found['validation']:.2f} s"),
            (self.tr("Memory at the peak"), f"{found['peak_bytes'] / 1e9:.2f} GB"),
            (self.tr("Two checkpoints"), f"{2 * found['checkpoint_bytes'] / 1e9:.2f} GB"),
            (self.tr("The whole run"), f"{found['total'] / 60:.1f} min"),
        ]
        if found["teach"]:
            lines.insert(0, (self.tr("An update that teaches"), f"{found['teach']:.2f} s"))
        return "\n".join(f"{name:<34}{value:>12}" for name, value in lines)

    def begin(self, draft: Draft) -> None:
        """Measures a draft in a process of its own."""
        if self.trying:
            return
        try:
            text = draft.spec().to_json()
        except RequestError as error:
            self._failed(Problem(error.code, error.message, error.action))
            return
        self.problem, self.measured = None, None

        def work(stop: Stop) -> tuple[Draft, Mapping[str, Any]]:
            return draft, _trial(text, stop)

        self._task = self._work.run(work, self._done, self._failed, self._stopped)
        self.changed.emit()

    def stop(self) -> None:
        if self._task is not None:
            self._task.stop.set()

    def _done(self, found: tuple[Draft, Mapping[str, Any]]) -> None:
        (self._measured_for, self.measured), self._task = found, None
        self.changed.emit()

    def _failed(self, problem: Problem) -> None:
        self.problem, self._task = problem, None
        self.changed.emit()

    def _stopped(self) -> None:
        self._task = None
        self.changed.emit()

    def close(self, until: float) -> bool:
        """Ends a trial."""
        self.stop()
        return self._work.close(until)


def _trial(spec: str, stop: Stop) -> Mapping[str, Any]:
    """Runs `trainer estimate` and reads its figures. Raises RuntimeFailure `training.trial`."""
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "spec.json", Path(folder) / "said"
        path.write_text(spec, encoding="utf-8")
        with said.open("wb") as file:
            child = subprocess.Popen(
                trainer_command(["estimate", str(path), "--json"]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        try:
            while True:
                try:
                    out, _ = child.communicate(timeout=LOOK)
                    break
                except subprocess.TimeoutExpired:
                    if stop.is_set:
                        raise Interrupted from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        words = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if child.returncode:
        reason = words[-1][:400] if words else f"status {child.returncode}"
        raise RuntimeFailure(
            "training.trial",
            f"The trial failed: {reason}",
            "Change the recipe or the data, then try again.",
        )
    return json.loads(out.decode("utf-8").splitlines()[-1])
