"""The chat page: conversations on the left, one conversation in a centred column, the composer
below.

It knows how `ChatModel` and the latest snapshot are shown, and where the eye should be (it follows
the answer only while the bottom is in sight). It refuses to know the engine.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from app.backend.conversations import ChatMessage, Failure
from app.models.chat import ChatModel
from app.models.inspector import InspectorModel
from app.models.lifecycle import Lifecycle
from app.models.snapshot import Snapshot
from app.ui.composer import Composer
from app.ui.conversation_list import WIDTH as SIDEBAR_WIDTH
from app.ui.conversation_list import ConversationSidebar
from app.ui.empty_state import EmptyState
from app.ui.error_card import ErrorCard
from app.ui.message_views import AnswerView, PromptView
from app.ui.peek import WIDTH as PEEK_WIDTH
from app.ui.peek import Peek
from app.ui.theme import Shape, Space, Theme

WITH_PEEK = SIDEBAR_WIDTH + Shape.COLUMN + 2 * Space.L + PEEK_WIDTH  # px


class ChatPage(QWidget):
    action = Signal(str)  # "demo", "open" or "reload": what a card's button asks of the window
    inspect_pressed = Signal(str)  # message id

    def __init__(
        self,
        theme: Theme,
        chat: ChatModel,
        inspector: InspectorModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self._theme = theme
        self._chat = chat
        self._inspector = inspector
        self._snapshot: Snapshot | None = None
        self._follow = True
        self.views: dict[str, PromptView | AnswerView] = {}
        self.sidebar = ConversationSidebar(theme, chat, self)
        self.composer = Composer(theme, chat.blocked_reason, self)
        self.empty = EmptyState(theme, self)
        self.peek = Peek(theme, InspectorModel(chat.engine, self, always_live=True), self)
        self.load_card = ErrorCard(theme, self)
        self.load_card.hide()
        self._lay_out()
        self.composer.submitted.connect(self.send)
        self.composer.stop_pressed.connect(chat.stop)
        self.empty.chosen.connect(self.send)
        self.load_card.pressed.connect(self.action)
        self.peek.inspect_pressed.connect(self.inspect_pressed)
        inspector.kept_changed.connect(self._refresh_answers)
        chat.current_changed.connect(self._rebuild)
        chat.message_added.connect(self._add)
        chat.message_changed.connect(self._update)
        chat.can_send_changed.connect(self._refresh_composer)
        chat.can_send_changed.connect(self._refresh_answers)
        chat.engine.snapshot_changed.connect(self.show_snapshot)
        chat.engine.state_changed.connect(self._on_state)
        chat.engine.load_failed.connect(self.show_load_failure)
        self._rebuild()

    def _lay_out(self) -> None:
        self.scroll_area = QScrollArea(self)
        self.scroll_area.setFrameShape(QFrame.Shape.NoFrame)
        self.scroll_area.setWidgetResizable(True)
        self.scroll_area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.scroll_area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # always in place, so that the column does not jump when it is first needed
        self.scroll_area.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        holder = QWidget()
        holder.setObjectName("column")
        self._column = QWidget(holder)
        self._column.setMaximumWidth(Shape.COLUMN)
        across = QHBoxLayout(holder)
        across.setContentsMargins(Space.XL, Space.XL, Space.XL, Space.XL)
        across.addStretch(1)
        across.addWidget(self._column, 100)
        across.addStretch(1)
        self._messages = QVBoxLayout(self._column)
        self._messages.setContentsMargins(0, 0, 0, 0)
        self._messages.setSpacing(Space.L)
        self._messages.addStretch(1)
        self._messages.addWidget(self.empty)
        self._messages.addStretch(1)
        self.scroll_area.setWidget(holder)
        self.scroll_area.verticalScrollBar().valueChanged.connect(self._note_place)
        self.scroll_area.verticalScrollBar().rangeChanged.connect(self._keep_place)
        below = QHBoxLayout()
        foot = QWidget(self)
        foot.setMaximumWidth(Shape.COLUMN)
        stack = QVBoxLayout(foot)
        stack.setContentsMargins(0, 0, 0, 0)
        stack.setSpacing(Space.S)
        stack.addWidget(self.load_card)
        stack.addWidget(self.composer)
        below.setContentsMargins(Space.XL, 0, Space.XL + Shape.SCROLL_BAR, Space.L)
        below.addStretch(1)
        below.addWidget(foot, 100)
        below.addStretch(1)
        main = QWidget(self)
        main.setObjectName("chatMain")
        down = QVBoxLayout(main)
        down.setContentsMargins(0, 0, 0, 0)
        down.setSpacing(0)
        down.addWidget(self.scroll_area, 1)
        down.addLayout(below)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.sidebar)
        layout.addWidget(main, 1)
        layout.addWidget(self.peek)

    # what a person does

    @Slot(str)
    def send(self, text: str) -> None:
        """Sends `text`; when it cannot be sent it goes back into the composer."""
        self._follow = True
        if not self._chat.send(text):
            self.composer.put(text)

    @Slot(str, str)
    def _on_answer_action(self, action: str, message_id: str) -> None:
        if action == "inspect":
            self.inspect_pressed.emit(message_id)
            return
        if action in ("edit", "new"):
            prompt = self._chat.prompt_of(message_id)
            if action == "new":
                self._chat.new_chat()
            self.composer.put(prompt)
            return
        if action != "retry":
            self.action.emit(action)  # a load begins, and the answer waits for it
        self._chat.retry(message_id)

    # what the models say

    @Slot()
    def _rebuild(self) -> None:
        for view in self.views.values():
            self._messages.removeWidget(view)
            view.hide()
            view.deleteLater()
        self.views.clear()
        for message in self._chat.current.messages:
            self._append(message)
        self._follow = True
        if self._snapshot is not None:
            self.show_snapshot(self._snapshot)
        self._refresh_empty()
        self._refresh_composer()
        self.composer.edit.setFocus(Qt.FocusReason.OtherFocusReason)

    @Slot(str)
    def _add(self, message_id: str) -> None:
        self._append(self._message(message_id))
        self._refresh_empty()

    def _append(self, message: ChatMessage) -> None:
        if message.role == "user":
            view: PromptView | AnswerView = PromptView(self._theme, message, self._column)
        else:
            view = AnswerView(self._theme, message, len(self.views) <= 1, self._column)
            view.action.connect(self._on_answer_action)
            self._tell_model(view)
        self.views[message.id] = view
        self._messages.insertWidget(self._messages.count() - 1, view)

    @Slot(str)
    def _update(self, message_id: str) -> None:
        view = self.views.get(message_id)
        if isinstance(view, AnswerView):
            view.show_message(self._message(message_id))

    @Slot(object)
    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Paints the latest state of the reply it belongs to, if that is on the page."""
        self._snapshot = snapshot
        view = self.views.get(snapshot.reply_id)
        if isinstance(view, AnswerView):
            view.show_snapshot(snapshot)

    @Slot(object)
    def show_load_failure(self, failure: Failure) -> None:
        is_demo = self._chat.engine.is_demo
        action, label = ("open", self.tr("Open model folder…"))
        if not is_demo:
            action, label = ("demo", self.tr("Load the demo model"))
        self.load_card.show_failure(failure, action, label)
        self.load_card.show()

    @Slot(object)
    def _on_state(self, state: Lifecycle) -> None:
        if state in (Lifecycle.LOADING, Lifecycle.READY):
            self.load_card.hide()
        self._refresh_answers()

    @Slot()
    def _refresh_answers(self) -> None:
        for view in self.views.values():
            if isinstance(view, AnswerView):
                self._tell_model(view)

    def _tell_model(self, view: AnswerView) -> None:
        state = self._chat.engine.state
        usable = state not in (Lifecycle.NO_MODEL, Lifecycle.UNLOADING, Lifecycle.FAILED)
        view.show_model(self._waiting_words(), usable, self._chat.can_retry or not usable)
        view.show_traced(self._inspector.knows(view.message.id))

    @Slot()
    def _refresh_composer(self) -> None:
        state = self._chat.engine.state
        stops = ""
        if state is Lifecycle.GENERATING:
            stops = self.tr("Esc stops the answer")
        elif state is Lifecycle.LOADING and self._chat.answering_here:
            stops = self.tr("Esc stops loading the model")
        self.composer.set_stoppable(stops)

    def _refresh_empty(self) -> None:
        """The empty state stands in the middle; messages begin at the top."""
        self.empty.setVisible(not self.views)
        self._messages.setStretch(0, 0 if self.views else 1)

    def _waiting_words(self) -> str:
        if self._chat.engine.state is Lifecycle.LOADING:
            return self.tr("The model is loading. Your prompt is sent as soon as it is ready.")
        return self.tr("Waiting for the model to be ready.")

    def _message(self, message_id: str) -> ChatMessage:
        return next(m for m in self._chat.current.messages if m.id == message_id)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The peek gives way where the answer's column would have to shrink much."""
        super().resizeEvent(event)
        self.peek.setVisible(event.size().width() >= WITH_PEEK)

    # keeping the place

    @Slot(int)
    def _note_place(self, value: int) -> None:
        bar = self.scroll_area.verticalScrollBar()
        self._follow = value >= bar.maximum() - Shape.CODE_LINE_HEIGHT

    @Slot(int, int)
    def _keep_place(self, _low: int, high: int) -> None:
        bar = self.scroll_area.verticalScrollBar()
        if bar.property("idle") != (high == 0):
            bar.setProperty("idle", high == 0)
            bar.style().polish(bar)
        if self._follow:
            bar.setValue(high)
