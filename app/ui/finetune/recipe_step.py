"""Step 4: the goal, how long, and every field of the recipe for those who want them.

It knows controls. What a field means is the recipe's own docstring.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import (
    QButtonGroup,
    QFileDialog,
    QHeaderView,
    QRadioButton,
    QTableWidget,
    QTableWidgetItem,
)

from app.backend.transfer.queue import Problem
from app.models.finetune import FinetuneModel
from app.ui.finetune.step_page import StepPage
from app.ui.model_parts import ProblemCard, button, row, text_label
from app.ui.theme import Theme
from engine.errors import RequestError, UnblurError
from trainer.orl.recipe import Recipe
from trainer.spec import PRESETS, TrainSpec


class RecipeStep(StepPage):
    def __init__(self, theme: Theme, model: FinetuneModel) -> None:
        super().__init__(
            self.tr("Recipe"), self.tr("What the model should become, and how long that may take.")
        )
        self._model = model
        self._filling = False
        self._add_goal()
        self._add_presets()
        self._add_advanced(theme)
        self.column.addStretch(1)
        self.refresh()

    def _add_goal(self) -> None:
        card = self.card(self.tr("Goal"))
        self._goals = QButtonGroup(self)
        self.goals: dict[bool, QRadioButton] = {}
        for teach, name, words in (
            (
                True,
                self.tr("Teach it my examples, then make it fast"),
                self.tr("The run first learns your answers, then makes the model faster at them."),
            ),
            (
                False,
                self.tr("Only make it fast on my prompts"),
                self.tr("It keeps saying what it says, in fewer steps where a reply passes."),
            ),
        ):
            choice = QRadioButton(name)
            choice.setAccessibleName(name)
            choice.setAccessibleDescription(words)
            choice.toggled.connect(lambda on, t=teach: on and self._set(teach=t))
            said = text_label("muted")
            said.setText(words)
            self._goals.addButton(choice)
            self.goals[teach] = choice
            card.inside.addLayout(row(choice, None))
            card.inside.addWidget(said)

    def _add_presets(self) -> None:
        card = self.card(self.tr("How long"))
        self._presets = QButtonGroup(self)
        self.presets: dict[str, QRadioButton] = {}
        for key, preset in PRESETS.items():
            choice = QRadioButton(self.tr("{0}: {1} updates").format(preset.title, preset.updates))
            choice.setAccessibleName(preset.title)
            choice.setAccessibleDescription(preset.summary)
            choice.toggled.connect(lambda on, k=key: on and self._set(preset=k))
            said = text_label("muted")
            said.setText(preset.summary)
            self._presets.addButton(choice)
            self.presets[key] = choice
            card.inside.addLayout(row(choice, None))
            card.inside.addWidget(said)
        words = text_label("muted")
        words.setText(self.tr("The Fit step measures what these cost on this computer."))
        card.inside.addWidget(words)

    def _add_advanced(self, theme: Theme) -> None:
        card = self.card(self.tr("Every field"))
        self.show_fields = button(self.tr("Show every field"), kind="link")
        self.show_fields.setCheckable(True)
        self.show_fields.toggled.connect(self.refresh)
        self.table = QTableWidget(0, 2)
        self.table.setAccessibleName(self.tr("Fields of the recipe"))
        self.table.setHorizontalHeaderLabels([self.tr("Field"), self.tr("Value")])
        self.table.verticalHeader().hide()
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        self.table.setMinimumHeight(360)
        self.table.itemChanged.connect(self._edited)
        self.meaning = text_label("report", wrap=True)
        self.meaning.setText(Recipe.__doc__ or "")
        self.problem = ProblemCard(theme)
        self.problem.pressed.connect(lambda _action: self._set(changes={}))
        self.save = button(self.tr("Save as a spec file"))
        self.load = button(self.tr("Load a spec file"))
        self.save.clicked.connect(self._save)
        self.load.clicked.connect(self._load)
        for part in (self.show_fields, self.table, self.meaning, self.problem):
            card.inside.addWidget(part)
        card.inside.addLayout(row(self.save, self.load, None))

    @Slot()
    def refresh(self) -> None:
        draft = self._model.draft
        self._filling = True
        self.goals[draft.teach].setChecked(True)
        self.presets[draft.preset].setChecked(True)
        shown = self.show_fields.isChecked()
        self.table.setVisible(shown)
        self.meaning.setVisible(shown)
        try:
            recipe = draft.recipe()
            self.problem.hide()
            if shown:
                self._fill(recipe)
        except RequestError as error:
            self._say(error)
        self._filling = False

    def _fill(self, recipe: Recipe) -> None:
        fields = dataclasses.fields(recipe)
        self.table.setRowCount(len(fields))
        for place, field in enumerate(fields):
            name = QTableWidgetItem(field.name)
            name.setFlags(name.flags() & ~Qt.ItemFlag.ItemIsEditable)
            self.table.setItem(place, 0, name)
            value = QTableWidgetItem(json.dumps(getattr(recipe, field.name)))
            font = value.font()
            font.setBold(field.name in self._model.draft.changes)
            value.setFont(font)
            self.table.setItem(place, 1, value)

    @Slot(QTableWidgetItem)
    def _edited(self, item: QTableWidgetItem) -> None:
        if self._filling or item.column() != 1:
            return
        name = dataclasses.fields(Recipe)[item.row()].name
        try:
            value = json.loads(item.text())
            value = tuple(value) if isinstance(value, list) else value
            changes = {**self._model.draft.changes, name: value}
            dataclasses.replace(self._model.draft, changes=changes).recipe()
        except (ValueError, TypeError) as error:
            text = self.tr("{0} cannot be {1}: {2}.").format(name, item.text()[:40], error)
            self._say(RequestError("recipe.value", text, self.tr("Write it as it stood before.")))
        except RequestError as error:
            self._say(error)
        else:
            self._set(changes=changes)

    def _say(self, error: UnblurError) -> None:
        problem = Problem(error.code, error.message, error.action)
        self.problem.show_problem(problem, "reset", self.tr("Take the preset's values"))

    def _set(self, **given: Any) -> None:
        if not self._filling and any(
            getattr(self._model.draft, name) != value for name, value in given.items()
        ):
            self._model.change(**given)

    @Slot()
    def _save(self) -> None:
        try:
            text = self._model.draft.spec().to_json()
        except RequestError as error:
            self._say(error)
            return
        name, _ = QFileDialog.getSaveFileName(self, self.save.text(), "spec.json", "JSON (*.json)")
        if name:
            try:
                Path(name).write_text(text, encoding="utf-8")
            except OSError as error:
                words = self.tr("{0} cannot be written: {1}.").format(name, error.strerror)
                self._say(RequestError("spec.unwritable", words, self.tr("Choose another place.")))

    @Slot()
    def _load(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, self.load.text(), "", "JSON (*.json)")
        if not name:
            return
        try:
            self._model.take(TrainSpec.open(Path(name)))
        except UnblurError as error:
            self._say(error)

    def decided(self) -> str:
        goal = self.tr("teach, then speed") if self._model.draft.teach else self.tr("speed")
        return f"{PRESETS[self._model.draft.preset].title}, {goal}"
