"""Step 3: what training takes here, before it is begun.

It knows how the terms are shown. What is only reckoned says so; what was not measured is a dash.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Slot

from app.models.finetune import FinetuneModel
from app.models.finetune_fit import FitModel
from app.ui.finetune.step_page import StepPage, figure
from app.ui.model_parts import ProblemCard, button, put, row, text_label
from app.ui.model_words import size
from app.ui.theme import Theme


class FitStep(StepPage):
    def __init__(self, theme: Theme, model: FinetuneModel, fit: FitModel) -> None:
        super().__init__(
            self.tr("Fit"),
            self.tr("Memory, disk and time on this computer. Only the trial below measures them."),
        )
        self._model, self._fit = model, fit
        terms = self.card(self.tr("Reckoned"))
        self.terms = figure()
        self.words = text_label("muted")
        terms.inside.addWidget(self.terms)
        terms.inside.addWidget(self.words)
        trial = self.card(self.tr("Measured by two updates"))
        self.measured = figure()
        self.state = text_label("muted")
        self.try_button = button(self.tr("Try two updates"), kind="primary")
        self.stop_button = button(self.tr("Stop the trial"))
        self.problem = ProblemCard(theme)
        for part in (self.measured, self.state, self.problem):
            trial.inside.addWidget(part)
        trial.inside.addLayout(row(self.try_button, self.stop_button, None))
        self.try_button.clicked.connect(self._try)
        self.stop_button.clicked.connect(fit.stop)
        self.problem.pressed.connect(lambda _action: self._try())
        fit.changed.connect(self.refresh)
        self.column.addStretch(1)
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        fit = self._fit
        fit.reckon(self._model.draft)
        lines = [f"{name:<34}{size(count):>12}" for name, count in fit.terms]
        put(self.terms, "\n".join(lines) or self.tr("Choose a model first."))
        put(self.words, fit.words)
        put(self.measured, fit.measured_words)
        put(self.state, fit.state_words)
        self.try_button.setEnabled(not fit.trying and not self._model.missing_for_trial())
        self.stop_button.setVisible(fit.trying)
        self.problem.setVisible(fit.problem is not None)
        if fit.problem is not None:
            self.problem.show_problem(fit.problem, "try", self.tr("Try again"))

    @Slot()
    def _try(self) -> None:
        self._fit.begin(self._model.draft)

    def decided(self) -> str:
        if self._fit.measured is not None:
            return self.tr("measured")
        return Path(self._model.draft.model).name if self._model.draft.model else ""
