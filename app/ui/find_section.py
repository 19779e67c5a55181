"""Find: a search field, the machine models are judged for, and cards that say whether they fit.

It knows which cards are in sight, since only those are looked at by themselves. It refuses to ask
the hub itself.
"""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QPoint, QRect, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QMenu

from app.backend.judge import CONTEXTS
from app.backend.library.scan import LocalModel
from app.backend.transfer.queue import DownloadView, State
from app.models.find import OFFLINE, FindCard
from app.models.model_states import Finding, Looking, Opening
from app.models.model_store import ModelStore
from app.ui.find_card import FindCardView
from app.ui.model_parts import (
    CardFrame,
    CardList,
    ProblemCard,
    Section,
    button,
    headed,
    put,
    text_label,
)
from app.ui.model_words import size
from app.ui.theme import Theme
from app.ui.token_card import TokenCard

SIGHT_MS = 150  # after the last scroll, before cards in sight are looked at


class FindSection(Section):
    use_pressed = Signal(object)  # a folder's path
    downloads_pressed = Signal()

    def __init__(self, theme: Theme, store: ModelStore) -> None:
        super().__init__("")
        self.setAccessibleName(self.tr("Find models"))
        self._theme, self._store = theme, store
        self._was_shown = False  # cards are made when they are first wanted, not at the start
        self._by_key: dict[str, FindCard] = {}
        self._here: dict[str, list[LocalModel]] = {}
        self._states: tuple[tuple[str, State], ...] = ()
        self._sight = QTimer(self)
        self._sight.setSingleShot(True)
        self._sight.setInterval(SIGHT_MS)
        self._sight.timeout.connect(self.look_at_what_is_seen)
        self.cards: CardList[str, FindCardView] = CardList(self._make, self._refresh)
        self.token_card = TokenCard(theme, store.token)
        self.token_card.hide()
        self.problem = ProblemCard(theme)
        self.offline = self._make_offline()
        self.note = text_label("muted")
        self.column.addLayout(self._make_search())
        self.column.addLayout(self._make_machine())
        for part in (self.token_card, self.offline, self.problem, self.note, self.cards):
            self.column.addWidget(part)
        self.column.addStretch(1)
        self._connect()
        self.refresh()

    def _make_search(self) -> QHBoxLayout:
        self.edit = QLineEdit()
        self.edit.setClearButtonEnabled(False)
        self.edit.setPlaceholderText(self.tr("Search by name, or paste owner/name or a link"))
        self.edit.setAccessibleName(self.tr("Search for models, or paste a name or a link"))
        self.go = button(self.tr("Search"))
        self.clear = button(self.tr("Back to the list"), kind="quiet")
        self.token = button(self.tr("Access token…"), kind="quiet")
        return headed(self.edit, self.go, self.clear, self.token)

    def _make_machine(self) -> QHBoxLayout:
        self.machine = text_label("small")
        self.measure = button(self.tr("Measure"), self.tr("Measure the memory's speed"), "quiet")
        self.again = button(self.tr("Look again"), self.tr("Judge the models anew"), kind="quiet")
        self.again.setToolTip(
            self.tr("Free memory is another one once a model was loaded or unloaded")
        )
        self.context = button("", kind="quiet")
        menu = QMenu(self.context)
        for context in CONTEXTS:
            action = menu.addAction(self.tr("{0} tokens").format(f"{context:,}"))
            action.triggered.connect(partial(self._store.find.choose_context, context))
        self.context.setMenu(menu)
        self.context.setToolTip(
            self.tr("Prompt and answer together: how long they may be decides about memory")
        )
        return headed(self.machine, self.measure, self.again, self.context)

    def _make_offline(self) -> CardFrame:
        card = CardFrame(self.tr("No network"))
        words = text_label()
        words.setText(
            self.tr("The hub cannot be reached. Models that are on this computer work without it.")
        )
        self.retry = button(self.tr("Retry"), self.tr("Try to reach the hub again"), "primary")
        card.inside.addLayout(headed(words, self.retry))
        self.offline_reason = text_label("small")
        card.inside.addWidget(self.offline_reason)
        return card

    def _connect(self) -> None:
        find = self._store.find
        find.changed.connect(self.refresh)
        find.look_changed.connect(self._refresh_one)
        find.machine_changed.connect(self._show_machine)
        find.machine_changed.connect(self._sight.start)
        find.context_changed.connect(self._refresh_all)
        self._store.changed.connect(self.refresh)
        self._store.library.changed.connect(self._refresh_all)
        self._store.downloads.changed.connect(self._note_downloads)
        self._store.downloads.failed.connect(self._refresh_all)
        self.scrolled.connect(self._sight.start)
        self.cards.filled.connect(self._sight.start)
        self.edit.returnPressed.connect(self._search)
        self.go.clicked.connect(self._search)
        self.clear.clicked.connect(self._clear)
        self.token.clicked.connect(self.show_token)
        self.measure.clicked.connect(find.measure)
        self.again.clicked.connect(find.look_again)
        self.retry.clicked.connect(self._retry)
        self.problem.pressed.connect(self._on_problem)

    @Slot()
    def refresh(self) -> None:
        find = self._store.find
        self._by_key = {card.key: card for card in find.cards}
        self.token_card.endpoint = find.endpoint
        self.clear.setVisible(find.state is not Finding.CURATED)
        for made in (self.go, self.edit):
            made.setEnabled(self._store.state is Opening.OPEN)
        reason = find.offline.message if find.offline is not None else ""
        self.offline.setVisible(find.offline is not None)
        put(self.offline_reason, reason)
        self.offline.setAccessibleDescription(reason)
        self._show_state()
        self._show_machine()
        self._index_library()
        if self._was_shown and self._store.state is Opening.OPEN:
            self.cards.show_keys([card.key for card in find.cards])
            self._sight.start()

    def _show_state(self) -> None:
        find = self._store.find
        problem = find.problem
        if problem is not None and problem.code not in OFFLINE:
            again = self.tr("Try again") if not problem.link else self.tr("Open the page")
            self.problem.show_problem(problem, "page" if problem.link else "again", again)
        else:
            self.problem.hide()
        words = ""
        if self._store.state is Opening.OPENING:
            words = self.tr("Opening…")
        elif find.state is Finding.SEARCHING:
            words = self.tr("Searching for {0}…").format(find.words)
        elif find.state is Finding.FOUND and not find.cards:
            words = self.tr("The hub has no safetensors model whose name has {0}.").format(
                find.words
            )
        elif find.state is Finding.FAILED and find.offline is not None:
            words = self.tr("Meanwhile, the list that ships with Unblur:")
        put(self.note, words)

    @Slot()
    def _show_machine(self) -> None:
        find = self._store.find
        known = find.machine.machine if find.machine is not None else None
        words = ""
        if find.measuring:
            words = self.tr("Looking at this machine…")
        elif find.machine_problem is not None:
            words = f"{find.machine_problem.message} {find.machine_problem.action}"
        elif known is not None:
            memory = (
                size(known.memory) if known.memory is not None else self.tr("an unknown amount")
            )
            words = self.tr("Judged for {0}: {1} of memory free").format(known.device_name, memory)
            speed = known.bandwidth.bytes_per_second
            if speed is not None:
                words += self.tr(", read at {0} GB/s as measured.").format(f"{speed / 1e9:,.0f}")
            else:
                words += self.tr(". How fast it is read has not been measured.")
        put(self.machine, words)
        self.machine.setVisible(True)  # keeps its place
        unmeasured = known is not None and known.bandwidth.bytes_per_second is None
        self.measure.setVisible(unmeasured and not find.measuring)
        self.again.setEnabled(not find.measuring)
        self.measure.setToolTip(
            self.tr("Copies a gigabyte in memory, about a second: then a step's time can be told")
        )
        text = self.tr("For {0} tokens").format(f"{find.context:,}")
        self.context.setText(text)
        self.context.setAccessibleName(
            self.tr("Memory is reckoned for {0} tokens").format(find.context)
        )

    def _index_library(self) -> None:
        self._here = {}
        for model in self._store.library.shelf.view.models:
            if model.repo_id:
                self._here.setdefault(model.repo_id, []).append(model)

    # cards

    def _make(self, key: str) -> FindCardView:
        view = FindCardView(self._theme, self._by_key[key], self._store.find.endpoint)
        view.acted.connect(self._act)
        view.opened.connect(self._read)
        return view

    def _refresh(self, view: FindCardView, key: str) -> None:
        card = self._by_key.get(key)
        if card is None:
            return
        find = self._store.find
        look = find.look_of(key)
        here, download = self._found(card, key)
        view.show_card(card, look, here, download, find.context)

    def _found(self, card: FindCard, key: str) -> tuple[LocalModel | None, DownloadView | None]:
        """The model on this computer, and its download: of this version once it is known."""
        if card.ref is None:
            return None, None
        judged = self._store.find.look_of(key).judged
        copies = self._here.get(card.ref.repo_id, [])
        if judged is None:
            return (copies[0] if copies else None), None
        commit = judged.model.commit
        here = next((model for model in copies if model.commit == commit), None)
        return here, self._store.downloads.find(judged.plan.repo_id, commit)

    @Slot(str)
    def _refresh_one(self, key: str) -> None:
        view = self.cards.cards.get(key)
        if view is not None:
            self._refresh(view, key)
            if view.more.isChecked():
                self._store.find.read_card(key)

    @Slot()
    def _refresh_all(self) -> None:
        self._index_library()
        for key, view in self.cards.cards.items():
            self._refresh(view, key)
        self._show_machine()

    @Slot()
    def _note_downloads(self) -> None:
        """Figures change ten times a second; a card only says whether there is a download."""
        views = self._store.downloads.views
        states = tuple((view.id, view.state) for view in views)
        if states != self._states:
            self._states = states
            self._refresh_all()

    @Slot()
    def look_at_what_is_seen(self) -> None:
        """Asks for a look at every card in sight, and calls off those that left it."""
        find = self._store.find
        if not self.isVisible() or not self.cards.complete or not self.cards.cards:
            return
        if find.machine is None and find.machine_problem is None:
            if not find.measuring:
                find.look_at_machine()  # imports torch: the looks, which need it, wait
            return
        sight = self.viewport().rect()
        gone: set[str] = set()
        for key, view in self.cards.cards.items():
            corner = view.mapTo(self.viewport(), QPoint(0, 0))
            if not sight.intersects(QRect(corner, view.size())):
                gone.add(key)
            elif find.look_of(key).state is Looking.UNSEEN:
                find.look(self._by_key[key])
        find.call_off(gone)

    @Slot(object, str)
    def _act(self, card: FindCard, action: str) -> None:
        find = self._store.find
        if action == "search":
            self.edit.setText(card.search)
            find.search(card.search)
        elif action in ("look", "retry"):
            if find.offline is not None:
                find.retry()
            find.look(card)
        elif action == "downloads":
            self.downloads_pressed.emit()
        elif action == "token":
            self.show_token()
        elif action == "use":
            here, _ = self._found(card, card.key)
            if here is not None:
                self.use_pressed.emit(here.path)
        elif action == "get":
            judged = find.look_of(card.key).judged
            if judged is not None:
                self.cards.cards[card.key].main.setEnabled(False)  # until the queue has it
                self._store.downloads.add(judged.plan, judged.root)

    @Slot(object)
    def _read(self, card: FindCard) -> None:
        self._store.find.look(card)
        self._store.find.read_card(card.key)
        self._refresh_one(card.key)

    # the field, the token, the network

    @Slot()
    def show_token(self) -> None:
        self.token_card.show()
        self.ensureWidgetVisible(self.token_card)
        self.token_card.edit.setFocus(Qt.FocusReason.OtherFocusReason)

    @Slot()
    def focus_search(self) -> None:
        self.verticalScrollBar().setValue(0)
        self.edit.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.edit.selectAll()

    @Slot()
    def _search(self) -> None:
        self._store.find.search(self.edit.text())

    @Slot()
    def _clear(self) -> None:
        self.edit.clear()
        self._store.find.search("")

    @Slot()
    def _retry(self) -> None:
        self._store.find.retry()

    @Slot(str)
    def _on_problem(self, action: str) -> None:
        if action == "again":
            self._search()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._was_shown:
            self._was_shown = True
            self.refresh()
        self._sight.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._sight.stop()

    def resizeEvent(self, arg__1: QResizeEvent) -> None:
        super().resizeEvent(arg__1)
        self._sight.start()
