"""What every step of the wizard looks like: a title, a sentence, its cards.

It knows the form. It refuses to know any step's content.
"""

from __future__ import annotations

from PySide6.QtWidgets import QLabel

from app.ui.model_parts import CardFrame, Section, text_label
from app.ui.theme import Space


class StepPage(Section):
    """`refresh` is called whenever anything of the wizard changed."""

    def __init__(self, title: str, words: str) -> None:
        super().__init__(title)
        head = text_label("heading")
        head.setText(title)
        said = text_label("muted")
        said.setText(words)
        self.column.addWidget(head)
        self.column.addWidget(said)

    def card(self, name: str) -> CardFrame:
        """A card with its name at the top."""
        made = CardFrame(name)
        label = text_label("strong")
        label.setText(name)
        made.inside.addWidget(label)
        made.inside.setSpacing(Space.S)
        self.column.addWidget(made)
        return made

    def refresh(self) -> None:
        """Shows what is known now."""

    def decided(self) -> str:
        """What this step has decided, in a few words, "" for nothing yet."""
        return ""


def figure(text: str = "") -> QLabel:
    """A number with its unit, in tabular figures."""
    label = text_label("figures", wrap=False)
    label.setText(text)
    return label
