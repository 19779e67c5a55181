"""One model that could be had: its facts, whether it runs and fits, and its one button.

It knows how a card of the list looks before and after a look at the files. It refuses to do what
its buttons say: each is a signal.
"""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from app.backend.hub.card import beginning
from app.backend.hub.support import Supported
from app.backend.judge import Judged
from app.backend.library.scan import LocalModel
from app.backend.transfer.queue import DownloadView, Problem
from app.models.find import FindCard, Look
from app.models.model_states import Looking
from app.ui.markdown_view import MessageText
from app.ui.model_parts import (
    Badge,
    CardFrame,
    ProblemCard,
    ask_for_order,
    button,
    headed,
    open_page,
    put,
    relabel,
    row,
    text_label,
)
from app.ui.model_words import (
    FIT_WORDS,
    Offer,
    facts_tip,
    find_facts,
    fit_line,
    help_with,
    offer,
    plural,
    size,
    support_words,
)
from app.ui.theme import Space, Theme


class FindCardView(CardFrame):
    acted = Signal(object, str)  # FindCard, the offer's action or "token", "retry"
    opened = Signal(object)  # FindCard, whose details are now shown

    def __init__(self, theme: Theme, card: FindCard, endpoint: str) -> None:
        super().__init__(card.title)
        self.card = card
        self._theme, self._endpoint = theme, endpoint
        self._offer = Offer("", "wait")
        self.title = text_label("strong")
        self.support = Badge()
        self.fit = Badge()
        self.main = button("")
        self.facts = text_label("muted")
        self.about = text_label()
        self.fit_words = text_label("muted")
        self.reason = text_label("small")
        self.problem = ProblemCard(theme)
        self.more = button(self.tr("Details"), kind="link")
        self.more.setCheckable(True)
        self.page = button(self.tr("Its page"), kind="link")
        self.details = CardDetails(theme)
        self.details.hide()
        self.inside.addLayout(headed(self.title, self.support, self.fit, self.main))
        for part in (self.facts, self.about, self.fit_words, self.reason, self.problem):
            self.inside.addWidget(part)
        self.inside.addLayout(row(self.more, self.page, None, spacing=Space.M))
        self.inside.addWidget(self.details)
        self.main.clicked.connect(lambda: self.acted.emit(self.card, self._offer.action))
        self.more.toggled.connect(self._toggle)
        self.page.clicked.connect(self._open_page)
        self.problem.pressed.connect(self._on_problem)

    def show_card(
        self,
        card: FindCard,
        look: Look,
        here: LocalModel | None,
        download: DownloadView | None,
        context: int,
    ) -> None:
        self.card = card
        judged = look.judged
        self.title.setText(card.title)
        put(self.facts, find_facts(card, judged), tip=facts_tip(card, judged))
        put(self.about, card.about)
        support = judged.support if judged is not None else card.support
        word, tone, reason = support_words(support)
        self.support.show_word(word if card.ref is not None else "", tone, reason)
        quiet = support.state is Supported.YES
        put(self.reason, "" if quiet or card.ref is None else reason)
        self._show_fit(judged, context)
        self._offer = offer(card, look, here, download, context)
        relabel(
            self.main, self._offer.label, f"{self._offer.label}: {card.title}", self._offer.kind
        )
        self.main.setEnabled(self._offer.action != "wait")
        self.main.setVisible(bool(self._offer.label))
        self.main.setToolTip(self._offer.tip)
        self.main.setAccessibleDescription(self._offer.tip)
        self._show_problem(look.problem if look.state is Looking.FAILED else None)
        self.page.setVisible(card.ref is not None)
        self.page.setToolTip(self._link())
        self.page.setAccessibleName(self.tr("Open the page of {0}").format(card.title))
        self.more.setAccessibleName(self.tr("Details of {0}").format(card.title))
        if self.more.isChecked():
            self.details.show_details(card, look, context)

    def _show_fit(self, judged: Judged | None, context: int) -> None:
        if judged is None:
            self.fit.show_word("")
            put(self.fit_words, "")
            return
        found = judged.fits[context]
        word, tone = FIT_WORDS[found.verdict]
        numbers = "\n".join(found.sentences)
        self.fit.show_word(word, tone, numbers)
        words, tone = fit_line(found)
        put(self.fit_words, words, tone, numbers)

    def _show_problem(self, problem: Problem | None) -> None:
        if problem is None:
            self.problem.hide()
            return
        labels = {
            "token": self.tr("Enter a token"),
            "page": self.tr("Open its page"),
            "retry": self.tr("Try again"),
        }
        action = help_with(problem)
        self.problem.show_problem(problem, action, labels[action])

    @Slot(str)
    def _on_problem(self, action: str) -> None:
        if action in ("token", "retry"):
            self.acted.emit(self.card, action)

    @Slot(bool)
    def _toggle(self, on: bool) -> None:
        self.details.setVisible(on)
        self.more.setText(self.tr("Fewer details") if on else self.tr("Details"))
        if on:
            self.opened.emit(self.card)

    def _link(self) -> str:
        ref = self.card.ref
        return f"{self._endpoint}/{ref.repo_id}" if ref is not None else ""

    @Slot()
    def _open_page(self) -> None:
        open_page(self._link())


class CardDetails(QWidget):
    """What is behind a card: every number of the fit, the sources, and the model's own text."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._shown: str | None = None
        self.numbers = text_label("small")
        self.sources = text_label("small")
        self.note = text_label("small")
        self.text: MessageText | None = None
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, Space.S, 0, 0)
        layout.setSpacing(Space.S)
        rule = QFrame()
        rule.setObjectName("rule")
        for part in (rule, self.numbers, self.sources, self.note):
            layout.addWidget(part)
        self._layout = layout

    def show_details(self, card: FindCard, look: Look, context: int) -> None:
        judged = look.judged
        lines: list[str] = []
        if judged is not None:
            found = judged.fits[context]
            lines = [judged.support.reason]
            lines += [line for line in found.sentences if line not in lines]
            if found.ms_per_step is not None:
                lines.append(self.tr("Time of a step: {0}.").format(found.ms_reason))
            files = plural(len(judged.plan.files), "file", "files")
            lines.append(
                self.tr("Download: {0}, {1}, to {2}").format(
                    files, size(judged.plan.total_bytes), judged.root
                )
            )
            lines.append(self.tr("Version: {0}").format(judged.model.commit))
        elif look.state is not Looking.LOOKING:
            lines = [self.tr("Its files have not been looked at.")]
        put(self.numbers, "\n".join(lines))
        put(self.sources, facts_tip(card, judged))
        self._show_text(look)

    def _show_text(self, look: Look) -> None:
        if look.text is None:
            waiting = self.tr("Reading the model card…") if look.judged is not None else ""
            put(self.note, look.text_problem.message if look.text_problem else waiting)
            return
        text = beginning(look.text)
        note = "" if text else self.tr("It has no model card.")
        if len(text) < len(look.text):
            note = self.tr("The model card goes on; all of it is on its page.")
        put(self.note, note)
        if text and text != self._shown:
            if self.text is None:
                self.text = MessageText(self._theme, self.tr("Model card"), self)
                self._layout.insertWidget(self._layout.indexOf(self.note), self.text)
                ask_for_order(self)
            self._shown = text
            self.text.show_markdown(text)
