"""Text that is final: Markdown for answers, plain for prompts, one document a message, as tall as
its content.

It knows rendering, selection and copying. Copying everything gives the exact source; copying a part
gives its characters unchanged. It refuses to load anything: no images, no HTML, links only open
when clicked and only on the web.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QMimeData, QSize, Qt, QUrl, Slot
from PySide6.QtGui import (
    QColor,
    QDesktopServices,
    QResizeEvent,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextOption,
    QTextTable,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser, QWidget

from app.ui.theme import MONO_FAMILY, Shape, Size, Space, Theme, ui_font

_FLAVOUR = (
    QTextDocument.MarkdownFeature.MarkdownDialectGitHub
    | QTextDocument.MarkdownFeature.MarkdownNoHTML
)
_LINE_HEIGHT = 150  # per cent


class MessageText(QTextBrowser):
    """One final message. `source_text` is exactly what was given."""

    def __init__(self, theme: Theme, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.source_text = ""
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
        self.document().setDocumentMargin(0)
        self.document().setIndentWidth(Space.XL)
        self.document().setDefaultFont(ui_font(Size.BODY))
        self.anchorClicked.connect(self._open)
        theme.changed.connect(self._render)

    def show_markdown(self, source: str) -> None:
        self.source_text, self._markdown = source, True
        self._render()

    def show_plain(self, source: str) -> None:
        self.source_text, self._markdown = source, False
        self._render()

    @Slot()
    def _render(self) -> None:
        document = self.document()
        document.setDefaultFont(ui_font(Size.BODY))
        if self._markdown:
            document.setMarkdown(self.source_text, _FLAVOUR)
            _style(document, self._theme)
        else:
            document.setPlainText(self.source_text)
            _space_lines(document)
        self._fit()

    def _fit(self) -> None:
        width = self.viewport().width()
        if width > 0:
            self.document().setTextWidth(width)
            self.setFixedHeight(math.ceil(self.document().size().height()) + 4)

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

    def createMimeDataFromSelection(self) -> QMimeData:
        """Plain text only: the exact source for everything, the exact characters for a part."""
        cursor = self.textCursor()
        data = QMimeData()
        whole = QTextCursor(self.document())
        whole.select(QTextCursor.SelectionType.Document)
        if cursor.selectedText() == whole.selectedText():
            data.setText(self.source_text)
        else:
            data.setText(cursor.selectedText().replace("\u2029", "\n").replace("\u2028", "\n"))
        return data

    @Slot(QUrl)
    def _open(self, url: QUrl) -> None:
        if url.scheme() in ("http", "https"):
            QDesktopServices.openUrl(url)


def _space_lines(document: QTextDocument) -> None:
    cursor = QTextCursor(document)
    cursor.select(QTextCursor.SelectionType.Document)
    form = QTextBlockFormat()
    form.setLineHeight(_LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    cursor.mergeBlockFormat(form)


def _style(document: QTextDocument, theme: Theme) -> None:
    """Line height everywhere; code in the code font on the surface colour; headings in the scale's
    sizes.
    """
    _space_lines(document)
    block = document.begin()
    while block.isValid():
        form = block.blockFormat()
        cursor = QTextCursor(block)
        if form.hasProperty(QTextFormat.Property.BlockCodeFence) or form.hasProperty(
            QTextFormat.Property.BlockCodeLanguage
        ):
            _style_code(cursor, theme)
        elif form.headingLevel() > 0:
            _style_heading(cursor, form.headingLevel())
        else:
            _style_inline_code(cursor, theme)
            if not block.textList() and not isinstance(cursor.currentTable(), QTextTable):
                after = QTextBlockFormat()
                after.setBottomMargin(Space.S)
                cursor.mergeBlockFormat(after)
        block = block.next()


def _style_code(cursor: QTextCursor, theme: Theme) -> None:
    cursor.select(QTextCursor.SelectionType.BlockUnderCursor)
    code = QTextCharFormat()
    code.setFontFamilies([MONO_FAMILY])
    code.setProperty(QTextFormat.Property.FontPixelSize, Size.BASE)
    code.setForeground(QColor(theme.colors.text))
    cursor.mergeCharFormat(code)
    form = QTextBlockFormat()
    form.setBackground(QColor(theme.colors.surface))
    form.setLeftMargin(0)
    form.setNonBreakableLines(False)
    cursor.mergeBlockFormat(form)


def _style_heading(cursor: QTextCursor, level: int) -> None:
    cursor.select(QTextCursor.SelectionType.BlockUnderCursor)
    heading = QTextCharFormat()
    heading.setProperty(QTextFormat.Property.FontSizeAdjustment, 0)
    heading.setProperty(QTextFormat.Property.FontPixelSize, Size.TITLE if level <= 2 else Size.BODY)
    heading.setFontWeight(600)
    cursor.mergeCharFormat(heading)


def _style_inline_code(cursor: QTextCursor, theme: Theme) -> None:
    """Inline code is found by its fixed pitch, which Qt's Markdown reader sets."""
    fragments = cursor.block().begin()
    while not fragments.atEnd():
        fragment = fragments.fragment()
        if fragment.charFormat().fontFixedPitch():
            span = QTextCursor(cursor.block())
            span.setPosition(fragment.position())
            span.setPosition(
                fragment.position() + fragment.length(), QTextCursor.MoveMode.KeepAnchor
            )
            code = QTextCharFormat()
            code.setFontFamilies([MONO_FAMILY])
            code.setProperty(QTextFormat.Property.FontPixelSize, Size.BASE)
            code.setBackground(QColor(theme.colors.surface))
            span.mergeCharFormat(code)
        fragments += 1
