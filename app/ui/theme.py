"""The visual language in one place: colours by role, type sizes, spaces, radii, and the style sheet
built from them.

It knows values and how they reach Qt (QPalette, fonts, QSS), and follows the system's light or dark
scheme unless a person chose one. It refuses to know widgets beyond their names. Its colours are
those of `app.backend.palette`; no other file holds a size or a font.
"""

from __future__ import annotations

import logging

from PySide6.QtCore import QObject, Qt, Signal, Slot
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontDatabase,
    QFontMetricsF,
    QGuiApplication,
    QPalette,
)
from PySide6.QtWidgets import QApplication

from app.backend.files import ASSETS
from app.backend.palette import DARK, LIGHT, RAMPS, Colors
from app.ui.stylesheet import style_sheet

log = logging.getLogger("unblur.theme")


TEXT_ROLES = ("text", "muted", "accent", "ok", "warn", "bad", "draft", "edited", "masked")
SURFACES = ("window", "surface", "raised")


class Size:
    """Type in logical pixels: these five and no others."""

    SMALL, BASE, BODY, TITLE, DISPLAY = 11, 13, 15, 20, 28


class Space:
    XS, S, M, L, XL, XXL = 4, 8, 12, 16, 24, 32


class Shape:
    """Corner radii, control height, widths of the answer column, and the one fade (logical pixels,
    ms).
    """

    CONTROL_RADIUS = 6
    CARD_RADIUS = 10
    CONTROL_HEIGHT = 32
    COLUMN = 680
    ANSWER_CHARACTERS = 76
    CODE_LINE_HEIGHT = 24
    SCROLL_BAR = 12
    FADE_MS = 160


# letters as often as English has them, for the width of an average character
_PROSE = "The answer was written in blocks, and each of them came into focus in a few steps. "
UI_FAMILY = "Inter"
MONO_FAMILY = "JetBrains Mono"
FONT_FILES = (
    "Inter-Regular.otf",
    "Inter-Italic.otf",
    "Inter-SemiBold.otf",
    "Inter-Bold.otf",
    "JetBrainsMono-Regular.ttf",
    "JetBrainsMono-Bold.ttf",
    "JetBrainsMono-LightItalic.ttf",
    "JetBrainsMono-Italic.ttf",
    "JetBrainsMono-MediumItalic.ttf",
    "JetBrainsMono-SemiBoldItalic.ttf",
)


def load_fonts() -> list[str]:
    """Registers the bundled fonts; the names of files that could not be loaded (then the system's
    stand in).
    """
    missing = [
        name
        for name in FONT_FILES
        if QFontDatabase.addApplicationFont(str(ASSETS / "fonts" / name)) < 0
    ]
    if missing:
        log.warning("bundled fonts missing: %s", ", ".join(missing))
    return missing


def ui_font(size: int = Size.BASE, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    font = QFont(UI_FAMILY)
    font.setPixelSize(size)
    font.setWeight(weight)
    return font


def mono_font(
    size: int = Size.BASE, weight: QFont.Weight = QFont.Weight.Normal, italic: bool = False
) -> QFont:
    """Tokens, code and numbers. Ligatures are off: a token is drawn as its own characters."""
    font = QFont(MONO_FAMILY)
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setPixelSize(size)
    font.setWeight(weight)
    font.setItalic(italic)
    font.setFeature(QFont.Tag("liga"), 0)
    font.setFeature(QFont.Tag("calt"), 0)
    return font


def answer_widths() -> tuple[int, int]:
    """Widths of `ANSWER_CHARACTERS` of code and of prose, in logical pixels; prose is narrower."""
    code = QFontMetricsF(mono_font(Size.BASE)).horizontalAdvance("0")
    prose = QFontMetricsF(ui_font(Size.BODY)).horizontalAdvance(_PROSE) / len(_PROSE)
    return round(code * Shape.ANSWER_CHARACTERS), round(prose * Shape.ANSWER_CHARACTERS)


def mixed(over: str, under: str, share: float) -> QColor:
    """`share` (0..1) of the colour `over` on top of `under`."""
    a, b = QColor(over), QColor(under)
    return QColor.fromRgbF(
        a.redF() * share + b.redF() * (1 - share),
        a.greenF() * share + b.greenF() * (1 - share),
        a.blueF() * share + b.blueF() * (1 - share),
    )


def ramp_color(name: str, share: float) -> QColor:
    """The colour of the heat scale `name` (of `RAMPS`) at `share`, 0..1."""
    stops = RAMPS[name]
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    index = min(int(place), len(stops) - 2)
    return mixed(stops[index + 1], stops[index], place - index)


def ink_on(color: QColor) -> str:
    """The colour of text on `color`, one of two: its contrast is at least 4.5 on any colour."""
    dark, light = LIGHT.text, LIGHT.surface
    name = color.name()
    return max((dark, light), key=lambda ink: contrast(ink, name))


def contrast(a: str, b: str) -> float:
    """WCAG 2.2 contrast ratio of two hex colours, 1..21."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(value: str) -> float:
    color = QColor(value)
    parts = (color.redF(), color.greenF(), color.blueF())
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class Theme(QObject):
    """The colours in force. `changed` is emitted after palette and style sheet are applied."""

    changed = Signal()

    def __init__(self, app: QApplication, appearance: str = "system") -> None:
        super().__init__(app)
        self._app = app
        self.appearance = appearance
        self.reduce_motion = False
        self.colors = LIGHT
        app.setStyle("Fusion")
        app.setFont(ui_font())
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._follow)
        self.choose(appearance)

    @property
    def dark(self) -> bool:
        return self.colors is DARK

    def choose(self, appearance: str) -> None:
        """Takes "system", "light" or "dark". The choice also reaches native dialogs."""
        self.appearance = appearance
        hints = QGuiApplication.styleHints()
        wanted = {"light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}.get(appearance)
        if wanted is None:
            hints.unsetColorScheme()
        else:
            hints.setColorScheme(wanted)
        self._follow(hints.colorScheme())

    @Slot(Qt.ColorScheme)
    def _follow(self, scheme: Qt.ColorScheme) -> None:
        dark = self.appearance == "dark" or (
            self.appearance == "system" and scheme == Qt.ColorScheme.Dark
        )
        self._apply(DARK if dark else LIGHT)

    def _apply(self, colors: Colors) -> None:
        self.colors = colors
        self._app.setPalette(palette_of(colors))
        self._app.setStyleSheet(style_sheet(colors))
        self.changed.emit()


def palette_of(colors: Colors) -> QPalette:
    """The QPalette of a scheme, every role set, so that no widget falls back to a system colour."""
    palette = QPalette()
    role = QPalette.ColorRole
    for target, value in (
        (role.Window, colors.window),
        (role.WindowText, colors.text),
        (role.Base, colors.surface),
        (role.AlternateBase, colors.window),
        (role.Text, colors.text),
        (role.Button, colors.surface),
        (role.ButtonText, colors.text),
        (role.BrightText, colors.bad),
        (role.PlaceholderText, colors.muted),
        (role.ToolTipBase, colors.raised),
        (role.ToolTipText, colors.text),
        (role.Highlight, colors.accent),
        (role.HighlightedText, colors.on_accent),
        (role.Link, colors.accent),
        (role.LinkVisited, colors.accent),
        (role.Accent, colors.accent),
        (role.Light, colors.raised),
        (role.Midlight, colors.line),
        (role.Mid, colors.line),
        (role.Dark, colors.line),
        (role.Shadow, colors.line),
    ):
        palette.setColor(target, QColor(value))
    disabled = QPalette.ColorGroup.Disabled
    for target in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(disabled, target, QColor(colors.muted))
    return palette
