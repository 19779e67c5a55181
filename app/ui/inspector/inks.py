"""Levels of a fill as colours, and the small shapes that tell a state without colour.

It knows the theme's heat scales and the glyphs. It refuses to know where they are drawn.
"""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPen, QPolygonF

from app.backend.scales import LEVELS, NOT_CAPTURED, NOT_YET
from app.ui.theme import Colors, ink_on, mixed, ramp_color
from engine.types import TokenState

HATCH_LINE = 242  # in a raster: a line of the hatching that says "not captured"
GLYPH = 6  # px, the size of a state's mark


class Inks:
    """The colours of one ramp in the theme in force."""

    def __init__(self, colors: Colors, ramp: str) -> None:
        self.fills = [ramp_color(ramp, i / (LEVELS - 1)) for i in range(LEVELS)]
        self.texts = [QColor(ink_on(fill)) for fill in self.fills]
        self.ground = QColor(colors.surface)
        self.hatch = mixed(colors.muted, colors.surface, 0.45)
        self.hatch_ground = mixed(colors.muted, colors.surface, 0.06)
        self.not_yet = QColor(colors.window)
        self.text = QColor(colors.text)
        self.muted = QColor(colors.muted)
        self.line = QColor(colors.line)
        self.accent = QColor(colors.accent)

    def table(self) -> list[int]:
        """ARGB of every level, for an indexed image."""
        table = [fill.rgb() for fill in self.fills]
        table += [self.hatch_ground.rgb(), self.not_yet.rgb(), self.hatch.rgb()]
        return table

    def text_on(self, level: int) -> QColor:
        return self.texts[level] if level < LEVELS else self.text

    def fill(self, painter: QPainter, box: QRectF, level: int) -> None:
        """A cell's ground; hatched where nothing was captured, an outline where nothing is yet."""
        if level < LEVELS:
            painter.fillRect(box, self.fills[level])
        elif level == NOT_CAPTURED:
            painter.fillRect(box, self.hatch_ground)
            painter.fillRect(box, QBrush(self.hatch, Qt.BrushStyle.BDiagPattern))
        elif level == NOT_YET:
            painter.setPen(QPen(self.line, 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(box.adjusted(0.5, 0.5, -0.5, -0.5))


@lru_cache(maxsize=8)
def inks_of(colors: Colors, ramp: str) -> Inks:
    """The inks of a ramp in a scheme, made once."""
    return Inks(colors, ramp)


def draw_glyph(painter: QPainter, state: TokenState, x: float, y: float, ink: QColor) -> None:
    """The mark of a state with its top left corner at (x, y), `GLYPH` px large: a bar for masked, a
    ring for draft, a disc for committed, a wedge for edited, a corner for the prompt."""
    if state == TokenState.MASKED:
        painter.fillRect(QRectF(x, y + 2, GLYPH, 2), ink)
        return
    if state == TokenState.PROMPT:
        painter.fillRect(QRectF(x, y, 2, GLYPH), ink)
        painter.fillRect(QRectF(x, y, GLYPH, 2), ink)
        return
    if state == TokenState.DRAFT:
        painter.setPen(QPen(ink, 1.2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawEllipse(QRectF(x + 0.6, y + 0.6, GLYPH - 1.2, GLYPH - 1.2))
        return
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(ink)
    if state == TokenState.COMMITTED:
        painter.drawEllipse(QRectF(x + 0.5, y + 0.5, GLYPH - 1, GLYPH - 1))
    else:
        wedge = [QPointF(x, y), QPointF(x + GLYPH, y), QPointF(x + GLYPH / 2, y + GLYPH)]
        painter.drawPolygon(QPolygonF(wedge))
