"""Downloads: what is being fetched, how far and how fast, and what can be done about it.

It knows how a `DownloadView` looks. It refuses to fetch anything: each button is a call of the
queue.
"""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QProgressBar

from app.backend.transfer.queue import DownloadView, Problem, State
from app.models.downloads import DownloadsModel
from app.models.model_store import ModelStore
from app.ui.model_parts import (
    Badge,
    CardFrame,
    CardList,
    ProblemCard,
    Section,
    button,
    headed,
    put,
    row,
    text_label,
)
from app.ui.model_words import download_words, size
from app.ui.theme import Space, Theme

WORDS = {
    State.QUEUED: ("Waiting", ""),
    State.RUNNING: ("Downloading", "accent"),
    State.PAUSED: ("Paused", "warn"),
    State.FAILED: ("Stopped", "bad"),
    State.DONE: ("Done", "ok"),
}


class DownloadCard(CardFrame):
    use_pressed = Signal(object)  # a folder's path

    def __init__(self, theme: Theme, downloads: DownloadsModel, view: DownloadView) -> None:
        super().__init__(view.repo_id)
        self._downloads = downloads
        self.view = view
        self.title = text_label("strong")
        self.badge = Badge()
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, 1000)
        self.words = text_label("figures")
        self.waiting = text_label("warn")
        self.problem = ProblemCard(theme)
        name = view.repo_id
        self.use = button(self.tr("Use"), self.tr("Use {0}").format(name), kind="primary")
        self.pause = button(self.tr("Pause"), self.tr("Pause {0}").format(name))
        self.resume = button(self.tr("Resume"), self.tr("Resume {0}").format(name))
        self.cancel = button(self.tr("Cancel"), self.tr("Cancel {0}").format(name), kind="link")
        self.forget = button(
            self.tr("Take off the list"),
            self.tr("Take {0} off the list").format(name),
            kind="link",
        )
        self.sure = text_label()
        self.drop = button(self.tr("Delete it"), self.tr("Delete what came of {0}").format(name))
        self.keep = button(self.tr("Keep it"), self.tr("Keep what came of {0}").format(name))
        self.inside.addLayout(headed(self.title, self.badge))
        for part in (self.bar, self.words, self.waiting, self.problem):
            self.inside.addWidget(part)
        self.inside.addSpacing(Space.XS)
        buttons = row(self.use, self.pause, self.resume, None, self.forget, self.cancel)
        self.inside.addLayout(buttons)
        self.inside.addLayout(headed(self.sure, self.keep, self.drop))
        self._asking = False
        self._connect()

    def _connect(self) -> None:
        downloads = self._downloads
        self.pause.clicked.connect(lambda: downloads.pause(self.view.id))
        self.resume.clicked.connect(lambda: downloads.resume(self.view.id))
        self.forget.clicked.connect(lambda: downloads.forget(self.view.id))
        self.use.clicked.connect(lambda: self.use_pressed.emit(self.view.path))
        self.cancel.clicked.connect(lambda: self._ask(True))
        self.keep.clicked.connect(lambda: self._ask(False))
        self.drop.clicked.connect(lambda: downloads.cancel(self.view.id))
        self.problem.pressed.connect(self._on_problem)

    def show_view(self, view: DownloadView) -> None:
        self.view = view
        state = view.state
        version = f"{view.repo_id} @{view.commit[:8]}"
        self.title.setText(self.tr("Repair of {0}").format(version) if view.is_repair else version)
        self.badge.show_word(*WORDS[state])
        share = view.done_bytes / view.total_bytes if view.total_bytes else 0.0
        self.bar.setVisible(state is not State.DONE)
        self.bar.setValue(round(1000 * share))
        self.bar.setAccessibleName(self.tr("Progress of {0}").format(view.repo_id))
        put(self.words, download_words(view))
        put(self.waiting, view.waiting if state is State.RUNNING else "")
        self.use.setVisible(state is State.DONE)
        self.pause.setVisible(state in (State.QUEUED, State.RUNNING))
        self.resume.setVisible(state in (State.PAUSED, State.FAILED))
        self.forget.setVisible(state is State.DONE)
        self._asking = self._asking and state is not State.DONE
        self._show_question()
        self._show_problem(view.problem if state is State.FAILED else None)

    def _show_problem(self, problem: Problem | None) -> None:
        if problem is None:
            self.problem.hide()
        elif problem.link:
            self.problem.show_problem(problem, "page", self.tr("Open its page"))
        else:
            self.problem.show_problem(problem, "resume", self.tr("Resume"))

    @Slot(str)
    def _on_problem(self, action: str) -> None:
        if action == "resume":
            self._downloads.resume(self.view.id)

    def _ask(self, asking: bool) -> None:
        self._asking = asking
        self._show_question()
        (self.keep if asking else self.cancel).setFocus()

    def _show_question(self) -> None:
        """Hours of downloading are not thrown away by one press."""
        received = size(max(0, self.view.done_bytes))
        words = self.tr("Cancel, and delete the {0} that came?").format(received)
        put(self.sure, words if self._asking else "")
        self.keep.setVisible(self._asking)
        self.drop.setVisible(self._asking)
        self.cancel.setVisible(not self._asking and self.view.state is not State.DONE)


class DownloadsSection(Section):
    use_pressed = Signal(object)  # a folder's path
    find_pressed = Signal()

    def __init__(self, theme: Theme, store: ModelStore) -> None:
        super().__init__("")
        self.setAccessibleName(self.tr("Downloads"))
        self._theme, self._downloads = theme, store.downloads
        self._library = store.library
        self.problem = ProblemCard(theme)
        self.where = text_label("small")
        self.note = text_label("warn")
        self.cards: CardList[str, DownloadCard] = CardList(self._make, self._refresh)
        self.empty = CardFrame(self.tr("No downloads"))
        title = text_label("strong")
        title.setText(self.tr("Nothing is being downloaded"))
        words = text_label("muted")
        words.setText(
            self.tr(
                "A download can be paused, goes on after a restart, and counts only when every"
                " file's hash is right."
            )
        )
        self.find_button = button(self.tr("Find a model"), kind="primary")
        self.empty.inside.addWidget(title)
        self.empty.inside.addWidget(words)
        self.empty.inside.addSpacing(Space.S)
        self.empty.inside.addLayout(row(self.find_button, None))
        for part in (self.problem, self.note, self.where, self.cards, self.empty):
            self.column.addWidget(part)
        self.column.addStretch(1)
        self.find_button.clicked.connect(self.find_pressed)
        self.problem.pressed.connect(self.problem.hide)
        self._downloads.changed.connect(self.refresh)
        self._downloads.failed.connect(self.show_problem)
        self._library.changed.connect(self._show_place)
        self.refresh()
        self._show_place()

    @Slot()
    def refresh(self) -> None:
        views = self._downloads.views
        put(self.note, self._downloads.problem)
        self.cards.show_keys([view.id for view in views])
        self.empty.setVisible(not views)

    @Slot(object)
    def show_problem(self, problem: Problem) -> None:
        self.problem.show_problem(problem, "close", self.tr("Close"))

    @Slot()
    def _show_place(self) -> None:
        shelf = self._library.shelf
        words = ""
        if shelf.download_to is not None:
            free = size(shelf.free) if shelf.free is not None else self.tr("an unknown amount")
            words = self.tr("New ones go to {0}, {1} free").format(shelf.download_to, free)
        put(self.where, words)

    def _view(self, identity: str) -> DownloadView | None:
        return next((view for view in self._downloads.views if view.id == identity), None)

    def _make(self, identity: str) -> DownloadCard:
        view = self._view(identity)
        if view is None:
            raise KeyError(identity)
        card = DownloadCard(self._theme, self._downloads, view)
        card.use_pressed.connect(self.use_pressed)
        return card

    def _refresh(self, card: DownloadCard, identity: str) -> None:
        view = self._view(identity)
        if view is not None and (view != card.view or not card.title.text()):
            card.show_view(view)
