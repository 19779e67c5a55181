"""One message on the page: a prompt as it was typed, or an answer from waiting through canvas to
final text.

It knows how each `MessageStatus` looks. It refuses to know where messages come from.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.backend.conversations import ChatMessage, Failure, Figures, MessageStatus
from app.models.snapshot import Snapshot
from app.ui.canvas import CanvasView
from app.ui.error_card import ErrorCard
from app.ui.icons import icon
from app.ui.markdown_view import MessageText
from app.ui.theme import Space, Theme, answer_widths


class PromptView(QFrame):
    """What the person typed, exactly, as a card."""

    def __init__(self, theme: Theme, message: ChatMessage, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self.body = MessageText(theme, self.tr("Your prompt"), self)
        self.body.show_plain(message.text)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.L - 2, Space.M - 2, Space.L - 2, Space.M - 2)
        layout.addWidget(self.body)


class AnswerView(QWidget):
    """An answer. `action` carries what its one button does: "retry", "edit", "demo", "open" or
    "new".
    """

    action = Signal(str, str)  # action, message id

    def __init__(self, theme: Theme, message: ChatMessage, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.message = message
        self._theme = theme
        self._loading = ""
        self.waiting = QLabel(self)
        self.waiting.setProperty("tone", "muted")
        self.waiting.setWordWrap(True)
        self.canvas = CanvasView(theme, self)
        self.body = MessageText(theme, self.tr("Answer"), self)
        self.card = ErrorCard(theme, self)
        self.note = QLabel(self)
        self.note.setProperty("tone", "small")
        self.figures = QLabel(self)
        self.figures.setProperty("tone", "figures")
        self.figures.setToolTip(
            self.tr(
                "tokens: kept in the answer, up to the first stop token. tok/s: those tokens per "
                "second of decoding. TPF: tokens per forward pass, cache commits counted."
            )
        )
        self.copy_button = QPushButton(self.tr("Copy"), self)
        self.copy_button.setProperty("kind", "quiet")
        self.copy_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.copy_button.setIconSize(QSize(16, 16))
        self.copy_button.setAccessibleName(self.tr("Copy the answer"))
        self.copy_button.setToolTip(self.tr("Copy the answer's exact text"))
        self._copied = QTimer(self)
        self._copied.setSingleShot(True)
        self._copied.setInterval(1200)
        self._lay_out()
        self.card.pressed.connect(lambda name: self.action.emit(name, self.message.id))
        self.copy_button.clicked.connect(self._copy)
        self._copied.timeout.connect(self._tint)
        theme.changed.connect(self._tint)
        self._tint()
        self.show_message(message)

    def _lay_out(self) -> None:
        width, _ = answer_widths()
        self.canvas.setMaximumWidth(width)
        self.body.setMaximumWidth(width + 4)
        self._footer = QWidget(self)
        footer = QHBoxLayout(self._footer)
        footer.setContentsMargins(2, 0, 0, 0)
        footer.setSpacing(Space.M)
        footer.addWidget(self.figures)
        footer.addWidget(self.note, 1)
        footer.addWidget(self.copy_button)
        layout = QVBoxLayout(self)
        # all texts begin at the same x: a text view has a border of 2 px, a card of 1 px
        layout.setContentsMargins(Space.L - 1, 0, Space.L - 1, 0)
        layout.setSpacing(Space.S)
        inset = QVBoxLayout()
        inset.setContentsMargins(2, 0, 0, 0)
        inset.setSpacing(Space.S)
        for widget in (self.waiting, self.canvas):
            inset.addWidget(widget)
        layout.addLayout(inset)
        layout.addWidget(self.body)
        layout.addWidget(self.card)
        layout.addWidget(self._footer)

    def show_message(self, message: ChatMessage) -> None:
        """Shows the message's status; a final one replaces the canvas by its text."""
        self.message = message
        status = message.status
        final = status in (MessageStatus.DONE, MessageStatus.INTERRUPTED, MessageStatus.FAILED)
        self.waiting.setVisible(status is MessageStatus.WAITING)
        self.waiting.setText(self._loading or self.tr("Waiting for the model to be ready."))
        self.canvas.setVisible(status is MessageStatus.ANSWERING)
        self.body.setVisible(final and bool(message.text))
        if final and message.text:
            self.body.show_markdown(message.text)
        failure = message.failure
        if status is MessageStatus.INTERRUPTED:
            failure = self._interrupted()
        self.card.setVisible(failure is not None)
        if failure is not None:
            self.card.show_failure(failure, *self._button_for(failure))
        self._footer.setVisible(final and bool(message.text))
        self.figures.setText(self._figures_line(message.figures) if message.figures else "")
        self.figures.setVisible(message.figures is not None)
        self.note.setText(self._ending())

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.canvas.show_blocks(snapshot.blocks, snapshot.text)

    def show_loading(self, sentence: str) -> None:
        """What the model is doing while this message waits."""
        self._loading = sentence
        if self.message.status is MessageStatus.WAITING:
            self.waiting.setText(sentence)

    @Slot()
    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.message.text)
        self.copy_button.setIcon(icon("check", self._theme.colors.ok, 16))
        self.copy_button.setText(self.tr("Copied"))
        self._copied.start()

    @Slot()
    def _tint(self) -> None:
        self.copy_button.setIcon(icon("copy", self._theme.colors.muted, 16))
        self.copy_button.setText(self.tr("Copy"))

    def _ending(self) -> str:
        """Why the answer ended, when it did not simply finish."""
        return {
            "stopped": self.tr("Stopped by you"),
            "length": self.tr("Stopped at the answer length limit"),
            "did_not_converge": self.tr("Did not converge: a block ran out of steps"),
        }.get(self.message.reason, "")

    def _figures_line(self, figures: Figures) -> str:
        return self.tr("{0} tokens   {1} tok/s   TPF {2}   {3} forwards").format(
            f"{figures.tokens:,}",
            f"{figures.tokens_per_second:,.0f}",
            f"{figures.tpf:.1f}",
            f"{figures.forwards:,}",
        )

    def _interrupted(self) -> Failure:
        return Failure(
            "answer.interrupted",
            self.tr("Unblur was closed before this answer was finished."),
            self.tr("What had been written is kept. Ask again for a complete answer."),
            "generate",
        )

    def _button_for(self, failure: Failure) -> tuple[str, str]:
        """(action, label) of the one button that does what the error asks for."""
        if failure.code.startswith("request."):
            return "edit", self.tr("Edit the prompt")
        if failure.code == "load.no_model":
            return "demo", self.tr("Load the demo model")
        if failure.code == "app.unexpected":
            return "reload", self.tr("Load the model again")
        if failure.code == "answer.interrupted":
            return "retry", self.tr("Ask again")
        return "retry", self.tr("Try again")
