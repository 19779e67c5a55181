"""One model on this computer: its facts, what is the matter with it, and what can be done.

It knows how a `LocalModel` and the check of its files look. It refuses to do any of it: each button
is a signal.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QProgressBar

from app.backend.hub.support import Supported
from app.backend.library.scan import LocalModel
from app.backend.library.verify import FileState, Report
from app.models.copying import can_copy
from app.models.library import Check
from app.models.model_states import Checking
from app.ui.model_parts import (
    Badge,
    CardFrame,
    ProblemCard,
    button,
    headed,
    put,
    relabel,
    row,
    text_label,
)
from app.ui.model_words import local_facts, plural, size, support_words
from app.ui.theme import Space, Theme

NAMED = 3  # bad files that are named one by one


@dataclass(frozen=True)
class CardState:
    """What a card shows beside the model. in_use: it is loaded, or being loaded. others: its other
    copies and versions. copy_reason: why no NVFP4 copy can be begun now, "" when one can."""

    in_use: bool = False
    others: tuple[LocalModel, ...] = ()
    copy_reason: str = ""


class LibraryCard(CardFrame):
    use_pressed = Signal(object)  # LocalModel, as are the others
    delete_pressed = Signal(object)
    check_pressed = Signal(object)
    stop_pressed = Signal(object)
    repair_pressed = Signal(object)
    copy_pressed = Signal(object)

    def __init__(self, theme: Theme, model: LocalModel) -> None:
        super().__init__(model.name)
        self._model = model
        self.title = text_label("strong")
        self.badge = Badge()
        self.facts = text_label("muted")
        self.reason = text_label("small")
        self.path = text_label("figures")
        self.doubles = text_label("small")
        self.outcome = text_label("small")
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, 1000)
        self.use = button(self.tr("Use"), kind="primary")
        self.check = button(self.tr("Verify"), kind="link")
        self.copy = button(self.tr("Make an NVFP4 copy"), kind="link")
        self.delete = button(self.tr("Delete"), kind="link")
        self.repair = button(self.tr("Repair"))
        self.problem = ProblemCard(theme)
        self.inside.addLayout(headed(self.title, self.badge, self.use, spacing=Space.M))
        for label in (self.facts, self.reason, self.path, self.doubles):
            self.inside.addWidget(label)
        self.inside.addWidget(self.progress)
        self.inside.addLayout(headed(self.outcome, self.repair))
        self.inside.addWidget(self.problem)
        self.inside.addLayout(row(self.check, self.copy, None, self.delete, spacing=Space.M))
        self.use.clicked.connect(lambda: self.use_pressed.emit(self._model))
        self.delete.clicked.connect(lambda: self.delete_pressed.emit(self._model))
        self.copy.clicked.connect(lambda: self.copy_pressed.emit(self._model))
        self.repair.clicked.connect(lambda: self.repair_pressed.emit(self._model))
        self.check.clicked.connect(self._check)
        self.problem.pressed.connect(lambda _action: self.check_pressed.emit(self._model))
        self._state = Checking.UNCHECKED

    def show_model(self, model: LocalModel, state: CardState, check: Check) -> None:
        self._model = model
        self.title.setText(model.name)
        self.setAccessibleName(model.name)
        badge, tone, reason = support_words(model.support)
        if model.problem:
            badge, tone, reason = self.tr("Incomplete"), "bad", model.problem
        if state.in_use:
            badge, tone = self.tr("In use"), "accent"
        self.badge.show_word(badge, tone, reason)
        put(self.facts, local_facts(model))
        put(
            self.reason,
            "" if model.support.state is Supported.YES and not model.problem else reason,
        )
        put(self.path, str(model.path))
        put(self.doubles, self._doubles_words(state.others))
        self._show_buttons(model, state)
        self._show_check(check)

    def _show_buttons(self, model: LocalModel, state: CardState) -> None:
        refused = model.support.state is Supported.NO
        self.use.setVisible(not state.in_use)
        self.use.setEnabled(not refused)
        self.use.setToolTip(model.support.reason if refused else self.tr("Load it for the chat"))
        self.delete.setEnabled(not state.in_use)
        self.delete.setToolTip(
            self.tr("It is in use: unload it first.")
            if state.in_use
            else self.tr("Can be undone until Unblur is closed")
        )
        self.copy.setVisible(can_copy(model))
        self.copy.setEnabled(not state.copy_reason)
        self.copy.setToolTip(
            state.copy_reason
            or self.tr("Write a copy whose weights take 4.5 bits each. This one stays as it is.")
        )
        for made in (self.use, self.copy, self.delete, self.repair):
            made.setAccessibleName(f"{made.text()}: {model.name}")
            made.setAccessibleDescription(made.toolTip())

    def _doubles_words(self, others: tuple[LocalModel, ...]) -> str:
        if not others:
            return ""
        places = "; ".join(
            f"{other.path} ({self._version(other)}, {size(other.size)})" for other in others
        )
        return self.tr("Here more than once. Also: {0}").format(places)

    def _version(self, other: LocalModel) -> str:
        if not other.commit:
            return self.tr("version not known")
        if other.commit == self._model.commit:
            return self.tr("the same version")
        return self.tr("version {0}").format(other.commit[:8])

    def _show_check(self, check: Check) -> None:
        self._state = check.state
        running = check.state in (Checking.CHECKING, Checking.STOPPING)
        self.progress.setVisible(running)
        self.progress.setAccessibleName(self.tr("Checking {0}").format(self._model.name))
        self.progress.setValue(round(1000 * check.done / check.total) if check.total else 0)
        text = self.tr("Stop verifying") if running else self.tr("Verify")
        relabel(self.check, text, f"{text}: {self._model.name}")
        self.check.setEnabled(check.state is not Checking.STOPPING)
        self.check.setToolTip(
            self.tr("Read every file and compare it with what was published. Needs no network.")
        )
        self.repair.setVisible(False)
        self.problem.hide()
        if running:
            share = check.done / check.total if check.total else 0.0
            put(self.outcome, self.tr("Checking: {0}").format(f"{share:.0%}"), "small")
        elif check.report is not None:
            self._show_report(check.report)
        else:
            put(self.outcome, "")
            if check.problem is not None:
                self.problem.show_problem(check.problem, "check", self.tr("Verify again"))

    def _show_report(self, report: Report) -> None:
        if not report.bad:
            unknown = [f for f in report.files if f.state is FileState.NO_HASH]
            words = self.tr("Every file is as published.")
            if unknown:
                words = self.tr(
                    "{0} whole by length and header; nobody wrote down what the bytes should be."
                ).format(plural(len(unknown), "file is", "files are"))
            put(self.outcome, words, "small" if unknown else "ok")
            return
        named = [f"{file.path}: {file.reason}" for file in report.bad[:NAMED]]
        if len(report.bad) > NAMED:
            named.append(self.tr("and {0} more").format(len(report.bad) - NAMED))
        files = plural(len(report.files), "file", "files")
        head = self.tr("Wrong: {0} of {1}.").format(len(report.bad), files)
        put(self.outcome, "\n".join((head, *named)), "wrong")
        self.repair.setVisible(True)
        self.repair.setToolTip(self.tr("Fetch only these files again"))

    @Slot()
    def _check(self) -> None:
        signal = self.stop_pressed if self._state is Checking.CHECKING else self.check_pressed
        signal.emit(self._model)
