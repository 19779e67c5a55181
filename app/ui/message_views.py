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

SHOWN_CHARACTERS, SHOWN_LINES = 10_000, 200  # of a prompt on the page


class PromptView(QFrame):
    """What the person typed, exactly, as a card. Of a very long one the beginning is shown, because
    laying out a book would hold the window up; copying everything gives all of it.
    """

    def __init__(self, theme: Theme, message: ChatMessage, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self.body = MessageText(theme, self.tr("Your prompt"), self)
        shown = _beginning(message.text)
        self.body.show_plain(message.text, shown)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.L - 2, Space.M - 2, Space.L - 2, Space.M - 2)
        layout.addWidget(self.body)
        self.rest = QLabel(self)
        self.rest.setProperty("tone", "small")
        self.rest.setIndent(2)
        self.rest.setText(
            self.tr("and {0} more characters. Select all and copy gives the whole prompt.").format(
                f"{len(message.text) - len(shown):,}"
            )
        )
        self.rest.setVisible(len(shown) < len(message.text))
        layout.addWidget(self.rest)


class AnswerView(QWidget):
    """An answer. `action` carries what its one button does: "retry", "edit", "new" (ask in a new
    chat), "demo" or "reload" (load that model, then ask again); and "inspect".
    """

    action = Signal(str, str)  # action, message id

    def __init__(
        self, theme: Theme, message: ChatMessage, first: bool, parent: QWidget | None = None
    ) -> None:
        """first: nothing was said before its prompt."""
        super().__init__(parent)
        self.message = message
        self._theme = theme
        self._first = first
        self._loading = ""
        self._usable, self._free = True, True
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
        self.inspect_button = QPushButton(self.tr("Inspect"), self)
        self.inspect_button.setProperty("kind", "quiet")
        self.inspect_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.inspect_button.setIconSize(QSize(16, 16))
        self.inspect_button.setAccessibleName(self.tr("Open the answer in the inspector"))
        self.inspect_button.setToolTip(
            self.tr("See how each token was chosen. Kept until Unblur is closed; save it there.")
        )
        self.inspect_button.hide()
        self._copied = QTimer(self)
        self._copied.setSingleShot(True)
        self._copied.setInterval(1200)
        self._lay_out()
        self.card.pressed.connect(lambda name: self.action.emit(name, self.message.id))
        self.copy_button.clicked.connect(self._copy)
        self.inspect_button.clicked.connect(lambda: self.action.emit("inspect", self.message.id))
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
        footer.addWidget(self.inspect_button)
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
        if status is MessageStatus.WAITING:
            self.canvas.show_blocks((), "")  # what an earlier try left there
        self.body.setVisible(final and bool(message.text))
        if final and message.text:
            self.body.show_markdown(message.text)
        self._refresh_card()
        self._footer.setVisible(final and bool(message.text))
        self.figures.setText(self._figures_line(message.figures) if message.figures else "")
        self.figures.setVisible(message.figures is not None)
        self.note.setText(self._ending())

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.canvas.show_blocks(snapshot.blocks, snapshot.text)

    def show_traced(self, traced: bool) -> None:
        """traced: its steps are known, so that the inspector can show them."""
        self.inspect_button.setVisible(traced)

    def show_model(self, sentence: str, usable: bool, free: bool) -> None:
        """sentence: what the model is doing while this message waits. usable: there is one, or one
        is coming. free: no other answer is waited for.
        """
        self._loading = sentence
        if self.message.status is MessageStatus.WAITING:
            self.waiting.setText(sentence)
        if (usable, free) != (self._usable, self._free):
            self._usable, self._free = usable, free
            self._refresh_card()

    def _refresh_card(self) -> None:
        failure = self.message.failure
        if self.message.status is MessageStatus.INTERRUPTED:
            failure = self._interrupted()
        self.card.setVisible(failure is not None)
        if failure is not None:
            action, label = self._button_for(failure)
            self.card.show_failure(failure, action, label)
            self.card.button.setEnabled(self._free or action in ("edit", "new"))

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
        self.inspect_button.setIcon(icon("inspector", self._theme.colors.muted, 16))

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
        if failure.code == "request.too_long" and not self._first:
            return "new", self.tr("Ask in a new chat")
        if failure.code.startswith("request."):
            return "edit", self.tr("Edit the prompt")
        if not self._usable and failure.code == "app.unexpected":
            return "reload", self.tr("Load the model and ask again")
        if not self._usable:
            return "demo", self.tr("Load the demo model and ask again")
        if failure.code in ("load.no_model", "answer.interrupted"):
            return "retry", self.tr("Ask again")
        return "retry", self.tr("Try again")


def _beginning(text: str) -> str:
    """The lines of `text` that the page shows of a prompt."""
    lines = text[:SHOWN_CHARACTERS].split("\n", SHOWN_LINES)
    return "\n".join(lines[:SHOWN_LINES])
