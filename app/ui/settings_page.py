"""The settings that exist: how the window looks and moves, and how long an answer may be.

It knows `Settings` and where files are kept. It refuses to know how a theme or an engine applies a
choice.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QLabel,
    QRadioButton,
    QScrollArea,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.backend.files import AppFolders
from app.backend.settings import LEAST_TOKENS, MOST_TOKENS, SettingsStore
from app.models.server import ServerModel
from app.ui.controls import CheckBox
from app.ui.server_card import ServerCard
from app.ui.theme import Shape, Space, Theme


class SettingsPage(QScrollArea):
    changed = Signal()

    def __init__(
        self,
        theme: Theme,
        store: SettingsStore,
        folders: AppFolders,
        server: ServerModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._store = store
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        page, column = centred_page()
        self.setWidget(page)
        column.addWidget(page_title(self.tr("Settings")))
        self._add_look(column)
        self._add_answers(column)
        self.server_card = ServerCard(theme, store, server, self)
        self.server_card.changed.connect(self.changed)
        column.addWidget(self.server_card)
        self._add_files(column, folders)
        column.addStretch(1)

    def _add_look(self, column: QVBoxLayout) -> None:
        box = card(column, self.tr("Appearance"))
        row = QHBoxLayout()
        row.setSpacing(Space.L)
        self._group = QButtonGroup(self)
        self.appearance: dict[str, QRadioButton] = {}
        for key, name in (
            ("system", self.tr("Like the system")),
            ("light", self.tr("Light")),
            ("dark", self.tr("Dark")),
        ):
            button = QRadioButton(name)
            button.setAccessibleName(self.tr("Appearance: {0}").format(name))
            button.setChecked(self._store.current.appearance == key)
            button.toggled.connect(lambda on, k=key: on and self._change(appearance=k))
            self._group.addButton(button)
            self.appearance[key] = button
            row.addWidget(button)
        row.addStretch(1)
        box.addLayout(row)
        self.motion = CheckBox(
            self._theme, self.tr("Reduce motion: tokens change at once, without a fade")
        )
        self.motion.setAccessibleName(self.tr("Reduce motion"))
        self.motion.setChecked(self._store.current.reduce_motion)
        self.motion.toggled.connect(lambda on: self._change(reduce_motion=on))
        box.addWidget(self.motion)

    def _add_answers(self, column: QVBoxLayout) -> None:
        box = card(column, self.tr("Answers"))
        row = QHBoxLayout()
        row.setSpacing(Space.M)
        self.tokens = QSpinBox()
        self.tokens.setRange(LEAST_TOKENS, MOST_TOKENS)
        self.tokens.setSingleStep(32)
        self.tokens.setSuffix(self.tr(" tokens"))
        self.tokens.setValue(self._store.current.answer_tokens)
        self.tokens.setAccessibleName(self.tr("Longest answer, in tokens"))
        self.tokens.setMinimumWidth(140)
        self.tokens.lineEdit().setTextMargins(Space.S, 0, Space.S, 0)
        self.tokens.valueChanged.connect(lambda value: self._change(answer_tokens=value))
        label = QLabel(self.tr("&Longest answer"))
        label.setBuddy(self.tokens)
        row.addWidget(label)
        row.addWidget(self.tokens)
        row.addStretch(1)
        box.addLayout(row)
        box.addWidget(note(self.tr("An answer that reaches this length stops there and says so.")))

    def _add_files(self, column: QVBoxLayout, folders: AppFolders) -> None:
        box = card(column, self.tr("Files"))
        for name, path in (
            (self.tr("Conversations"), folders.conversations),
            (self.tr("Settings"), folders.settings_file),
            (self.tr("Logs"), folders.logs),
        ):
            row = QHBoxLayout()
            row.setSpacing(Space.M)
            label = QLabel(name)
            label.setMinimumWidth(110)
            place = QLabel(str(path))
            place.setProperty("tone", "figures")
            place.setWordWrap(True)
            place.setTextFormat(Qt.TextFormat.PlainText)
            place.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            row.addWidget(label)
            row.addWidget(place, 1)
            box.addLayout(row)

    @Slot()
    def _change(self, **values: object) -> None:
        self._store.change(**values)
        self.changed.emit()


def centred_page() -> tuple[QWidget, QVBoxLayout]:
    """A page whose one column is centred and at most as wide as an answer."""
    page = QWidget()
    page.setObjectName("column")
    inner = QWidget(page)
    inner.setMaximumWidth(Shape.COLUMN)
    across = QHBoxLayout(page)
    across.setContentsMargins(Space.XL, Space.XL, Space.XL, Space.XL)
    across.addStretch(1)
    across.addWidget(inner, 100)
    across.addStretch(1)
    column = QVBoxLayout(inner)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(Space.L)
    return page, column


def page_title(text: str) -> QLabel:
    title = QLabel(text)
    title.setProperty("tone", "heading")
    return title


def card(column: QVBoxLayout, title: str) -> QVBoxLayout:
    """A card with a heading, added to `column`; the layout for its content."""
    frame = QFrame()
    frame.setProperty("card", "true")
    inside = QVBoxLayout(frame)
    inside.setContentsMargins(Space.L, Space.M, Space.L, Space.M)
    inside.setSpacing(Space.S)
    heading = QLabel(title)
    heading.setProperty("tone", "strong")
    inside.addWidget(heading)
    column.addWidget(frame)
    return inside


def note(text: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("tone", "small")
    label.setWordWrap(True)
    return label
