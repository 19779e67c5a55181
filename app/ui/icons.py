"""The drawn icon set: SVG files in assets/icons, tinted by colour role, sharp at every scale.

It knows files and tinting. It refuses to know where an icon is used.
"""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.backend.files import ASSETS

_SCALES = (1.0, 1.25, 1.5, 2.0)
_INK = "#000000"  # the colour the files are drawn in


@lru_cache(maxsize=256)
def icon(name: str, color: str, size: int = 20) -> QIcon:
    """The icon `name`.svg in `color` (hex), for a control that shows it `size` logical pixels
    large.
    """
    drawing = (ASSETS / "icons" / f"{name}.svg").read_text(encoding="utf-8")
    renderer = QSvgRenderer(QByteArray(drawing.replace(_INK, color).encode()))
    result = QIcon()
    for scale in _SCALES:
        result.addPixmap(_drawn(renderer, size, scale))
    return result


@lru_cache(maxsize=1)
def app_icon() -> QIcon:
    """The window's icon, in its own colours."""
    renderer = QSvgRenderer(str(ASSETS / "icons" / "app.svg"))
    result = QIcon()
    for size in (16, 24, 32, 48, 64, 128, 256):
        result.addPixmap(_drawn(renderer, size, 1.0))
    return result


def _drawn(renderer: QSvgRenderer, size: int, scale: float) -> QPixmap:
    pixels = round(size * scale)
    pixmap = QPixmap(pixels, pixels)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    renderer.render(painter, QRectF(0, 0, pixels, pixels))
    painter.end()
    pixmap.setDevicePixelRatio(scale)
    return pixmap
