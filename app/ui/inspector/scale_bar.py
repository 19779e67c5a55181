"""The scale of the fill in use, printed with its numbers, and what the marks of the states mean.

It knows how a fixed scale is drawn and how "not captured" and thinning are said. It refuses to
know where the values come from.
"""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSize, Slot
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.backend.scales import LEVELS, NOT_CAPTURED
from app.models.inspector import InspectorModel
from app.models.inspector_fills import Levels
from app.ui.inspector.inks import GLYPH, Inks, draw_glyph, inks_of
from app.ui.inspector.words import difference_name, fill_meaning, fill_name, state_name, tr
from app.ui.theme import Size, Theme, mono_font, ui_font
from engine.trace.compare import Difference
from engine.types import TokenState

HEIGHT, SECOND_LINE = 34, 17
BAR = QRectF(0, 4, 200, 9)
STATES = (
    TokenState.MASKED,
    TokenState.DRAFT,
    TokenState.COMMITTED,
    TokenState.EDITED,
    TokenState.PROMPT,
)


class ScaleBar(QWidget):
    """One row: the scale with its ticks, hatching for what was not captured, the states' marks."""

    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._model = model
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        for signal in (model.trace_changed, model.fill_changed, theme.changed):
            signal.connect(self._refresh)
        self._refresh()

    def sizeHint(self) -> QSize:
        return QSize(560, HEIGHT)

    @Slot()
    def _refresh(self) -> None:
        levels = self._model.levels
        self.setAccessibleName(self.tr("Scale of the colours"))
        if levels is not None:
            sentence = f"{fill_name(levels.fill)}: {fill_meaning(levels.fill)} {captured(levels)}"
            self.setToolTip(sentence)
            self.setAccessibleDescription(sentence)
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        levels = self._model.levels
        if levels is None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        inks = inks_of(self._theme.colors, levels.scale.ramp)
        if levels.fill == "difference":
            self._paint_kinds(painter, inks, levels)
        else:
            self._paint_bar(painter, inks, levels)
            self._paint_legend(painter, inks, levels)
        painter.end()

    def _paint_bar(self, painter: QPainter, inks: Inks, levels: Levels) -> None:
        width = round(BAR.width())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)  # no seams at 125 %
        for x in range(width):
            level = round(x / (width - 1) * (LEVELS - 1))
            painter.fillRect(QRectF(BAR.x() + x, BAR.y(), 1, BAR.height()), inks.fills[level])
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(mono_font(Size.SMALL))
        painter.setPen(inks.muted)
        metrics = painter.fontMetrics()
        for tick in levels.scale.ticks:
            x = BAR.x() + levels.scale.place(tick) * (width - 1)
            painter.drawLine(QPointF(x, BAR.bottom()), QPointF(x, BAR.bottom() + 3))
            text = tick_words(levels, tick)
            wide = metrics.horizontalAdvance(text)
            left = min(max(0.0, x - wide / 2), BAR.right() - wide + 4)
            painter.drawText(QPointF(left, BAR.bottom() + 15), text)
        painter.setFont(ui_font(Size.SMALL))
        painter.drawText(QPointF(BAR.right() + 8, BAR.center().y() + 4), unit_words(levels))

    def _paint_kinds(self, painter: QPainter, inks: Inks, levels: Levels) -> None:
        """A swatch and a name for each kind of difference."""
        painter.setFont(ui_font(Size.SMALL))
        x, middle = 0.0, BAR.center().y()
        for kind in Difference:
            level = round(levels.scale.place(float(kind)) * (LEVELS - 1))
            painter.fillRect(QRectF(x, BAR.y() - 1, 16, 11), inks.fills[level])
            painter.setPen(inks.muted)
            name = difference_name(kind)
            painter.drawText(QPointF(x + 22, middle + 4), name)
            x += 22 + painter.fontMetrics().horizontalAdvance(name) + 18

    def _paint_legend(self, painter: QPainter, inks: Inks, levels: Levels) -> None:
        """Hatching and the states' marks with their names, on two lines where one is too short."""
        painter.setFont(ui_font(Size.SMALL))
        metrics = painter.fontMetrics()
        left = BAR.right() + 32 + metrics.horizontalAdvance(unit_words(levels))
        x, middle = left, BAR.center().y()
        inks.fill(painter, QRectF(x, BAR.y() - 1, 16, 11), NOT_CAPTURED)
        text = tr("not judged") if levels.captured else tr("not captured in this trace")
        tone = self._theme.colors.muted if levels.captured else self._theme.colors.warn
        painter.setPen(QColor(tone))
        painter.drawText(QPointF(x + 22, middle + 4), text)
        x += 22 + metrics.horizontalAdvance(text) + 20
        named = [(state, state_name(state)) for state in STATES]
        for state, name in (*named, (None, tr("underlined: changed in this step"))):
            mark = 0 if state is None else GLYPH + 5
            width = mark + metrics.horizontalAdvance(name)
            if x + width > self.width() and x > left:
                x, middle = left, middle + SECOND_LINE
            if state is not None:
                draw_glyph(painter, state, x, middle - GLYPH / 2, inks.text)
            painter.setPen(QPen(inks.muted))
            painter.drawText(QPointF(x + mark, middle + 4), name)
            x += width + 14


def tick_words(levels: Levels, tick: float) -> str:
    """A printed number of the scale; a plus where values above its end share the end."""
    text = f"{tick:.2f}".rstrip("0").rstrip(".") if tick % 1 else f"{tick:.0f}"
    return text + "+" * (levels.scale.open and tick == levels.scale.ticks[-1])


def unit_words(levels: Levels) -> str:
    """What the scale's numbers are in, and what its end is."""
    if levels.fill == "entropy":
        return tr("nat, up to ln V")
    return levels.scale.unit or fill_name(levels.fill).lower()


def captured(levels: Levels) -> str:
    if levels.captured:
        return tr("Hatched where no forward judged the position.")
    return tr("This trace did not capture it: everything is hatched.")
