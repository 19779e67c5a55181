"""How a rendered document looks: line heights, code boxes, tables and headings, from the theme.

It knows QTextDocument's formats. It refuses to know where the text came from.
"""

from __future__ import annotations

from PySide6.QtGui import (
    QBrush,
    QColor,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextFrameFormat,
    QTextLength,
    QTextTable,
    QTextTableFormat,
)

from app.ui.markdown_source import TAB_STAND_IN
from app.ui.theme import MONO_FAMILY, Size, Space, Theme, answer_widths, mixed

BODY_LINE = 24
CODE_LINE = 20
_HEADING_LINE = 30
_FIXED = QTextBlockFormat.LineHeightTypes.FixedHeight.value


def style_plain(document: QTextDocument) -> None:
    """The body's line height, everywhere."""
    cursor = QTextCursor(document)
    cursor.select(QTextCursor.SelectionType.Document)
    cursor.mergeBlockFormat(_spacing(BODY_LINE, 0, 0))


def style_markdown(document: QTextDocument, theme: Theme) -> None:
    """Restyles every block of a document that was just read from Markdown."""
    edit = QTextCursor(document)
    edit.beginEditBlock()  # one layout at the end, not one for each change
    _style_blocks(document, theme)
    edit.endEditBlock()
    document.rootFrame().setFrameFormat(_no_margin(document))


def _style_blocks(document: QTextDocument, theme: Theme) -> None:
    _restore_tabs(document)
    code_width, prose_width = answer_widths()
    tables: dict[int, QTextTable] = {}
    code: list[tuple[int, int]] = []  # first and last position of each run of code blocks
    block = document.begin()
    while block.isValid():
        cursor = QTextCursor(block)
        table = cursor.currentTable()
        if _is_code(block):
            _style_code(block)
            begins = not code or not _is_code(block.previous())
            code.append((block.position(), _end(block))) if begins else _extend(code, block)
        elif table is not None:
            tables[table.firstPosition()] = table
            cursor.mergeBlockFormat(_spacing(BODY_LINE, 0, 0))
        elif not block.text() and QTextCursor(block.previous()).currentTable() is not None:
            cursor.mergeBlockFormat(_spacing(1, 0, 0))  # the line Qt leaves after a table
        elif block.blockFormat().headingLevel() > 0:
            _style_heading(block)
        else:
            cursor.mergeBlockFormat(_spacing(BODY_LINE, 0, _below(block), code_width - prose_width))
        _style_inline_code(block, theme)
        block = block.next()
    for table in tables.values():
        _style_table(table, theme)
    for first, last in reversed(code):  # from the end, because each box moves what follows
        _box_code(document, first, last, theme)


def _restore_tabs(document: QTextDocument) -> None:
    cursor = document.find(TAB_STAND_IN)
    while not cursor.isNull():
        cursor.insertText("\t")
        cursor = document.find(TAB_STAND_IN, cursor)


def _is_code(block: QTextBlock) -> bool:
    return block.isValid() and block.blockFormat().hasProperty(QTextFormat.Property.BlockCodeFence)


def _end(block: QTextBlock) -> int:
    return block.position() + block.length() - 1


def _extend(code: list[tuple[int, int]], block: QTextBlock) -> None:
    code[-1] = (code[-1][0], _end(block))


def _spacing(line: int, above: int, below: int, right: int = 0) -> QTextBlockFormat:
    form = QTextBlockFormat()
    form.setRightMargin(right)
    form.setLineHeight(line, _FIXED)
    form.setTopMargin(above)
    form.setBottomMargin(below)
    return form


def _below(block: QTextBlock) -> int:
    """Space after a paragraph or list item: list items stay together."""
    if not block.next().isValid():
        return 0
    in_list = block.textList() and block.next().textList()
    return Space.XS if in_list or _is_code(block.next()) else Space.M


def _selected(block: QTextBlock) -> QTextCursor:
    """A cursor over the block's own text, without the separator before it."""
    cursor = QTextCursor(block)
    cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
    return cursor


def _code_format() -> QTextCharFormat:
    code = QTextCharFormat()
    code.setFontFamilies([MONO_FAMILY])
    code.setProperty(QTextFormat.Property.FontPixelSize, Size.BASE)
    return code


def _style_code(block: QTextBlock) -> None:
    cursor = _selected(block)
    cursor.mergeCharFormat(_code_format())
    cursor.mergeBlockFormat(_spacing(CODE_LINE, 0, 0))


def _style_heading(block: QTextBlock) -> None:
    level = block.blockFormat().headingLevel()
    heading = QTextCharFormat()
    heading.setProperty(QTextFormat.Property.FontSizeAdjustment, 0)
    heading.setProperty(QTextFormat.Property.FontPixelSize, Size.TITLE if level <= 2 else Size.BODY)
    heading.setFontWeight(600)
    cursor = _selected(block)
    cursor.mergeCharFormat(heading)
    cursor.mergeBlockFormat(_spacing(_HEADING_LINE, Space.S, Space.XS))


def _style_inline_code(block: QTextBlock, theme: Theme) -> None:
    """Inline code is found by its fixed pitch, which Qt's Markdown reader sets."""
    if _is_code(block):
        return
    spans: list[tuple[int, int]] = []
    fragments = block.begin()
    while not fragments.atEnd():
        fragment = fragments.fragment()
        if fragment.charFormat().fontFixedPitch():
            spans.append((fragment.position(), fragment.position() + fragment.length()))
        fragments += 1
    form = _code_format()
    form.setBackground(mixed(theme.colors.line, theme.colors.window, 0.6))
    for first, last in spans:
        cursor = QTextCursor(block)
        cursor.setPosition(first)
        cursor.setPosition(last, QTextCursor.MoveMode.KeepAnchor)
        cursor.mergeCharFormat(form)


def _style_table(table: QTextTable, theme: Theme) -> None:
    form = QTextTableFormat()
    form.setBorderCollapse(True)
    form.setBorder(1)
    form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    form.setBorderBrush(QBrush(QColor(theme.colors.line)))
    form.setCellPadding(6)
    form.setCellSpacing(0)
    form.setTopMargin(Space.XS)
    form.setBottomMargin(Space.M)
    table.setFormat(form)
    for column in range(table.columns()):
        _style_header(table, column)


def _style_header(table: QTextTable, column: int) -> None:
    """Bold. Qt's reader puts an empty line into the first cell of a table that follows code."""
    cell = table.cellAt(0, column)
    cursor = cell.firstCursorPosition()
    if cursor.block() != cell.lastCursorPosition().block() and not cursor.block().text():
        cursor.deleteChar()
    cursor.setPosition(cell.lastCursorPosition().position(), QTextCursor.MoveMode.KeepAnchor)
    bold = QTextCharFormat()
    bold.setFontWeight(600)
    cursor.mergeCharFormat(bold)
    cursor.mergeBlockFormat(_spacing(BODY_LINE, 0, 0))


def _box_code(document: QTextDocument, first: int, last: int, theme: Theme) -> None:
    """Moves the text from `first` to `last` into a box of the surface colour."""
    cursor = QTextCursor(document)
    cursor.setPosition(first)
    cursor.setPosition(last, QTextCursor.MoveMode.KeepAnchor)
    form = QTextFrameFormat()
    form.setBackground(QColor(theme.colors.surface))
    form.setBorder(1)
    form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    form.setBorderBrush(QBrush(QColor(theme.colors.line)))
    form.setPadding(Space.M)
    form.setBottomMargin(Space.M)
    form.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
    frame = cursor.insertFrame(form)
    after = QTextCursor(document)
    after.setPosition(frame.lastPosition() + 1)
    if after.atEnd() and not after.block().text():
        after.mergeBlockFormat(_spacing(1, 0, 0))  # the line Qt keeps after a box at the end


def _no_margin(document: QTextDocument) -> QTextFrameFormat:
    form = document.rootFrame().frameFormat()
    form.setMargin(0)
    return form
