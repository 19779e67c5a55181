"""Step 7: what is kept of a run, and the runs there are.

It knows controls. Writing a model is a process of its own.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QButtonGroup, QFileDialog, QRadioButton

from app.models.finetune import FinetuneModel
from app.models.finetune_run import RunModel
from app.ui.finetune.step_page import StepPage
from app.ui.model_parts import ProblemCard, button, put, row, text_label
from app.ui.model_words import size
from app.ui.theme import Theme


class KeepStep(StepPage):
    use_pressed = Signal(str)  # a model's folder

    def __init__(self, theme: Theme, model: FinetuneModel, run: RunModel, models: Path) -> None:
        super().__init__(
            self.tr("Keep"), self.tr("Write the best checkpoint as a model, and chat with it.")
        )
        self._model, self._run, self._models = model, run, models
        self._made = ""
        card = self.card(self.tr("As what"))
        self._group = QButtonGroup(self)
        self.kinds: dict[str, QRadioButton] = {}
        for key, name, words in (
            (
                "nvfp4",
                self.tr("An NVFP4 model"),
                self.tr("Small and fast; the base must be NVFP4."),
            ),
            ("merged", self.tr("A bfloat16 model"), self.tr("Larger; loads anywhere.")),
            (
                "adapter",
                self.tr("The adapter alone"),
                self.tr("What was trained, without its base; for going on later."),
            ),
        ):
            choice = QRadioButton(name)
            choice.setAccessibleName(name)
            choice.setAccessibleDescription(words)
            said = text_label("muted")
            said.setText(words)
            self._group.addButton(choice)
            self.kinds[key] = choice
            card.inside.addLayout(row(choice, None))
            card.inside.addWidget(said)
        self.kinds["nvfp4"].setChecked(True)
        self.state = text_label("muted")
        self.problem = ProblemCard(theme)
        self.write_button = button(self.tr("Write it"), kind="primary")
        self.use_button = button(self.tr("Chat with it"))
        for part in (self.state, self.problem):
            card.inside.addWidget(part)
        card.inside.addLayout(row(self.write_button, self.use_button, None))
        away = self.card(self.tr("Or let it go"))
        self.room = text_label("muted")
        self.discard_button = button(self.tr("Discard this run"))
        self.undo_button = button(self.tr("Undo"), self.tr("Bring the discarded run back"))
        away.inside.addWidget(self.room)
        away.inside.addLayout(row(self.discard_button, self.undo_button, None))
        self.discard_button.clicked.connect(run.discard)
        self.undo_button.clicked.connect(run.undo)
        run.discarded.connect(lambda: model.change(run=""))
        run.restored.connect(lambda folder: model.change(run=folder))
        self.column.addStretch(1)
        self.write_button.clicked.connect(self._write)
        self.use_button.clicked.connect(lambda: self.use_pressed.emit(self._made))
        self.problem.pressed.connect(lambda _action: self._write())
        run.changed.connect(self.refresh)
        run.exported.connect(self._exported)
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        run = self._run
        saved = run.path is not None and len(run.watched.validations) > 0
        self.write_button.setEnabled(saved and not run.exporting)
        words = self.tr("Nothing has been saved yet: start a run first.")
        if run.exporting:
            words = self.tr("Writing… this loads the model once more.")
        elif self._made:
            words = self.tr("Written: {0}").format(self._made)
        elif saved:
            words = self.tr("A README.md is written beside it: base, data, figures, recipe.")
        put(self.state, words)
        self.discard_button.setVisible(run.path is not None and not run.alive)
        self.undo_button.setVisible(run.aside is not None)
        room = self.tr("This run takes {0} on the disk.").format(size(run.bytes))
        if run.path is None:
            room = self.tr("No run is shown.")
        if run.aside is not None:
            name = run.aside[0].name
            room = self.tr("{0} was discarded; it can come back until the window closes.").format(
                name
            )
        put(self.room, room)
        self.use_button.setVisible(bool(self._made) and "adapter" not in Path(self._made).name)
        self.problem.setVisible(run.problem is not None)
        if run.problem is not None:
            self.problem.show_problem(run.problem, "write", self.tr("Try again"))

    @property
    def chosen(self) -> str:
        return next(key for key, choice in self.kinds.items() if choice.isChecked())

    @Slot()
    def _write(self) -> None:
        run = self._run
        if run.path is None:
            return
        name = f"{run.path.name}-{self.chosen}"
        self._models.mkdir(parents=True, exist_ok=True)
        folder = QFileDialog.getExistingDirectory(
            self, self.tr("Where to write {0}").format(name), str(self._models)
        )
        if folder:
            self.write_into(Path(folder))

    def write_into(self, parent: Path) -> None:
        """Writes the chosen form below a folder, under the run's name."""
        run = self._run
        assert run.path is not None
        name, number = f"{run.path.name}-{self.chosen}", 2
        while (parent / name).exists():
            name, number = f"{run.path.name}-{self.chosen}-{number}", number + 1
        self._made = ""
        run.export(self.chosen, parent / name)

    @Slot(str)
    def _exported(self, folder: str) -> None:
        self._made = folder
        self.refresh()

    def decided(self) -> str:
        return Path(self._made).name if self._made else ""
