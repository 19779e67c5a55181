"""Step 1: which file of examples, which columns, and which model is to learn.

It knows the controls. It refuses to know file formats.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Slot
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QComboBox, QFileDialog, QPlainTextEdit

from app.backend.files import ASSETS, DEMO_MODEL
from app.models.finetune import FinetuneModel
from app.models.model_store import ModelStore
from app.ui.finetune.step_page import StepPage
from app.ui.model_parts import ProblemCard, button, put, row, text_label
from app.ui.theme import Theme

EXAMPLES = sorted((ASSETS / "examples").glob("*.jsonl"))[:1]
SHOWN_BAD = 50


class DataStep(StepPage):
    def __init__(self, theme: Theme, model: FinetuneModel, store: ModelStore) -> None:
        super().__init__(
            self.tr("Data"),
            self.tr(
                "A file with one example a line: a prompt, and an answer where you have one. "
                "Drop it here, or choose it."
            ),
        )
        self._model, self._store = model, store
        self.setAcceptDrops(True)
        files = self.card(self.tr("Examples"))
        self.files = text_label("figures")
        self.choose = button(self.tr("Choose a file"), kind="primary")
        self.bundled = button(self.tr("Use the bundled examples"), kind="link")
        self.choose.clicked.connect(self._choose)
        self.bundled.clicked.connect(lambda: self._take(tuple(map(str, EXAMPLES))))
        self.said = text_label("muted")
        self.problem = ProblemCard(theme)
        self.problem.pressed.connect(lambda _action: self._model.read())
        for part in (self.files, self.said, self.problem):
            files.inside.addWidget(part)
        files.inside.addLayout(row(self.choose, self.bundled, None))
        self._add_columns()
        self._add_model()
        self._add_bad()
        self.column.addStretch(1)
        store.library.changed.connect(self.refresh)
        self.refresh()

    def _add_columns(self) -> None:
        card = self.card(self.tr("Columns"))
        words = text_label("muted")
        words.setText(
            self.tr("Usual names are found by themselves. Choose columns only if that went wrong.")
        )
        self.guess = text_label("muted")
        card.inside.addWidget(words)
        card.inside.addWidget(self.guess)
        self.columns: dict[str, QComboBox] = {}
        for key, name in (
            ("prompt", self.tr("Prompt")),
            ("answer", self.tr("Answer")),
            ("skill", self.tr("Group")),
        ):
            edit = QComboBox()
            edit.setAccessibleName(self.tr("Column of the {0}").format(name.lower()))
            edit.view().setAccessibleName(edit.accessibleName())
            edit.activated.connect(self._columns_changed)
            label = text_label(wrap=False)
            label.setText(name)
            label.setMinimumWidth(80)
            card.inside.addLayout(row(label, edit, None))
            self.columns[key] = edit

    def _add_model(self) -> None:
        card = self.card(self.tr("Model to train"))
        self.model = QComboBox()
        self.model.setAccessibleName(self.tr("Model to train"))
        self.model.view().setAccessibleName(self.model.accessibleName())
        self.model.activated.connect(self._model_chosen)
        card.inside.addWidget(self.model)

    def _add_bad(self) -> None:
        self.bad_card = self.card(self.tr("Rows that are no examples"))
        self.bad = QPlainTextEdit()
        self.bad.setReadOnly(True)
        self.bad.setAccessibleName(self.tr("Rows that are no examples"))
        self.bad.setMaximumHeight(140)
        self.bad_card.inside.addWidget(self.bad)

    @Slot()
    def refresh(self) -> None:
        draft, report = self._model.draft, self._model.report
        put(self.files, "\n".join(draft.files) or self.tr("No file yet."))
        words = ""
        if self._model.reading:
            words = self.tr("Reading…")
        elif report is not None:
            words = self.tr("{0} examples, {1} with an answer.").format(
                f"{report.counts.tasks:,}", f"{report.counts.answered:,}"
            )
        put(self.said, words)
        self.bundled.setVisible(bool(EXAMPLES))
        problem = self._model.problem
        self.problem.setVisible(problem is not None)
        if problem is not None:
            self.problem.show_problem(problem, "read", self.tr("Read again"))
        bad = report.bad if report is not None else ()
        self.bad_card.setVisible(bool(bad))
        more = (
            [self.tr("and {0} more").format(len(bad) - SHOWN_BAD)] if len(bad) > SHOWN_BAD else []
        )
        text = "\n".join([*map(str, bad[:SHOWN_BAD]), *more])
        if text != self.bad.toPlainText():
            self.bad.setPlainText(text)
        self._fill_columns()
        self._fill_models()

    def _fill_columns(self) -> None:
        report, chosen = self._model.report, self._model.draft.columns
        names = self._model.columns
        put(self.guess, "" if report is None else "\n".join(report.layouts))
        for key, edit in self.columns.items():
            wanted = [("", self.tr("found by itself")), *((name, name) for name in names)]
            if [edit.itemData(n) for n in range(edit.count())] != [value for value, _ in wanted]:
                edit.clear()
                for value, name in wanted:
                    edit.addItem(name, value)
            edit.setCurrentIndex(max(0, edit.findData(chosen.get(key, ""))))
            edit.setEnabled(bool(names))

    def _fill_models(self) -> None:
        found = [(self.tr("The demo model"), str(DEMO_MODEL))]
        view = self._store.library.shelf.view
        for folder in view.folders:
            found += [(model.name, str(model.path)) for model in folder.models]
        current = self._model.draft.model
        if current and current not in [path for _, path in found]:
            found.append((Path(current).name, current))
        if [self.model.itemData(n) for n in range(self.model.count())] != [p for _, p in found]:
            self.model.clear()
            for name, path in found:
                self.model.addItem(name, path)
        place = next((n for n, (_, path) in enumerate(found) if path == current), -1)
        self.model.setCurrentIndex(place)

    def decided(self) -> str:
        files = self._model.draft.files
        return Path(files[0]).name if files else ""

    @Slot()
    def _choose(self) -> None:
        kinds = self.tr("Examples (*.jsonl *.json *.csv *.parquet *.txt);;All files (*)")
        names, _ = QFileDialog.getOpenFileNames(self, self.tr("Choose examples"), "", kinds)
        if names:
            self._take(tuple(names))

    def _take(self, files: tuple[str, ...]) -> None:
        model = self._model.draft.model or str(DEMO_MODEL)
        self._model.change(files=files, model=model)

    @Slot(int)
    def _model_chosen(self, place: int) -> None:
        self._model.change(model=str(self.model.itemData(place)))

    @Slot()
    def _columns_changed(self) -> None:
        named = {key: str(edit.currentData() or "") for key, edit in self.columns.items()}
        wanted = {key: name for key, name in named.items() if name}
        if not wanted.get("prompt"):
            wanted = {}
        if wanted != self._model.draft.columns:
            self._model.change(columns=wanted)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if any(url.isLocalFile() for url in event.mimeData().urls()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        paths = [url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()]
        if paths:
            self._take(tuple(paths))
            event.acceptProposedAction()
