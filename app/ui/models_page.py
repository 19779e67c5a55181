"""The Models page: what is on this computer, what could be, and what is on its way.

It knows its three sections and which is shown. It refuses to know what is in them.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QHBoxLayout,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.models.engine_model import EngineModel
from app.models.model_states import Opening
from app.models.model_store import ModelStore
from app.ui.downloads_section import DownloadsSection
from app.ui.find_section import FindSection
from app.ui.library_section import LibrarySection
from app.ui.model_parts import ProblemCard, button, row
from app.ui.settings_page import page_title
from app.ui.theme import Shape, Space, Theme

LIBRARY, FIND, DOWNLOADS = "library", "find", "downloads"


class ModelsPage(QWidget):
    open_pressed = Signal()
    demo_pressed = Signal()
    use_pressed = Signal(str)  # a model's folder

    def __init__(
        self, theme: Theme, store: ModelStore, engine: EngineModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._store = store
        self.library_section = LibrarySection(theme, store, engine)
        self.find_section = FindSection(theme, store)
        self.downloads_section = DownloadsSection(theme, store)
        self.in_use = self.library_section.in_use
        self.problem = ProblemCard(theme)
        self._sections: dict[str, QWidget] = {
            LIBRARY: self.library_section,
            FIND: self.find_section,
            DOWNLOADS: self.downloads_section,
        }
        self._stack = QStackedWidget()
        for section in self._sections.values():
            self._stack.addWidget(section)
        self.tabs: dict[str, QPushButton] = {}
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(self._make_head())
        layout.addWidget(self._stack, 1)
        self._connect()
        self.choose(LIBRARY)
        self._name_tabs()

    def _make_head(self) -> QHBoxLayout:
        """Title and tabs, over the same column as the sections."""
        inner = QWidget()
        inner.setMaximumWidth(Shape.COLUMN)
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(Space.M)
        group = QButtonGroup(self)
        group.setExclusive(True)
        for key in self._sections:
            tab = button("", kind="tab")
            tab.setCheckable(True)
            tab.clicked.connect(lambda _=False, chosen=key: self.choose(chosen))
            group.addButton(tab)
            self.tabs[key] = tab
        column.addLayout(row(page_title(self.tr("Models")), None, *self.tabs.values()))
        column.addWidget(self.problem)
        head = QHBoxLayout()
        head.setContentsMargins(Space.XL, Space.XL, Space.XL + Shape.SCROLL_BAR, Space.S)
        head.addStretch(1)
        head.addWidget(inner, 100)
        head.addStretch(1)
        return head

    def _connect(self) -> None:
        self.in_use.open_pressed.connect(self.open_pressed)
        self.in_use.demo_pressed.connect(self.demo_pressed)
        for section in (self.library_section, self.find_section, self.downloads_section):
            section.use_pressed.connect(self._use)
        self.library_section.find_pressed.connect(self.search)
        self.downloads_section.find_pressed.connect(self.search)
        self.find_section.downloads_pressed.connect(lambda: self.choose(DOWNLOADS))
        self._store.downloads.changed.connect(self._name_tabs)
        self._store.downloads.failed.connect(lambda _problem: self.choose(DOWNLOADS))
        self._store.library.repair_wanted.connect(lambda *_: self.choose(DOWNLOADS))
        self._store.changed.connect(self._show_state)
        self.problem.pressed.connect(self._store.open)
        find = QShortcut(QKeySequence.StandardKey.Find, self)
        find.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        find.activated.connect(self.search)

    @Slot(str)
    def choose(self, key: str) -> None:
        """Shows one of the sections."""
        self.tabs[key].setChecked(True)
        self._stack.setCurrentWidget(self._sections[key])

    @Slot()
    def search(self) -> None:
        """Shows Find, ready to be typed into."""
        self.choose(FIND)
        self.find_section.focus_search()

    @Slot()
    def _name_tabs(self) -> None:
        active = self._store.downloads.active
        downloads = self.tr("&Downloads ({0})").format(active) if active else self.tr("&Downloads")
        names = {
            LIBRARY: self.tr("On this com&puter"),
            FIND: self.tr("&Find"),
            DOWNLOADS: downloads,
        }
        for key, name in names.items():
            self.tabs[key].setText(name)
            self.tabs[key].setAccessibleName(name.replace("&", ""))

    @Slot()
    def _show_state(self) -> None:
        problem = self._store.problem
        if self._store.state is Opening.FAILED and problem is not None:
            self.problem.show_problem(problem, "open", self.tr("Try again"))
        else:
            self.problem.hide()

    @Slot(object)
    def _use(self, path: object) -> None:
        self.use_pressed.emit(str(path))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._store.open()

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)
