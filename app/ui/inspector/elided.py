"""A label of one line that gives way: what does not fit is cut, and all of it is in the tooltip.

It knows eliding. It refuses to know what it says.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.ui.tips import as_typed

LONGEST = 400  # characters worth measuring


class ElidedLabel(QLabel):
    """widest: px it asks for at most."""

    def __init__(self, widest: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._widest = widest
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)

    def say(self, text: str) -> None:
        line = " ".join(text[:LONGEST].split())
        if line != self.text():
            self.setText(line)
            self.setToolTip(as_typed(text))

    def sizeHint(self) -> QSize:
        size = super().sizeHint()
        return QSize(min(size.width(), self._widest), size.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(min(48, self.sizeHint().width()), super().minimumSizeHint().height())

    def paintEvent(self, arg__1: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        text = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, self.width())
        flags = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        painter.drawText(self.rect(), flags, text)
        painter.end()
