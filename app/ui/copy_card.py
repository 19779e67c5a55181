"""Making an NVFP4 copy: where it goes, how far it is, and the report afterwards.

It knows how the copy's lifecycle looks. It refuses to know how weights are converted.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QProgressBar

from app.backend.library.scan import LocalModel
from app.models.copying import CopyModel
from app.models.model_states import Copying
from app.ui.model_parts import CardFrame, ProblemCard, button, put, row, text_label
from app.ui.model_words import size
from app.ui.theme import Space, Theme


class CopyCard(CardFrame):
    closed = Signal()

    def __init__(self, theme: Theme, copying: CopyModel) -> None:
        super().__init__(self.tr("NVFP4 copy"))
        self._copying = copying
        self._asked: tuple[LocalModel, Path] | None = None
        self.title = text_label("strong")
        self.words = text_label("muted")
        self.path = text_label("figures")
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, 1000)
        self.progress.setAccessibleName(self.tr("Making the copy"))
        self.report = text_label("report", wrap=False)
        self.start = button(self.tr("Make the copy"), kind="primary")
        self.stop = button(self.tr("Stop"), self.tr("Stop making the copy"))
        self.details = button(self.tr("Show the report"), kind="link")
        self.details.setCheckable(True)
        self.close_button = button(self.tr("Close"), self.tr("Close the NVFP4 copy"), kind="link")
        self.problem = ProblemCard(theme)
        for part in (self.title, self.words, self.path, self.progress, self.report, self.problem):
            self.inside.addWidget(part)
        self.inside.addSpacing(Space.S)
        self.inside.addLayout(row(self.start, self.stop, self.details, None, self.close_button))
        self.start.clicked.connect(self._start)
        self.stop.clicked.connect(copying.stop)
        self.details.toggled.connect(self.refresh)
        self.close_button.clicked.connect(self._close)
        self.problem.pressed.connect(self._start)
        copying.changed.connect(self.refresh)
        self.refresh()

    def ask(self, model: LocalModel, target: Path) -> None:
        """Says what would be made, and waits for the press."""
        if self._copying.busy:
            return
        self._copying.dismiss()
        self._asked = (model, target)
        self.refresh()
        self.start.setFocus()

    @Slot()
    def refresh(self) -> None:
        copying = self._copying
        state = copying.state
        asked = self._asked is not None and not copying.busy
        self.setVisible(asked or state is not Copying.IDLE)
        for part in (self.progress, self.report, self.problem):
            part.setVisible(False)
        self.start.setVisible(state is Copying.IDLE and asked)
        self.stop.setVisible(copying.busy)
        self.stop.setEnabled(state is Copying.COPYING)
        self.details.setVisible(state is Copying.DONE)
        self.close_button.setVisible(not copying.busy)
        if copying.busy:
            self._show_progress()
        elif state is Copying.DONE:
            self._show_report()
        elif state is Copying.FAILED and copying.problem is not None:
            self.title.setText(self.tr("The copy was not made"))
            put(self.words, "")
            put(self.path, str(copying.target or ""))
            self.problem.show_problem(copying.problem, "start", self.tr("Try again"))
        elif self._asked is not None:
            self._show_question(*self._asked)

    def _show_question(self, model: LocalModel, target: Path) -> None:
        self.title.setText(self.tr("Make an NVFP4 copy of {0}").format(model.name))
        put(
            self.words,
            self.tr(
                "Reads all {0} and writes a new model whose weights take 4.5 bits each. The"
                " original stays as it is. It can be stopped, and goes on where it was. Afterwards"
                " the two are compared, and a report says how far apart they are. The copy goes to:"
            ).format(size(model.size)),
        )
        put(self.path, str(target))

    def _show_progress(self) -> None:
        copying = self._copying
        name = copying.source.name if copying.source is not None else ""
        self.title.setText(self.tr("Making an NVFP4 copy of {0}").format(name))
        progress = copying.progress
        phase = progress.phase if progress is not None else self.tr("Starting")
        if copying.state is Copying.STOPPING:
            phase = self.tr("Stopping; what is done is kept")
        self.progress.setVisible(True)
        share = None
        if progress is not None and progress.total_bytes:
            share = progress.done_bytes / progress.total_bytes
        self.progress.setRange(0, 1000 if share is not None else 0)
        if share is not None:
            self.progress.setValue(round(1000 * share))
            phase = f"{phase}: {share:.0%}"
        put(self.words, phase)
        put(self.path, str(copying.target or ""))

    def _show_report(self) -> None:
        report = self._copying.report
        if report is None:
            return
        self.title.setText(self.tr("The NVFP4 copy is ready"))
        put(self.words, "\n".join(report.summary))
        put(self.path, str(report.target))
        shown = self.details.isChecked()
        text = self.tr("Hide the report") if shown else self.tr("Show the report")
        self.details.setText(text)
        self.details.setAccessibleName(text)
        put(self.report, report.text if shown else "")

    @Slot()
    def _start(self) -> None:
        asked = self._asked
        if asked is None and self._copying.source is not None and self._copying.target is not None:
            asked = (self._copying.source, self._copying.target)
        if asked is not None and not self._copying.busy:
            self._asked = asked  # stays, so that a stopped copy can be gone on with
            self._copying.start(*asked)

    @Slot()
    def _close(self) -> None:
        self._asked = None
        self._copying.dismiss()
        self.refresh()
        self.closed.emit()
