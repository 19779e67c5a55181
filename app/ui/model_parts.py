"""What the cards of the Models page are made of: labels, badges, buttons, and lists of cards.

It knows looks and how a long list is built without holding the window up. It refuses to know
models.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from PySide6.QtCore import QSize, Qt, QTimer, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.backend.conversations import Failure
from app.backend.transfer.queue import Problem
from app.ui.error_card import ErrorCard
from app.ui.settings_page import centred_page
from app.ui.theme import Space, Theme
from app.ui.tips import as_typed

Key = TypeVar("Key", bound=Hashable)
View = TypeVar("View", bound=QWidget)
AT_ONCE = 4  # cards that are made in one turn of the event loop


def text_label(tone: str = "", wrap: bool = True) -> QLabel:
    """A label for words from anywhere: never markup, and a mouse can select them."""
    label = QLabel()
    if tone:
        label.setProperty("tone", tone)
    label.setWordWrap(wrap)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    return label


def put(label: QLabel, text: str, tone: str | None = None, tip: str = "") -> None:
    """Sets a label's words; without any it takes no room."""
    label.setText(text)
    label.setVisible(bool(text))
    label.setToolTip(as_typed(tip))
    if tone is not None:
        restyle(label, "tone", tone)


def restyle(widget: QWidget, name: str, value: str) -> None:
    """Sets a property that the style sheet asks for."""
    if widget.property(name) != value:
        widget.setProperty(name, value)
        widget.style().unpolish(widget)
        widget.style().polish(widget)


def button(text: str, name: str = "", kind: str = "") -> QPushButton:
    """name: for a screen reader, where the text alone does not say of what."""
    made = QPushButton(text)
    if kind:
        made.setProperty("kind", kind)
    made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    made.setAccessibleName(name or text)
    return made


def relabel(made: QPushButton, text: str, name: str = "", kind: str | None = None) -> None:
    """Another text, name and kind for a button."""
    made.setText(text)
    made.setAccessibleName(name or text)
    if kind is not None:
        restyle(made, "kind", kind)


def row(*items: QWidget | None, spacing: int = Space.S) -> QHBoxLayout:
    """Widgets side by side; None stands for the space that stretches."""
    made = QHBoxLayout()
    made.setSpacing(spacing)
    for item in items:
        if item is None:
            made.addStretch(1)
        else:
            made.addWidget(item)
    return made


def headed(words: QWidget, *items: QWidget, spacing: int = Space.S) -> QHBoxLayout:
    """Words that take what room there is, and small things on their right."""
    made = row(*items, spacing=spacing)
    made.insertWidget(0, words, 1)
    return made


def open_page(link: str) -> None:
    """Opens a web page in the browser. Only ever called for a press."""
    url = QUrl(link)
    if url.scheme() in ("http", "https"):
        QDesktopServices.openUrl(url)


class Badge(QLabel):
    """A word in a frame. Its colour is never the only cue."""

    def __init__(self) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("badge", "")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def show_word(self, word: str, tone: str = "", tip: str = "") -> None:
        """tone: "ok", "warn", "bad", "accent" or ""."""
        self.setText(word)
        self.setVisible(bool(word))
        self.setToolTip(as_typed(tip))
        restyle(self, "badge", tone)


class CardFrame(QFrame):
    """A card: `inside` is the layout for its content."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.setProperty("card", "true")
        self.setAccessibleName(name)
        self.inside = QVBoxLayout(self)
        self.inside.setContentsMargins(Space.L, Space.M, Space.L, Space.M)
        self.inside.setSpacing(Space.XS)


class ProblemCard(ErrorCard):
    """A `Problem` with the button that helps. `pressed` gives "page" (already opened), or the
    action that was given."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, parent)
        self._link = ""
        self.pressed.connect(self._follow)
        self.hide()

    def show_problem(self, problem: Problem, action: str, label: str) -> None:
        self._link = problem.link
        failure = Failure(problem.code, problem.message, problem.action, "models")
        self.show_failure(failure, action, label)
        self.show()

    @Slot(str)
    def _follow(self, action: str) -> None:
        if action == "page":
            open_page(self._link)


class Section(QScrollArea):
    """One of the page's parts: a centred column that scrolls."""

    scrolled = Signal()

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName(name)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._page, self.column = centred_page()
        layout = self._page.layout()
        if layout is not None:
            layout.setContentsMargins(Space.XL, Space.S, Space.XL, Space.XL)
        self.column.setSpacing(Space.M)
        self.setWidget(self._page)
        bar = self.verticalScrollBar()
        bar.valueChanged.connect(self.scrolled)
        bar.rangeChanged.connect(self._note_range)
        # always there, so that the column does not jump; unseen while there is nothing to scroll
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        self._note_range(0, 0)
        self._order = QTimer(self)
        self._order.setSingleShot(True)
        self._order.setInterval(0)
        self._order.timeout.connect(self._order_focus)

    def order_soon(self) -> None:
        """Puts what was made later into the way of the Tab key, where it stands on the page."""
        self._order.start()

    @Slot()
    def _order_focus(self) -> None:
        chain = list(focus_chain(self._page.layout()))
        for before, after in pairwise(chain):
            QWidget.setTabOrder(before, after)

    @Slot(int, int)
    def _note_range(self, _low: int, high: int) -> None:
        restyle(self.verticalScrollBar(), "idle", "true" if high == 0 else "false")

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)


def focus_chain(layout: QLayout | None) -> Iterator[QWidget]:
    """Everything in a layout that the Tab key can reach, in the order it is laid out."""
    for index in range(layout.count() if layout is not None else 0):
        item = layout.itemAt(index) if layout is not None else None
        widget = item.widget() if item is not None else None
        if widget is None:
            yield from focus_chain(item.layout() if item is not None else None)
        elif widget.layout() is not None:
            yield from focus_chain(widget.layout())
        elif widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield widget


def ask_for_order(widget: QWidget) -> None:
    """Tells the section that a widget is in that something new can be reached."""
    above = widget.parentWidget()
    while above is not None and not isinstance(above, Section):
        above = above.parentWidget()
    if above is not None:
        above.order_soon()


class CardList(QWidget, Generic[Key, View]):
    """Cards one below the other, by key. Those that stay are kept as they are, with their focus.

    A long list is made a few cards at a time: a card takes milliseconds, and none may be late.
    """

    filled = Signal()

    def __init__(self, make: Callable[[Key], View], refresh: Callable[[View, Key], None]) -> None:
        super().__init__()
        self.cards: dict[Key, View] = {}
        self._make, self._refresh = make, refresh
        self._wanted: tuple[Key, ...] = ()
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(Space.M)
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(0)
        self._soon.timeout.connect(self._fill)

    def show_keys(self, keys: Sequence[Key]) -> None:
        self._wanted = tuple(keys)
        for key in [key for key in self.cards if key not in set(keys)]:
            card = self.cards.pop(key)
            self._layout.removeWidget(card)
            card.hide()
            card.deleteLater()
        for key, card in self.cards.items():
            self._refresh(card, key)
        self.setVisible(bool(keys))
        self._fill()

    @property
    def complete(self) -> bool:
        return len(self.cards) == len(self._wanted)

    @Slot()
    def _fill(self) -> None:
        made, moved = 0, False
        for index, key in enumerate(self._wanted):
            card = self.cards.get(key)
            if card is None:
                if made == AT_ONCE:
                    self._soon.start()
                    return
                made += 1
                card = self.cards[key] = self._make(key)
                self._refresh(card, key)
            if self._layout.indexOf(card) != index:
                self._layout.insertWidget(index, card)
                moved = True
        if moved:
            ask_for_order(self)
        self.filled.emit()
