"""The finetune wizard's state: what has been decided, what the data is, and which step can follow.

It knows the draft (kept on disk at every change, so that nothing is lost), the report on its data
and the runs. It refuses to know widgets, and how anything is trained.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal, Slot

from app.backend.finetune_data import JudgeKind, judge_kinds
from app.backend.training import TrainingRuns
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background, Task
from engine.errors import RequestError, UnblurError
from trainer.orl.recipe import Recipe
from trainer.run_dir import replace_file
from trainer.spec import PRESETS, DataSpec, Guard, TrainSpec, preset_recipe
from trainer.strict_json import read, write
from trainer.verify.verifier_spec import VerifierSpec

if TYPE_CHECKING:  # reading data brings in a tokenizer: not before there is data
    from trainer.data.report import DataReport

log = logging.getLogger("unblur.finetune")


class Step(IntEnum):
    """The wizard's steps, in order."""

    DATA = 0
    CHECK = 1
    FIT = 2
    RECIPE = 3
    RUN = 4
    COMPARE = 5
    KEEP = 6


@dataclass(frozen=True)
class Draft:
    """What a person has decided so far. teach: the goal is to teach the examples first. changes:
    recipe fields that differ from the preset's."""

    files: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    model: str = ""
    verifier: str = "accept_all"
    teach: bool = True
    preset: str = "small"
    changes: dict[str, Any] = field(default_factory=dict)
    replay: float = 0.3
    name: str = ""
    run: str = ""  # the folder of the run that is shown

    def recipe(self) -> Recipe:
        """Raises RequestError `recipe.value`."""
        return preset_recipe(self.preset, self.teach, self.changes)

    def spec(self) -> TrainSpec:
        """Raises RequestError naming what is missing or wrong."""
        return TrainSpec(
            self.model,
            DataSpec(self.files, self.columns, replay=self.replay),
            VerifierSpec(self.verifier),
            self.recipe(),
            PRESETS[self.preset].updates,
            guard=Guard(every=10, tasks=64),
        )


def read_draft(path: Path) -> Draft:
    """The draft as it was left; an empty one where there is none or it cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name for f in fields(Draft)}
        given = {key: item for key, item in value.items() if key in known}
        draft = read(Draft, given, "draft")
        if draft.preset not in PRESETS:
            draft = replace(draft, preset="small")
        draft.recipe()
    except FileNotFoundError:
        return Draft()
    except (OSError, ValueError, TypeError, AttributeError, UnblurError) as error:
        log.warning("the finetune draft cannot be read: %s", error)
        return Draft()
    return draft


class FinetuneModel(QObject):
    """changed: anything of the draft, its data or the runs."""

    changed = Signal()

    def __init__(self, folder: Path, runs: TrainingRuns, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._path = folder / "finetune.json"
        self.runs = runs
        self.draft = read_draft(self._path)
        self.report: DataReport | None = None
        self.problem: Problem | None = None
        self.reading = False
        self.columns: tuple[str, ...] = ()  # of the first file
        self.kinds: tuple[JudgeKind, ...] = ()
        self.known_runs: tuple[tuple[str, str], ...] = ()  # folder and name, newest first
        self._work = Background("unblur-finetune", 1, self)
        self._task: Task | None = None
        self._open = False

    def open(self) -> None:
        """Reads what the draft names and which runs there are; called when the page is first
        shown."""
        if not self._open:
            self._open = True
            self._list_runs()
            if self.draft.files and self.draft.model:
                self.read()

    def change(self, **given: Any) -> None:
        """Sets fields of the draft and keeps it; data that must be read again is."""
        before, self.draft = self.draft, replace(self.draft, **given)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(write(self.draft), ensure_ascii=False, indent=1)
            replace_file(self._path, text, sync=False)
        except OSError as error:
            log.warning("the finetune draft cannot be kept: %s", error)
        names = ("files", "columns", "model", "verifier")
        if any(getattr(before, name) != getattr(self.draft, name) for name in names):
            self.read()
        if before.run != self.draft.run:
            self._list_runs()
        self.changed.emit()

    def _list_runs(self) -> None:
        def work(_stop: Stop) -> tuple[tuple[str, str], ...]:
            return tuple((str(run.path), run.path.name) for run in self.runs.runs())

        def listed(found: tuple[tuple[str, str], ...]) -> None:
            if self.draft.run and self.draft.run not in [path for path, _ in found]:
                found = ((self.draft.run, Path(self.draft.run).name), *found)
            if found != self.known_runs:
                self.known_runs = found
                self.changed.emit()

        self._work.run(work, listed, self._failed)

    def read(self) -> None:
        """Reads the data off the GUI thread."""
        if self._task is not None:
            self._task.stop.set()
        self.report, self.problem = None, None
        draft = self.draft
        self.reading = bool(draft.files and draft.model)
        if not self.reading:
            self.changed.emit()
            return
        window = draft.recipe().window

        def work(stop: Stop) -> tuple[DataReport, tuple[str, ...], tuple[JudgeKind, ...]]:
            from trainer.data.checks import CheckOptions, check_data
            from trainer.data.readers import preview

            report = check_data(
                draft.files,
                draft.columns,
                Path(draft.model),
                VerifierSpec(draft.verifier),
                CheckOptions(window=window),
                stop.check,
            )
            return report, preview(Path(draft.files[0])).guess.columns, judge_kinds()

        self._task = self._work.run(work, self._read, self._failed)
        self.changed.emit()

    @Slot(object)
    def _read(self, found: tuple[DataReport, tuple[str, ...], tuple[JudgeKind, ...]]) -> None:
        (self.report, self.columns, self.kinds), self.reading = found, False
        self.changed.emit()

    @Slot(object)
    def _failed(self, problem: Problem) -> None:
        self.problem, self.reading = problem, False
        self.changed.emit()

    def missing(self, step: Step) -> str:
        """Why a step cannot be left for the next one yet, "" when it can."""
        draft = self.draft
        if not draft.files:
            return self.tr("Choose a file of examples first.")
        if not draft.model:
            return self.tr("Choose the model to train.")
        if self.reading:
            return self.tr("The examples are being read.")
        if self.problem is not None:
            return self.problem.message
        if step is Step.DATA:
            return ""
        if self.report is None:
            return self.tr("The examples have not been read yet.")
        for finding in self.report.findings:
            if finding.level == "stop":
                return finding.message
        if step >= Step.RECIPE:
            try:
                draft.spec()
            except RequestError as error:
                return error.message
        if step >= Step.RUN and not draft.run:
            return self.tr("Start the training first.")
        return ""

    def take(self, spec: TrainSpec) -> None:
        """Takes over a spec's data, model, verifier and recipe. Fields that no preset has become
        changes; its length picks the nearest preset."""
        preset = min(PRESETS, key=lambda name: abs(PRESETS[name].updates - spec.updates))
        teach = spec.recipe.teach > 0
        plain = replace(Draft(), preset=preset, teach=teach).recipe()
        changes = {
            f.name: getattr(spec.recipe, f.name)
            for f in fields(Recipe)
            if getattr(spec.recipe, f.name) != getattr(plain, f.name)
        }
        self.change(
            files=spec.data.files,
            columns=dict(spec.data.columns),
            model=spec.model,
            verifier=spec.verifier.kind,
            teach=teach,
            preset=preset,
            changes=changes,
            replay=spec.data.replay,
        )

    def missing_for_trial(self) -> str:
        """Why nothing can be tried yet, "" when it can."""
        return self.missing(Step.CHECK)

    def begin(self) -> None:
        """Starts the run off the GUI thread."""
        try:
            spec = self.draft.spec()
        except RequestError as error:
            self._failed(Problem(error.code, error.message, error.action))
            return
        name = self.draft.name or Path(self.draft.files[0]).stem or "run"

        def work(_stop: Stop) -> Path:
            return self.runs.begin(spec, name)

        self._work.run(work, lambda path: self.change(run=str(path)), self._failed)

    def close(self, until: float) -> bool:
        """Stops reading; a run goes on."""
        return self._work.close(until)
