"""Two traces side by side: which the other is, where they part, why one is slower, their figures.

It knows how a comparison is laid out. It refuses to know how traces are aligned and what the
sentences mean. The cell by cell difference is a colour of the canvas and the raster.
"""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QGridLayout,
    QLabel,
    QMenu,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.models.inspector import InspectorModel, Source
from app.models.inspector_compare import CompareModel
from app.models.inspector_files import InspectorFiles
from app.models.inspector_forks import ForkModel
from app.ui.inspector.numbers_panel import Figures
from app.ui.inspector.words import difference_name, step_words
from app.ui.theme import Space
from engine.trace import EXTENSION, Trace

SHOWN = ("tokens", "forwards", "tpf", "tokens_per_second", "steps", "edits")
TITLE_LENGTH = 40


class ComparePanel(QFrame):
    def __init__(
        self,
        model: InspectorModel,
        compare: CompareModel,
        files: InspectorFiles,
        forks: ForkModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self.setAccessibleName(self.tr("Compare two traces"))
        self._model = model
        self._compare = compare
        self._files = files
        self._forks = forks
        self.head = _label(self, "strong")
        self.choose = QPushButton(self.tr("Compare with  ▾"), self)
        self.choose.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.choose.setAccessibleName(self.tr("Choose the trace to compare with"))
        self.menu = QMenu(self.choose)
        self.menu.aboutToShow.connect(self.fill_menu)
        self.choose.setMenu(self.menu)
        self.stop = QPushButton(self.tr("Stop comparing"), self)
        self.stop.setProperty("kind", "quiet")
        self.stop.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.stop.setAccessibleName(self.tr("Stop comparing"))
        self.stop.clicked.connect(compare.stop)
        self.go = QPushButton(self.tr("Go to where they part"), self)
        self.go.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.go.setAccessibleName(self.tr("Go to where they part"))
        self.go.clicked.connect(compare.go_to_divergence)
        self.cell = _label(self, "")
        self.words = _label(self, "")
        self.words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.figures: dict[str, tuple[QLabel, QLabel, QLabel]] = {}
        self._lay_out()
        compare.changed.connect(self.refresh)
        model.trace_changed.connect(self.refresh)
        model.selection_changed.connect(self._on_selection)
        self.refresh()

    def _lay_out(self) -> None:
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(Space.M)
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnStretch(0, 1)
        for column, name in ((1, "A"), (2, "B")):
            head = _label(self, "small")
            head.setText(name)
            self._grid.addWidget(head, 0, column, Qt.AlignmentFlag.AlignRight)
        for row, key in enumerate(SHOWN, 1):
            labels = (_label(self, ""), _label(self, "number"), _label(self, "number"))
            for column, label in enumerate(labels):
                label.setWordWrap(False)
                side = Qt.AlignmentFlag.AlignRight if column else Qt.AlignmentFlag.AlignLeft
                self._grid.addWidget(label, row, column, side)
            self.figures[key] = labels
        holder = QWidget()
        inner = QVBoxLayout(holder)
        inner.setContentsMargins(0, 0, Space.M, 0)
        inner.setSpacing(Space.S)
        inner.addLayout(self._grid)
        inner.addWidget(self.words)
        inner.addStretch(1)
        self.area = Figures(self)
        self.area.setAccessibleName(self.tr("What the comparison found"))
        self.area.setWidget(holder)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.M, Space.XS, Space.S)
        layout.setSpacing(Space.S)
        for widget in (self.head, self.choose, self.go, self.cell):
            layout.addWidget(widget)
        layout.addWidget(self.area, 1)
        layout.addWidget(self.stop)

    @Slot()
    def refresh(self) -> None:
        compare, found = self._compare, self._compare.result
        live = self._model.source is Source.LIVE
        self.choose.setEnabled(not live)
        if compare.other is None:
            self.head.setText(
                self.tr("Wait until the answer is finished to compare it.")
                if live
                else self.tr("See where another trace takes another way, and why one is slower.")
            )
        else:
            self.head.setText(self.tr("A: this trace\nB: {0}").format(compare.name))
        for widget in (self.stop, self.area, self.cell):
            widget.setVisible(compare.other is not None)
        self.go.setVisible(found is not None and found.diverged is not None)
        self.words.setText(
            self.tr("Comparing…") if compare.busy else "\n\n".join(compare.sentences)
        )
        for key, labels in self.figures.items():
            for label in labels:
                label.setVisible(found is not None)
            if found is not None:
                labels[0].setText(found.a[key].name)
                labels[0].setToolTip(found.a[key].definition)
                for label, figure in ((labels[1], found.a[key]), (labels[2], found.b[key])):
                    label.setText(figure.text)
                    label.setToolTip(figure.missing)
        self._say_cell()

    @Slot(object, object)
    def _on_selection(self, _before: object, _now: object) -> None:
        if self._compare.result is not None and self.isVisible():
            self._say_cell()

    def _say_cell(self) -> None:
        """How the selected position differs after the selected step, in words."""
        kind = self._compare.kind_at(self._model.selection)
        if kind is None:
            self.cell.setText("")
            return
        self.cell.setText(
            self.tr("{0}: {1}").format(
                step_words(self._model).partition(",")[0], difference_name(kind)
            )
        )

    # the other trace

    @Slot()
    def fill_menu(self) -> None:
        """The traces at hand: of the same tree, of other answers, and any file."""
        self.menu.clear()
        for trace, name in self._at_hand():
            self.menu.addAction(name).triggered.connect(partial(self._start, trace, name))
        if self.menu.actions():
            self.menu.addSeparator()
        self.menu.addAction(self.tr("A trace file…")).triggered.connect(self._ask_file)

    def _at_hand(self) -> list[tuple[Trace, str]]:
        data = self._model.data
        if data is None:
            return []
        seen = {data.trace.header.trace_id}
        found: list[tuple[Trace, str]] = []
        branches = ((branch.trace, branch.title) for branch in self._forks.tree())
        answers = ((trace, _title(trace)) for trace in self._model.answers())
        for trace, name in (*branches, *answers):
            if trace.header.trace_id not in seen:
                seen.add(trace.header.trace_id)
                found.append((trace, name))
        return found

    def _start(self, trace: Trace, name: str, _checked: bool = False) -> None:
        self._compare.start(trace, name)

    @Slot()
    def _ask_file(self) -> None:
        kinds = self.tr("Traces (*{0})").format(EXTENSION)
        path, _ = QFileDialog.getOpenFileName(self, self.tr("Compare with"), "", kinds)
        if path:
            self._files.compare_with(path, self._start)


def _title(trace: Trace) -> str:
    """The first words of the prompt a trace answers."""
    header = trace.header
    asked = header.messages[-1].content if header.messages else header.model_name
    line = asked.strip().partition("\n")[0]
    return line if len(line) <= TITLE_LENGTH else line[:TITLE_LENGTH].rstrip() + "…"


def _label(parent: QWidget, tone: str) -> QLabel:
    label = QLabel(parent)
    label.setProperty("tone", tone)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label
