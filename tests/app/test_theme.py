"""Colours keep their contrast, follow the system, and live in one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFontInfo, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from app.ui.canvas import BAR_SHARE, DRAFT_BLUR
from app.ui.icons import app_icon, icon
from app.ui.stylesheet import style_sheet
from app.ui.theme import (
    DARK,
    LIGHT,
    SURFACES,
    TEXT_ROLES,
    Colors,
    Size,
    Theme,
    contrast,
    load_fonts,
    mixed,
    mono_font,
    ui_font,
)

SCHEMES = {"light": LIGHT, "dark": DARK}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("role", TEXT_ROLES)
@pytest.mark.parametrize("surface", SURFACES)
def test_every_text_role_is_readable_on_every_surface(scheme: str, role: str, surface: str) -> None:
    colors = SCHEMES[scheme]
    assert contrast(getattr(colors, role), getattr(colors, surface)) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_on_accent_and_on_inline_code_is_readable(scheme: str) -> None:
    colors = SCHEMES[scheme]
    assert contrast(colors.on_accent, colors.accent) >= 4.5
    assert contrast(colors.text, colors.line) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_draft_is_readable_on_what_is_left_of_its_bar(scheme: str) -> None:
    colors = SCHEMES[scheme]
    bar = mixed(colors.masked, colors.window, BAR_SHARE * DRAFT_BLUR).name()
    assert contrast(colors.draft, bar) >= 4.5


def test_contrast_follows_wcag() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21.0)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


def test_the_system_scheme_is_followed_while_running(
    qapp: QApplication,
) -> None:
    """The offscreen platform has no scheme of its own: its signal stands for the system."""
    theme = Theme(qapp, "system")
    changes: list[Colors] = []
    theme.changed.connect(lambda: changes.append(theme.colors))
    hints = QGuiApplication.styleHints()
    hints.colorSchemeChanged.emit(Qt.ColorScheme.Dark)
    assert theme.colors is DARK
    assert qapp.palette().color(QPalette.ColorRole.Window) == QColor(DARK.window)
    hints.colorSchemeChanged.emit(Qt.ColorScheme.Light)
    assert theme.colors is LIGHT
    assert changes == [DARK, LIGHT]
    theme.deleteLater()


def test_a_persons_choice_overrides_the_system(qapp: QApplication) -> None:
    theme = Theme(qapp, "dark")
    assert theme.colors is DARK
    theme.choose("light")
    QGuiApplication.styleHints().colorSchemeChanged.emit(Qt.ColorScheme.Dark)
    assert theme.colors is LIGHT
    theme.choose("system")
    theme.deleteLater()


def test_the_bundled_fonts_are_the_ones_in_use(qapp: QApplication) -> None:
    assert load_fonts() == []
    assert QFontInfo(ui_font()).family() == "Inter"
    assert QFontInfo(mono_font()).family() == "JetBrains Mono"
    assert QFontInfo(mono_font()).fixedPitch()
    assert {Size.SMALL, Size.BASE, Size.BODY, Size.TITLE, Size.DISPLAY} == {11, 13, 15, 20, 28}


def test_fonts_come_with_their_licences_and_stay_small(repo_root: Path) -> None:
    fonts = repo_root / "assets" / "fonts"
    for family in ("Inter", "JetBrainsMono"):
        assert "SIL OPEN FONT LICENSE" in (fonts / f"{family}-OFL.txt").read_text("utf-8")
    assert sum(path.stat().st_size for path in fonts.iterdir()) < 3_000_000


def test_colours_sizes_and_fonts_are_named_in_one_file(repo_root: Path) -> None:
    """A hex colour anywhere but in palette.py would not follow the scheme."""
    found = [
        f"{path.name}: {match}"
        for path in sorted((repo_root / "app").rglob("*.py"))
        if path.name not in ("palette.py", "icons.py")
        for match in re.findall(r"[\"' ]#[0-9A-Fa-f]{6}\b", path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_style_sheet_has_no_hole(scheme: str) -> None:
    sheet = style_sheet(SCHEMES[scheme])
    assert "$" not in sheet
    assert SCHEMES[scheme].accent in sheet


def test_style_sheet_uses_only_the_sizes_of_the_scale(repo_root: Path) -> None:
    sheet = style_sheet(LIGHT)
    assert {int(n) for n in re.findall(r"font-size: (\d+)px", sheet)} <= {11, 13, 15, 20, 28}


def test_icons_are_drawn_in_one_stroke_and_tinted(qapp: QApplication, repo_root: Path) -> None:
    for path in (repo_root / "assets" / "icons").glob("*.svg"):
        if path.stem == "app":
            continue
        assert 'stroke-width="1.5"' in path.read_text("utf-8"), path.name
        image = icon(path.stem, LIGHT.bad, 24).pixmap(24, 24).toImage()
        places = [(x, y) for x in range(image.width()) for y in range(image.height())]
        inks = [image.pixelColor(x, y) for x, y in places if image.pixelColor(x, y).alpha() > 128]
        assert inks, path.name
        tint = QColor(LIGHT.bad)
        assert all(abs(ink.red() - tint.red()) + abs(ink.blue() - tint.blue()) < 8 for ink in inks)


def test_the_app_icon_exists_in_every_size(qapp: QApplication) -> None:
    assert {16, 32, 64, 256} <= {size.width() for size in app_icon().availableSizes()}
