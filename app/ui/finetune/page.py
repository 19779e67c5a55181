"""The Finetune page: seven steps on the left with what each decided, the step on the right.

It knows the order of steps and what one waits for. It refuses to know a step's content.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QComboBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.models.finetune import FinetuneModel, Step
from app.models.finetune_fit import FitModel
from app.models.finetune_run import RunModel
from app.models.model_store import ModelStore
from app.ui.finetune.check_step import CheckStep
from app.ui.finetune.compare_step import CompareStep
from app.ui.finetune.data_step import DataStep
from app.ui.finetune.fit_step import FitStep
from app.ui.finetune.keep_step import KeepStep
from app.ui.finetune.recipe_step import RecipeStep
from app.ui.finetune.run_step import RunStep
from app.ui.finetune.step_page import StepPage
from app.ui.model_parts import button, headed, put, text_label
from app.ui.theme import Space, Theme

LEFT = 216  # px of the list of steps


class FinetunePage(QWidget):
    use_pressed = Signal(str)  # a model's folder

    def __init__(
        self,
        theme: Theme,
        model: FinetuneModel,
        fit: FitModel,
        run: RunModel,
        store: ModelStore,
        models: Path,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._model, self._run = model, run
        self._seen = False
        self.keep = KeepStep(theme, model, run, models)
        self.run_step = RunStep(theme, model, run)
        self.steps: dict[Step, StepPage] = {
            Step.DATA: DataStep(theme, model, store),
            Step.CHECK: CheckStep(theme, model),
            Step.FIT: FitStep(theme, model, fit),
            Step.RECIPE: RecipeStep(theme, model),
            Step.RUN: self.run_step,
            Step.COMPARE: CompareStep(theme, run),
            Step.KEEP: self.keep,
        }
        self._names = {
            Step.DATA: self.tr("Data"),
            Step.CHECK: self.tr("Check"),
            Step.FIT: self.tr("Fit"),
            Step.RECIPE: self.tr("Recipe"),
            Step.RUN: self.tr("Run"),
            Step.COMPARE: self.tr("Compare"),
            Step.KEEP: self.tr("Keep"),
        }
        self._stack = QStackedWidget()
        for page in self.steps.values():
            self._stack.addWidget(page)
        across = QHBoxLayout(self)
        across.setContentsMargins(0, 0, 0, 0)
        across.setSpacing(0)
        across.addWidget(self._make_list())
        right = QVBoxLayout()
        right.setContentsMargins(0, Space.L, 0, 0)
        right.addWidget(self._stack, 1)
        right.addWidget(self._make_foot())
        across.addLayout(right, 1)
        self.keep.use_pressed.connect(self.use_pressed)
        model.changed.connect(self.refresh)
        run.changed.connect(self._name_steps)
        self.choose(Step.RUN if model.draft.run else Step.DATA)

    def _make_list(self) -> QWidget:
        frame = QFrame()
        frame.setObjectName("steps")
        frame.setFixedWidth(LEFT)
        layout = QVBoxLayout(frame)
        layout.setContentsMargins(Space.L, Space.XL, Space.S, Space.L)
        layout.setSpacing(Space.XS)
        title = text_label("heading")
        title.setText(self.tr("Finetune"))
        layout.addWidget(title)
        layout.addSpacing(Space.S)
        self._group = QButtonGroup(self)
        self._group.setExclusive(True)
        self.buttons: dict[Step, QPushButton] = {}
        self._decided: dict[Step, QLabel] = {}
        for step, name in self._names.items():
            made = button(f"{step + 1}  {name}", name, kind="tab")
            made.setProperty("step", "true")
            made.setCheckable(True)
            made.clicked.connect(lambda _=False, s=step: self.choose(s))
            self._group.addButton(made)
            self.buttons[step] = made
            said = text_label("small")
            said.setContentsMargins(Space.XL, 0, 0, Space.XS)
            self._decided[step] = said
            layout.addWidget(made)
            layout.addWidget(said)
        layout.addStretch(1)
        label = text_label("muted")
        label.setText(self.tr("Runs"))
        self.history = QComboBox()
        self.history.setAccessibleName(self.tr("Runs"))
        self.history.view().setAccessibleName(self.history.accessibleName())
        self.history.activated.connect(self._chosen)
        layout.addWidget(label)
        layout.addWidget(self.history)
        return frame

    def _make_foot(self) -> QWidget:
        foot = QWidget()
        self.missing = text_label("muted")
        self.next_button = button(self.tr("Next"), kind="primary")
        self.next_button.clicked.connect(self._next)
        inner = headed(self.missing, self.next_button)
        inner.setContentsMargins(Space.XL, Space.S, Space.XL, Space.M)
        foot.setLayout(inner)
        return foot

    @property
    def step(self) -> Step:
        return next(s for s, page in self.steps.items() if page is self._stack.currentWidget())

    def choose(self, step: Step) -> None:
        """Shows a step."""
        self.buttons[step].setChecked(True)
        self._stack.setCurrentWidget(self.steps[step])
        self.refresh()

    @Slot()
    def _next(self) -> None:
        if self.step < Step.KEEP and not self._model.missing(self.step):
            self.choose(Step(self.step + 1))

    def showEvent(self, event: QShowEvent) -> None:
        """What is behind the page is asked for when it is first seen."""
        super().showEvent(event)
        self._seen = True
        self._model.open()
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        if self._seen:
            self._run.watch(self._model.draft.run)
        self.steps[self.step].refresh()
        missing = self._model.missing(self.step)
        put(self.missing, missing)
        self.next_button.setEnabled(not missing)
        self.next_button.setVisible(self.step < Step.KEEP)
        self.next_button.setToolTip(missing)
        self._list_runs()
        self._name_steps()

    @Slot()
    def _name_steps(self) -> None:
        for step, page in self.steps.items():
            put(self._decided[step], page.decided())

    def _list_runs(self) -> None:
        found = [("", self.tr("New run")), *self._model.known_runs]
        if [self.history.itemData(n) for n in range(self.history.count())] != [k for k, _ in found]:
            self.history.clear()
            for key, name in found:
                self.history.addItem(name, key)
        place = self.history.findData(self._model.draft.run)
        self.history.setCurrentIndex(max(0, place))

    @Slot(int)
    def _chosen(self, place: int) -> None:
        folder = str(self.history.itemData(place) or "")
        self._model.change(run=folder)
        self.choose(Step.RUN if folder else Step.DATA)
