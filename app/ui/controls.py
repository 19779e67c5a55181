"""Small controls that a style sheet cannot draw.

It knows painting. It refuses to know what a control is for.
"""

from __future__ import annotations

from PySide6.QtCore import QPointF
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QCheckBox, QStyle, QStyleOptionButton, QWidget

from app.ui.theme import Theme


class CheckBox(QCheckBox):
    """A check box whose mark is drawn in the theme's colour, on the box the style sheet draws."""

    def __init__(self, theme: Theme, text: str, parent: QWidget | None = None) -> None:
        super().__init__(text, parent)
        self._theme = theme

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self.isChecked():
            return
        option = QStyleOptionButton()
        self.initStyleOption(option)
        box = self.style().subElementRect(QStyle.SubElement.SE_CheckBoxIndicator, option, self)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._theme.colors.on_accent), 1.5))
        x, y, w, h = box.x(), box.y(), box.width(), box.height()
        painter.drawPolyline(
            [
                QPointF(x + 0.26 * w, y + 0.52 * h),
                QPointF(x + 0.44 * w, y + 0.70 * h),
                QPointF(x + 0.76 * w, y + 0.32 * h),
            ]
        )
        painter.end()
