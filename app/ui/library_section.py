"""On this computer: the model in use, the folders and what is in them, and what was deleted.

It knows how the shelf looks and where a press goes. It refuses to touch a disk itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import Signal, Slot
from PySide6.QtGui import QDragEnterEvent, QDragLeaveEvent, QDropEvent
from PySide6.QtWidgets import QFileDialog, QVBoxLayout, QWidget

from app.backend.library.folders import Kind
from app.backend.library.scan import FolderView, LocalModel, Presence
from app.backend.library.trash import Deleted
from app.backend.transfer.queue import Problem
from app.models.copying import target_of
from app.models.engine_model import EngineModel
from app.models.lifecycle import Lifecycle
from app.models.model_states import Scanning
from app.models.model_store import ModelStore
from app.ui.copy_card import CopyCard
from app.ui.in_use_card import InUseCard
from app.ui.library_card import CardState, LibraryCard
from app.ui.model_parts import (
    CardFrame,
    CardList,
    ProblemCard,
    Section,
    button,
    headed,
    put,
    restyle,
    row,
    text_label,
)
from app.ui.model_words import KIND_WORDS, join, plural, size
from app.ui.theme import Space, Theme


class FolderBlock(QWidget):
    """One folder of the library: where it is, whether it is there, and its models."""

    removed = Signal(object)  # its path

    def __init__(self, section: LibrarySection, path: Path) -> None:
        super().__init__()
        self._section = section
        self.view: FolderView | None = None
        self.head = text_label("figures")
        self.facts = text_label("small")
        self.note = text_label("warn")
        self.remove = button(self.tr("Take off the list"), kind="link")
        self.remove.setToolTip(self.tr("Nothing on the disk changes"))
        self.remove.setAccessibleName(self.tr("Take {0} off the list").format(path))
        self.remove.clicked.connect(lambda: self.removed.emit(path))
        self.cards: CardList[Path, LibraryCard] = CardList(section.make_card, section.refresh_card)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(Space.XS)
        words = QVBoxLayout()
        words.setSpacing(0)
        words.addWidget(self.head)
        words.addWidget(self.facts)
        top = row(self.remove)
        top.insertLayout(0, words, 1)
        layout.addLayout(top)
        layout.addWidget(self.note)
        layout.addWidget(self.cards)

    def show_folder(self, view: FolderView, used: int, is_default: bool) -> None:
        self.view = view
        put(self.head, str(view.folder.path))
        here = view.presence is Presence.PRESENT
        count = plural(len(view.models), "model", "models") if here else ""
        room = size(used) if view.models else ""
        put(self.facts, join(KIND_WORDS[view.folder.kind], count, room))
        absent = view.presence is Presence.ABSENT
        put(self.note, self.tr("Absent. {0}").format(view.reason) if absent else view.reason)
        self.remove.setVisible(not is_default)
        self.cards.show_keys([model.path for model in view.models])


class LibrarySection(Section):
    use_pressed = Signal(object)  # a folder's path
    find_pressed = Signal()

    def __init__(self, theme: Theme, store: ModelStore, engine: EngineModel) -> None:
        super().__init__("")
        self.setAccessibleName(self.tr("Models on this computer"))
        self._theme, self._store, self._engine = theme, store, engine
        self._models: dict[Path, LocalModel] = {}
        self.in_use = InUseCard(engine)
        self.copy_card = CopyCard(theme, store.copying)
        self.problem = ProblemCard(theme)
        self.undo: CardList[str, CardFrame] = CardList(self._make_undo, self._refresh_undo)
        self.folders: CardList[Path, FolderBlock] = CardList(self._make_block, self._refresh_block)
        self.column.addWidget(self.in_use)
        self.column.addWidget(self.problem)
        self.column.addWidget(self.copy_card)
        self.column.addWidget(self.undo)
        self.column.addWidget(self._make_summary())
        self.column.addWidget(self.folders)
        self.column.addWidget(self._make_empty())
        self.column.addStretch(1)
        self.setAcceptDrops(True)
        self._connect()
        self.refresh()

    def _make_summary(self) -> CardFrame:
        self.summary = CardFrame(self.tr("Folders"))
        self.total = text_label("strong")
        self.target = text_label("small")
        self.note = text_label("warn")
        self.hint = text_label("small")
        self.hint.setText(
            self.tr("Folders can also be dropped here. They are read where they are, not copied.")
        )
        self.add = button(self.tr("Add folder…"), self.tr("Add a folder with models"))
        self.relocate = button(
            self.tr("Change…"), self.tr("Change where downloads go"), kind="link"
        )
        self.again = button(self.tr("Look again"), self.tr("Look at the folders again"), "quiet")
        self.summary.inside.addLayout(headed(self.total, self.again, self.add))
        self.summary.inside.addLayout(headed(self.target, self.relocate))
        self.summary.inside.addWidget(self.note)
        self.summary.inside.addWidget(self.hint)
        return self.summary

    def _make_empty(self) -> CardFrame:
        self.empty = CardFrame(self.tr("No models"))
        title = text_label("strong")
        title.setText(self.tr("No model is on this computer yet"))
        words = text_label("muted")
        words.setText(
            self.tr(
                "The demo model ships inside Unblur. Others are downloaded, or opened from a folder"
                " that holds config.json, tokenizer.json and safetensors files. A folder is checked"
                " before use; no code in it is run."
            )
        )
        self.find_button = button(self.tr("Find a model"), kind="primary")
        self.find_button.clicked.connect(self.find_pressed)
        self.empty.inside.addWidget(title)
        self.empty.inside.addWidget(words)
        self.empty.inside.addSpacing(Space.S)
        self.empty.inside.addLayout(row(self.find_button, None))
        return self.empty

    def _connect(self) -> None:
        library = self._store.library
        library.changed.connect(self.refresh)
        library.check_changed.connect(self._refresh_one)
        library.failed.connect(self.show_problem)
        self._engine.state_changed.connect(self._refresh_cards)
        self._store.copying.changed.connect(self._refresh_cards)
        self.problem.pressed.connect(self.problem.hide)
        self.add.clicked.connect(self._add)
        self.relocate.clicked.connect(self._move)
        self.again.clicked.connect(library.refresh)

    @Slot()
    def refresh(self) -> None:
        library = self._store.library
        shelf = library.shelf
        self._models = {model.path: model for model in shelf.view.models}
        looking = library.state is not Scanning.SHOWN
        count = len(self._models)
        words = join(plural(count, "model", "models"), size(shelf.total) if count else "")
        known = shelf.download_to is not None
        put(self.total, words if known else self.tr("Looking at the folders…"))
        self.again.setEnabled(not looking)
        for made in (self.add, self.relocate):
            made.setEnabled(known)
        if shelf.download_to is not None:
            free = size(shelf.free) if shelf.free is not None else self.tr("an unknown amount")
            put(
                self.target,
                self.tr("Downloads go to {0}, {1} free").format(shelf.download_to, free),
            )
        put(self.note, shelf.problem)
        self.undo.show_keys([entry.id for entry in shelf.deleted])
        views = [v for v in shelf.view.folders if v.models or not self._is_plain_default(v)]
        self.folders.show_keys([view.folder.path for view in views])
        nothing = known and not count and all(v.presence is Presence.PRESENT for v in views)
        self.empty.setVisible(nothing)

    def _is_plain_default(self, view: FolderView) -> bool:
        """The folder for downloads, with nothing to say but what stands above already."""
        is_target = view.folder.path == self._store.library.shelf.download_to
        return is_target and view.presence is Presence.PRESENT and not view.reason

    @Slot(object)
    def show_problem(self, problem: Problem) -> None:
        label = self.tr("Open its page") if problem.link else self.tr("Close")
        self.problem.show_problem(problem, "page" if problem.link else "close", label)
        self.ensureWidgetVisible(self.problem)

    def card_of(self, path: Path) -> LibraryCard | None:
        for block in self.folders.cards.values():
            if path in block.cards.cards:
                return block.cards.cards[path]
        return None

    # cards, made and refreshed by their key

    def make_card(self, path: Path) -> LibraryCard:
        card = LibraryCard(self._theme, self._models[path])
        library = self._store.library
        card.use_pressed.connect(lambda model: self.use_pressed.emit(model.path))
        card.delete_pressed.connect(library.delete)
        card.check_pressed.connect(library.check)
        card.stop_pressed.connect(lambda model: library.stop_check(model.path))
        card.repair_pressed.connect(lambda model: library.repair(model.path))
        card.copy_pressed.connect(self._ask_copy)
        return card

    def refresh_card(self, card: LibraryCard, path: Path) -> None:
        model = self._models.get(path)
        if model is None:
            return
        library = self._store.library
        same = library.shelf.view.doubles.get(model.repo_id, ())
        busy = self._store.copying.busy
        state = CardState(
            in_use=self._is_in_use(path),
            others=tuple(other for other in same if other.path != path),
            copy_reason=self.tr("Another copy is being made.") if busy else "",
        )
        card.show_model(model, state, library.check_of(path))

    def _is_in_use(self, path: Path) -> bool:
        idle = (Lifecycle.NO_MODEL, Lifecycle.FAILED)
        return self._engine.path == str(path) and self._engine.state not in idle

    def _make_block(self, path: Path) -> FolderBlock:
        block = FolderBlock(self, path)
        block.removed.connect(self._store.library.remove_folder)
        return block

    def _refresh_block(self, block: FolderBlock, path: Path) -> None:
        shelf = self._store.library.shelf
        view = next((v for v in shelf.view.folders if v.folder.path == path), None)
        if view is not None:
            used = (shelf.used or {}).get(path, 0)
            only = view.folder.kind is Kind.MODELS and path == shelf.download_to
            block.show_folder(view, used, only)

    def _deleted(self, identity: str) -> Deleted | None:
        entries = self._store.library.shelf.deleted
        return next((entry for entry in entries if entry.id == identity), None)

    def _make_undo(self, identity: str) -> CardFrame:
        entry = self._deleted(identity)
        name = entry.name if entry is not None else ""
        card = CardFrame(self.tr("Deleted: {0}").format(name))
        words = text_label()
        words.setText(
            self.tr("Deleted {0} ({1}). It is gone for good when Unblur is closed.").format(
                name, size(entry.size if entry is not None else 0)
            )
        )
        undo = button(self.tr("Undo"), self.tr("Bring {0} back").format(name))
        undo.clicked.connect(partial(self._undo, identity))
        card.inside.addLayout(headed(words, undo))
        return card

    def _refresh_undo(self, card: CardFrame, identity: str) -> None:
        """What was deleted does not change."""

    def _undo(self, identity: str) -> None:
        entry = self._deleted(identity)
        if entry is not None:
            self._store.library.undo(entry)

    @Slot(object)
    def _refresh_one(self, path: Path) -> None:
        card = self.card_of(path)
        if card is not None:
            self.refresh_card(card, path)

    @Slot()
    def _refresh_cards(self) -> None:
        for path in self._models:
            self._refresh_one(path)

    @Slot(object)
    def _ask_copy(self, model: LocalModel) -> None:
        folder = self._store.library.shelf.download_to
        if folder is not None:
            self.copy_card.ask(model, target_of(model, folder))
            self.ensureWidgetVisible(self.copy_card)

    # folders, chosen or dropped

    @Slot()
    def _add(self) -> None:
        folder = QFileDialog.getExistingDirectory(self, self.tr("Add a folder with models"))
        if folder:
            self._store.library.add_folder(Path(folder))

    @Slot()
    def _move(self) -> None:
        start = self._store.library.shelf.download_to
        folder = QFileDialog.getExistingDirectory(
            self, self.tr("Choose where downloads go"), str(start or "")
        )
        if folder:
            self._store.library.choose_download_folder(Path(folder))

    def dragEnterEvent(self, arg__1: QDragEnterEvent) -> None:
        if _dropped(arg__1):
            restyle(self.summary, "card", "drop")
            arg__1.acceptProposedAction()

    def dragLeaveEvent(self, arg__1: QDragLeaveEvent) -> None:
        restyle(self.summary, "card", "true")

    def dropEvent(self, arg__1: QDropEvent) -> None:
        restyle(self.summary, "card", "true")
        for path in _dropped(arg__1):
            self._store.library.add_folder(path)
        arg__1.acceptProposedAction()


def _dropped(event: QDropEvent) -> list[Path]:
    """What is dragged from a file manager. Whether each is a folder, its reader will say."""
    urls = event.mimeData().urls()
    return [Path(url.toLocalFile()) for url in urls if url.isLocalFile()]
