"""The list of conversations and the button for a new one.

It knows titles and which one is shown. It refuses to know messages.
"""

from __future__ import annotations

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QPersistentModelIndex,
    QSize,
    Qt,
    Slot,
)
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QFrame, QLabel, QListView, QPushButton, QVBoxLayout, QWidget

from app.models.chat import ChatModel
from app.ui.icons import icon
from app.ui.theme import Space, Theme
from app.ui.tips import as_typed

WIDTH = 224


class ConversationListModel(QAbstractListModel):
    """Rows are `ChatModel.conversations`, newest first."""

    def __init__(self, chat: ChatModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._chat = chat
        chat.conversations_changed.connect(self.refresh)

    def rowCount(self, parent: QModelIndex | QPersistentModelIndex = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        return 0 if parent.isValid() else len(self._chat.conversations)

    def data(
        self, index: QModelIndex | QPersistentModelIndex, role: int = Qt.ItemDataRole.DisplayRole
    ) -> object:
        if not index.isValid():
            return None
        conversation = self._chat.conversations[index.row()]
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return conversation.title
        if role == Qt.ItemDataRole.ToolTipRole:
            return as_typed(conversation.title)
        if role == Qt.ItemDataRole.UserRole:
            return conversation.id
        return None

    @Slot()
    def refresh(self) -> None:
        self.beginResetModel()
        self.endResetModel()


class ConversationSidebar(QFrame):
    def __init__(self, theme: Theme, chat: ChatModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("sidebar")
        self.setFixedWidth(WIDTH)
        self._theme = theme
        self._chat = chat
        self.new_button = QPushButton(self.tr("New chat"), self)
        self.new_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.new_button.setAccessibleName(self.tr("New chat"))
        self.new_button.setToolTip(self.tr("Start a new chat (Ctrl+N)"))
        self.new_button.setIconSize(QSize(16, 16))
        shortcut = QShortcut(QKeySequence.StandardKey.New, self)
        shortcut.activated.connect(chat.new_chat)
        self.new_button.clicked.connect(chat.new_chat)
        self.list = QListView(self)
        self.list.setFrameShape(QFrame.Shape.NoFrame)
        self.list.setAccessibleName(self.tr("Conversations"))
        self.list.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.setUniformItemSizes(True)
        self._model = ConversationListModel(chat, self)
        self.list.setModel(self._model)
        self.list.clicked.connect(self._open)
        self.list.activated.connect(self._open)
        self._none = QLabel(self.tr("Your conversations appear here."), self)
        self._none.setProperty("tone", "small")
        self._none.setWordWrap(True)
        self._none.setAlignment(Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.M, Space.M, Space.M)
        layout.setSpacing(Space.M)
        layout.addWidget(self.new_button)
        layout.addWidget(self._none)
        layout.addWidget(self.list, 1)
        chat.current_changed.connect(self.refresh)
        chat.conversations_changed.connect(self.refresh)
        theme.changed.connect(self._tint)
        self._tint()
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        """Marks the conversation that is shown."""
        rows = [c.id for c in self._chat.conversations]
        self._none.setVisible(not rows)
        self.list.setVisible(bool(rows))
        if self._chat.current.id in rows:
            self.list.setCurrentIndex(self._model.index(rows.index(self._chat.current.id)))
        else:
            self.list.clearSelection()
            self.list.setCurrentIndex(QModelIndex())

    @Slot(QModelIndex)
    def _open(self, index: QModelIndex) -> None:
        self._chat.select(index.data(Qt.ItemDataRole.UserRole))

    @Slot()
    def _tint(self) -> None:
        self.new_button.setIcon(icon("plus", self._theme.colors.text, 16))
