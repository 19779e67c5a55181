"""What an empty conversation shows: one sentence on what is about to be seen, and three prompts to
press.

It knows the words and a small picture of the four token states. It refuses to know what pressing
does.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget

from app.models.snapshot import BlockView, Cell
from app.ui.canvas import CanvasView
from app.ui.theme import Space, Theme
from engine.types import TokenState

# Skills of the demo model: arithmetic with its working, a small function, a list.
PROMPTS = (
    "What is 17 * 24 + 9? Show the working.",
    "Write a Python function pick_words(text) that returns a list of the words in text "
    "longer than 6 letters.",
    "Keep only the numbers that are odd: 84, 59, 45, 83, 10, 16",
)


class EmptyState(QWidget):
    chosen = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        title = QLabel(self.tr("Watch an answer come into focus"), self)
        title.setProperty("tone", "display")
        title.setWordWrap(True)
        sentence = QLabel(
            self.tr(
                "The answer starts as a row of blurred tokens. With every pass the model fills in "
                "those it is sure of, until none is left; some models correct earlier ones too."
            ),
            self,
        )
        sentence.setProperty("tone", "lead")
        sentence.setWordWrap(True)
        self._legend = CanvasView(theme, self)
        self._legend.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._legend.setAccessibleName(self.tr("How tokens look: masked, draft, committed, edited"))
        self._legend.show_blocks((self._legend_block(),), "")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(Space.S)
        layout.addWidget(title)
        layout.addWidget(sentence)
        layout.addSpacing(Space.S)
        layout.addWidget(self._legend)
        layout.addSpacing(Space.L)
        self.buttons: list[QPushButton] = []
        for prompt in PROMPTS:
            button = QPushButton(prompt, self)
            button.setProperty("kind", "suggestion")
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setAccessibleName(self.tr("Ask: {0}").format(prompt))
            button.clicked.connect(lambda _=False, text=prompt: self.chosen.emit(text))
            layout.addWidget(button)
            self.buttons.append(button)

    def _legend_block(self) -> BlockView:
        nan = float("nan")
        return BlockView(
            index=0,
            cells=(
                Cell("", TokenState.MASKED, nan),
                Cell("", TokenState.MASKED, nan),
                Cell(self.tr(" masked "), TokenState.PROMPT, nan),
                Cell(self.tr(" draft, unsure"), TokenState.DRAFT, 0.3),
                Cell(self.tr(" draft, sure "), TokenState.DRAFT, 0.95),
                Cell(self.tr(" committed "), TokenState.COMMITTED, nan),
                Cell(self.tr(" edited "), TokenState.EDITED, nan, before=self.tr("before")),
            ),
            step=0,
            final=False,
        )
