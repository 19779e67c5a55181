"""Step 2: what the data is, rows exactly as the model will see them, and who judges replies.

It knows the report and how it is shown. It refuses to know how it was made.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import QButtonGroup, QLabel, QRadioButton

from app.models.finetune import FinetuneModel
from app.ui.finetune.step_page import StepPage, figure
from app.ui.model_parts import put, row, text_label
from app.ui.theme import Theme

if TYPE_CHECKING:
    from trainer.data.report import DataReport, Lengths, SeenRow

LONGEST = 600  # characters of a row that are shown


class CheckStep(StepPage):
    def __init__(self, theme: Theme, model: FinetuneModel) -> None:
        super().__init__(
            self.tr("Check"),
            self.tr("What was found in your data. Nothing is trained before you have seen it."),
        )
        self._theme, self._model = theme, model
        counts = self.card(self.tr("Counts"))
        self.counts = figure()
        counts.inside.addWidget(self.counts)
        found = self.card(self.tr("What you should know"))
        self.found = found
        self.stops = text_label("wrong")
        self.sentences = text_label("warn")
        found.inside.addWidget(self.stops)
        found.inside.addWidget(self.sentences)
        lengths = self.card(self.tr("Tokens of prompt and answer"))
        self.lengths = figure()
        lengths.inside.addWidget(self.lengths)
        seen = self.card(self.tr("Rows as the model will see them"))
        key = text_label("muted")
        key.setText(self.tr("Underlined: what it is taught to write. The rest is only read."))
        seen.inside.addWidget(key)
        self.rows: list[QLabel] = []
        for number in range(5):
            label = QLabel()
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.RichText)
            label.setProperty("tone", "figures")
            label.setAccessibleName(self.tr("Row {0}").format(number + 1))
            seen.inside.addWidget(label)
            self.rows.append(label)
        self._add_verifier()
        self.column.addStretch(1)
        theme.changed.connect(self.refresh)
        self.refresh()

    def _add_verifier(self) -> None:
        self._judges = self.card(self.tr("Who judges replies"))
        self.verifiers: dict[str, QRadioButton] = {}
        self._group = QButtonGroup(self)
        words = text_label("muted")
        words.setText(self.tr("Only replies that pass teach. The choices appear with your data."))
        self.tried = text_label()
        self._judges.inside.addWidget(words)
        self._judges.inside.addWidget(self.tried)

    def _list_judges(self) -> None:
        """Adds what is not listed yet; a kind that needs answers waits for data that has them."""
        report = self._model.report
        answered = report is not None and report.counts.answered > 0
        for kind in self._model.kinds:
            if kind.key not in self.verifiers:
                choice = QRadioButton(kind.title)
                choice.setAccessibleName(kind.title)
                choice.setAccessibleDescription(kind.summary)
                choice.toggled.connect(lambda on, k=kind.key: on and self._choose(k))
                said = text_label("muted")
                said.setText(kind.summary)
                self._group.addButton(choice)
                self.verifiers[kind.key] = choice
                self._judges.inside.addLayout(row(choice, None))
                self._judges.inside.addWidget(said)
            self.verifiers[kind.key].setEnabled(answered or not kind.needs_answers)
        self.order_soon()

    def _choose(self, key: str) -> None:
        if self._model.draft.verifier != key:
            self._model.change(verifier=key)

    @Slot()
    def refresh(self) -> None:
        report = self._model.report
        self._list_judges()
        chosen = self.verifiers.get(self._model.draft.verifier)
        if chosen is not None:
            chosen.setChecked(True)
        self.found.setVisible(report is not None and bool(report.findings))
        if report is None:
            put(self.counts, self.tr("Nothing has been read yet."))
            put(self.lengths, "")
            put(self.tried, "")
            for label in self.rows:
                label.hide()
            return
        put(self.counts, self._count_words(report))
        said = [(f.level, f"{f.message} {f.action}") for f in report.findings]
        put(self.stops, "\n".join(text for level, text in said if level == "stop"))
        put(self.sentences, "\n".join(text for level, text in said if level != "stop"))
        put(self.lengths, "" if report.lengths is None else self._length_words(report.lengths))
        put(self.tried, "" if report.probe is None else report.probe.sentence)
        for number, label in enumerate(self.rows):
            label.setVisible(number < len(report.seen))
            if number < len(report.seen):
                label.setText(self._row(report.seen[number]))

    def _length_words(self, lengths: Lengths) -> str:
        widest = max(lengths.counts, default=0) or 1
        names = [f"up to {edge}" for edge in lengths.edges] + [f"over {lengths.edges[-1]}"]
        lines = [
            f"{name:>13}  {'█' * round(24 * rows / widest):<24}  {rows:,}"
            for name, rows in zip(names, lengths.counts, strict=False)
            if rows
        ]
        blocks = ", ".join(f"{n}: {count:,}" for n, count in sorted(lengths.blocks.items()))
        lines.append(
            self.tr("blocks of {0} an answer spans: {1}").format(lengths.block, blocks or "–")
        )
        lines.append(
            self.tr("the model's context {0}, a training row at most {1}").format(
                lengths.context, lengths.limit
            )
        )
        return "\n".join(lines)

    def _count_words(self, report: DataReport) -> str:
        counts, split = report.counts, report.split
        lines = [
            self.tr("{0} examples").format(f"{counts.tasks:,}"),
            self.tr("{0} with an answer").format(f"{counts.answered:,}"),
            self.tr("{0} repeated").format(f"{counts.repeated:,}"),
            self.tr("{0} train, {1} are held out for measuring").format(
                f"{split.train:,}", f"{split.valid:,}"
            ),
        ]
        groups = [f"{name or self.tr('no group')} {n:,}" for name, n in counts.skills.items()]
        if len(groups) > 1:
            lines.append(self.tr("groups: {0}").format(", ".join(groups[:12])))
        return "\n".join(lines)

    def _row(self, seen: SeenRow) -> str:
        """The row as rich text; everything of it is escaped."""
        colour = self._theme.colors.ok
        read = _short("".join(t.text for t in seen.tokens if not t.trained))
        taught = _short("".join(t.text for t in seen.tokens if t.trained))
        return (
            f"<span>{_html(read)}</span>"
            f'<span style="color:{colour}; text-decoration: underline">{_html(taught)}</span>'
        )

    def decided(self) -> str:
        report = self._model.report
        return "" if report is None else self.tr("{0} rows").format(f"{report.counts.tasks:,}")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _html(text: str) -> str:
    return escape(text).replace("\n", "<br>")
