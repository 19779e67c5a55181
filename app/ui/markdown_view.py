"""Text that is final: Markdown for answers, plain for prompts, one document a message, as tall as
its content.

It knows rendering, selection and copying. Copying everything gives the exact source; copying a part
gives its characters unchanged. It refuses to load anything: no images, no HTML, links only open
when clicked and only on the web.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QSize, Qt, QUrl, Slot
from PySide6.QtGui import (
    QContextMenuEvent,
    QDesktopServices,
    QFontMetricsF,
    QGuiApplication,
    QKeyEvent,
    QKeySequence,
    QResizeEvent,
    QTextCursor,
    QTextDocument,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QMenu, QSizePolicy, QTextBrowser, QWidget

from app.ui.markdown_source import for_display
from app.ui.markdown_style import style_markdown, style_plain
from app.ui.theme import Shape, Size, Space, Theme, mono_font, ui_font

_FLAVOUR = (
    QTextDocument.MarkdownFeature.MarkdownDialectGitHub
    | QTextDocument.MarkdownFeature.MarkdownNoHTML
)
# what QTextDocument uses between blocks, lines and frames, and what they are in plain text
_BORDER = 2  # the focus ring's place, see the style sheet
_BREAKS = str.maketrans(dict.fromkeys("\u2028\u2029\ufdd0\ufdd1", "\n"))


class MessageText(QTextBrowser):
    """One final message. `source_text` is exactly what was given, also where less is shown."""

    def __init__(self, theme: Theme, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.source_text = ""
        self._plain = ""
        self._markdown = False
        self._theme = theme
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setTabChangesFocus(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setUndoRedoEnabled(False)
        self.document().setDocumentMargin(0)
        self.document().setIndentWidth(Space.XL)
        self.setTabStopDistance(QFontMetricsF(mono_font()).horizontalAdvance("0") * 4)
        self.document().setDefaultFont(ui_font(Size.BODY))
        self.anchorClicked.connect(self._open)
        theme.changed.connect(self._render)

    def show_markdown(self, source: str) -> None:
        self.source_text, self._markdown = source, True
        self._render()

    def show_plain(self, source: str, shown: str | None = None) -> None:
        """shown: the part of `source` that is on the page, all of it if None."""
        self.source_text, self._markdown = source, False
        self._plain = source if shown is None else shown
        self._render()

    @Slot()
    def _render(self) -> None:
        document = self.document()
        document.setDefaultFont(ui_font(Size.BODY))
        if self._markdown:
            document.setMarkdown(for_display(self.source_text), _FLAVOUR)
            style_markdown(document, self._theme)
        else:
            document.setPlainText(self._plain)
            style_plain(document)
        self._fit()

    def _fit(self) -> None:
        width = self.viewport().width()
        if width > 0:
            self.document().setTextWidth(width)
            self.setFixedHeight(math.ceil(self.document().size().height()) + 2 * _BORDER)

    def sizeHint(self) -> QSize:
        return QSize(Shape.COLUMN, self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the conversation scrolls, not the message

    def loadResource(self, type: int, name: QUrl | str) -> object:
        """Nothing an answer names is ever fetched or read."""
        return None

    def selected_source(self) -> str:
        """The exact source for everything, the exact characters for a part of it."""
        whole = QTextCursor(self.document())
        whole.select(QTextCursor.SelectionType.Document)
        selected = self.textCursor().selectedText()
        if selected == whole.selectedText():
            return self.source_text
        return selected.translate(_BREAKS)

    # `createMimeDataFromSelection` would be Qt's place for this, but an object made there in Python
    # is freed twice when the process ends; so the ways to copy are taken over instead.

    @Slot()
    def copy(self) -> None:
        if self.textCursor().hasSelection():
            QGuiApplication.clipboard().setText(self.selected_source())

    def keyPressEvent(self, ev: QKeyEvent) -> None:
        if ev.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        else:
            super().keyPressEvent(ev)

    def contextMenuEvent(self, e: QContextMenuEvent) -> None:
        self.make_menu().popup(e.globalPos())

    def make_menu(self) -> QMenu:
        """Copy and Select all; deleted once it is closed."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        copy = menu.addAction(self.tr("Copy"), self.copy)
        copy.setShortcut(QKeySequence.StandardKey.Copy)
        copy.setEnabled(self.textCursor().hasSelection())
        menu.addAction(self.tr("Select all"), self.selectAll)
        return menu

    @Slot(QUrl)
    def _open(self, url: QUrl) -> None:
        if url.scheme() in ("http", "https"):
            QDesktopServices.openUrl(url)
