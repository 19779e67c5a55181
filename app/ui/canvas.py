"""The canvas: a reply while it un-blurs, one custom-painted flow of tokens.

It knows how each token state is drawn (masked bar, draft, committed, edited, prompt), the one fade,
and what a hover or the arrow keys reveal. It refuses to know the engine: it is handed blocks of
cells and paints the last ones it got.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, QTimer, Slot
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QHelpEvent,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.models.snapshot import BlockView
from app.ui.canvas_layout import CanvasLayout, Placed
from app.ui.theme import Shape, Size, Theme, mixed, mono_font
from engine.types import TokenState

_WEIGHTS = (
    (0.4, QFont.Weight.Light),
    (0.7, QFont.Weight.Normal),
    (0.9, QFont.Weight.Medium),
    (math.inf, QFont.Weight.DemiBold),
)
FADE_FRAME_MS = 32
BAR_SHARE = 0.28  # of the masked colour over the page
DRAFT_BLUR = 0.7  # of that, behind a draft nothing is known about
_UNSETTLED = (TokenState.MASKED, TokenState.DRAFT)
_STATE_NAMES = {
    TokenState.MASKED: "masked",
    TokenState.DRAFT: "draft",
    TokenState.COMMITTED: "committed",
    TokenState.EDITED: "edited",
    TokenState.PROMPT: "prompt",
}


class CanvasView(QWidget):
    """Shows blocks of cells. Height follows width; focus and the arrow keys walk over tokens to
    explain them.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("canvas")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(self.tr("Answer while it is being written"))
        self._theme = theme
        self._plain = mono_font(Size.BASE)
        self._drafts = [mono_font(Size.BASE, weight, italic=True) for _, weight in _WEIGHTS]
        self._metrics = QFontMetricsF(self._plain)
        self._baseline = (Shape.CODE_LINE_HEIGHT + self._metrics.capHeight()) / 2
        self._widths: dict[str, float] = {}
        self._layout = CanvasLayout(self._measure, Shape.CODE_LINE_HEIGHT)
        self._blocks: tuple[BlockView, ...] = ()
        self._settled: dict[tuple[int, int], float] = {}  # when a position left the draft state
        self._was: dict[tuple[int, int], TokenState] = {}
        self._selected: int | None = None
        self._fades = QTimer(self)
        self._fades.setInterval(FADE_FRAME_MS)
        self._fades.timeout.connect(self._fade)
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        theme.changed.connect(self.update)

    def show_blocks(self, blocks: Sequence[BlockView], text: str) -> None:
        """Paints `blocks` next. text: of the finished ones, exact, for screen readers."""
        self._note_changes(blocks)
        changed_from = self._layout.settled_height
        self._blocks = tuple(blocks)
        if self.accessibleDescription() != text:
            self.setAccessibleDescription(text)
        self._reflow()
        top = math.floor(min(changed_from, self._layout.settled_height))
        self.update(0, top, self.width(), self.height() - top)

    def _note_changes(self, blocks: Sequence[BlockView]) -> None:
        """Starts the fade of each position that has just been committed. Finished blocks need no
        memory.
        """
        now = time.monotonic()
        current: dict[tuple[int, int], TokenState] = {}
        known = {index for index, _ in self._was}
        for block in blocks:
            if block.final and block.index not in known:
                continue
            for i, cell in enumerate(block.cells):
                key = (block.index, i)
                if cell.state == TokenState.COMMITTED and self._was.get(key) in _UNSETTLED:
                    self._settled[key] = now
                if not block.final:
                    current[key] = cell.state
        self._was = current
        if self._theme.reduce_motion:
            self._settled.clear()
        elif self._settled:
            self._fades.start()

    @Slot()
    def _fade(self) -> None:
        """Paints the fading tokens again, and only them."""
        for placed in self._layout.placed:
            if placed.index in self._settled:
                self.update(_box(placed).toAlignedRect())
        over = time.monotonic() - Shape.FADE_MS / 1000
        self._settled = {key: at for key, at in self._settled.items() if at > over}
        if not self._settled:
            self._fades.stop()

    def _measure(self, text: str) -> float:
        width = self._widths.get(text)
        if width is None:
            width = self._widths[text] = self._metrics.horizontalAdvance(text)
        return width

    def _reflow(self) -> None:
        before = self._layout.height
        self._layout.flow(self._blocks, self.width())
        if self._layout.height != before:
            self.setFixedHeight(math.ceil(self._layout.height))

    def sizeHint(self) -> QSize:
        return QSize(Shape.COLUMN, math.ceil(self._layout.height))

    def resizeEvent(self, event: QResizeEvent) -> None:
        if event.size().width() != event.oldSize().width():
            self._reflow()
            self.update()
        super().resizeEvent(event)

    # painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        top, bottom = event.rect().top() - Shape.CODE_LINE_HEIGHT, event.rect().bottom()
        shown = self._layout.between(top, bottom)
        now = time.monotonic()
        run: list[Placed] = []  # committed text side by side, committed at once: one call draws it
        since = 0.0
        for placed in shown:
            if placed.cell.state != TokenState.COMMITTED or placed.cell.special:
                self._paint_cell(painter, placed)
                continue
            settled = self._settled.get(placed.index, 0.0)
            if run and not (settled == since and _touch(run[-1], placed)):
                self._paint_run(painter, run, now - since)
                run = []
            run.append(placed)
            since = settled
        self._paint_run(painter, run, now - since)
        if self.hasFocus():
            self._paint_focus(painter)
        painter.end()

    def _paint_run(self, painter: QPainter, run: list[Placed], age: float) -> None:
        """Committed text; `age` seconds ago it was a draft."""
        if not run:
            return
        colors = self._theme.colors
        share = age * 1000 / Shape.FADE_MS
        color = QColor(colors.text) if share >= 1 else mixed(colors.text, colors.draft, share)
        self._paint_text(painter, run[0], self._plain, color, "".join(p.text for p in run))

    def _paint_cell(self, painter: QPainter, placed: Placed) -> None:
        """One token that is not plain committed text."""
        colors, state = self._theme.colors, placed.cell.state
        if state == TokenState.MASKED:
            self._paint_bar(painter, _box(placed).adjusted(1, 7, -5, -7), 1.0)
            return
        if not placed.text:  # bytes of a character that the token before shows
            return
        font, color = self._plain, QColor(colors.text)
        if state == TokenState.DRAFT:
            blur = 1.0 if math.isnan(placed.cell.confidence) else 1.0 - placed.cell.confidence
            self._paint_bar(painter, self._ink_box(placed), DRAFT_BLUR * blur)
            font, color = self._draft_font(placed.cell.confidence), QColor(colors.draft)
        elif state == TokenState.EDITED:
            color = QColor(colors.edited)
            self._paint_tick(painter, placed)
        elif state == TokenState.PROMPT or placed.cell.special:
            color = QColor(colors.muted)
        self._paint_text(painter, placed, font, color, placed.text)

    def _paint_text(
        self, painter: QPainter, at: Placed, font: QFont, color: QColor, text: str
    ) -> None:
        painter.setFont(font)
        painter.setPen(color)
        painter.drawText(QPointF(at.x, at.y + self._baseline), text)

    def _paint_focus(self, painter: QPainter) -> None:
        """A ring around the token the arrow keys are on, or around the whole canvas."""
        ring, radius = QRectF(self.rect()).adjusted(1, 1, -1, -1), 6
        if self._selected is not None and self._selected < len(self._layout.placed):
            ring, radius = _box(self._layout.placed[self._selected]).adjusted(-2, 1, 2, -1), 4
        painter.setPen(QPen(QColor(self._theme.colors.accent), 2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(ring, radius, radius)

    def _paint_bar(self, painter: QPainter, box: QRectF, share: float) -> None:
        """The soft bar a masked token is; what is left of it fades as a draft grows sure."""
        colors = self._theme.colors
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(mixed(colors.masked, colors.window, BAR_SHARE * share))
        painter.drawRoundedRect(box, 5, 5)

    def _ink_box(self, placed: Placed) -> QRectF:
        """Where a token's letters are, without the space before them."""
        indent = self._measure(placed.text[: len(placed.text) - len(placed.text.lstrip())])
        return _box(placed).adjusted(indent - 1, 4, 1, -3)

    def _draft_font(self, confidence: float) -> QFont:
        for font, (limit, _) in zip(self._drafts, _WEIGHTS, strict=True):
            if confidence < limit:
                return font
        return self._drafts[0]  # NaN: no forward has judged it

    def _paint_tick(self, painter: QPainter, placed: Placed) -> None:
        """A small wedge above the word: edited is told by shape, not only by colour."""
        indent = self._measure(placed.text[: len(placed.text) - len(placed.text.lstrip())])
        middle = placed.x + indent + (placed.width - indent) / 2
        y = placed.y + 2
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.colors.edited))
        painter.drawPolygon(
            QPolygonF([QPointF(middle - 3, y), QPointF(middle + 3, y), QPointF(middle, y + 3.5)])
        )

    # explaining a token

    def explanation(self, placed: Placed) -> str:
        """One or two plain lines on a token: its state, confidence, and what an edit replaced."""
        cell = placed.cell
        lines = [_STATE_NAMES[cell.state]]
        if not math.isnan(cell.confidence) and cell.state != TokenState.MASKED:
            lines[0] += self.tr(", confidence {0}").format(f"{cell.confidence:.2f}")
        if cell.special:
            lines.append(self.tr("end of the answer"))
        if cell.state == TokenState.EDITED and cell.before is not None:
            lines.append(f"“{cell.before.strip()}” → “{cell.text.strip()}”")
        return "\n".join(lines)

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            placed = self._at(event.pos())
            if placed is None:
                QToolTip.hideText()
            else:
                QToolTip.showText(event.globalPos(), self.explanation(placed), self)
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Right: 1, Qt.Key.Key_Left: -1}.get(Qt.Key(event.key()))
        count = len(self._layout.placed)
        if step is None or count == 0:
            super().keyPressEvent(event)
            return
        first = 0 if step > 0 else count - 1
        moved = first if self._selected is None else self._selected + step
        self._selected = max(0, min(count - 1, moved))
        placed = self._layout.placed[self._selected]
        text = self.explanation(placed)
        corner = QPoint(round(placed.x), round(placed.y) + Shape.CODE_LINE_HEIGHT)
        QToolTip.showText(self.mapToGlobal(corner), text, self)
        self.update()

    def _at(self, point: QPoint) -> Placed | None:
        for placed in self._layout.placed:
            if _box(placed).contains(QPointF(point)):
                return placed
        return None


def _touch(left: Placed, right: Placed) -> bool:
    """Whether two tokens stand side by side on one line."""
    return left.y == right.y and left.x + left.width == right.x


def _box(placed: Placed) -> QRectF:
    return QRectF(placed.x, placed.y, placed.width, Shape.CODE_LINE_HEIGHT)
