"""Text in pictures: the bundled fonts, one character a column, and what stands in for characters
that they do not have.

Knows fonts and columns. Refuses to know tokens.
"""

from __future__ import annotations

import unicodedata
from functools import cache

from PIL import Image, ImageDraw, ImageFont

from app.backend.files import ASSETS

TOKEN_PX = 16
LABEL_PX = 12
COLUMN = 10  # px of one column of tokens at TOKEN_PX
LINE = 28  # px of a line of tokens
# For characters that the bundled font lacks: files that systems come with, by name.
WIDE_FONTS = (
    "NotoSansCJK-Regular.ttc", "NotoSansSC-Regular.otf", "msyh.ttc", "PingFang.ttc",
    "Hiragino Sans GB.ttc", "DroidSansFallbackFull.ttf", "DejaVuSans.ttf",
)  # fmt: skip
Font = ImageFont.FreeTypeFont


@cache
def mono(size: int) -> Font:
    return ImageFont.truetype(str(ASSETS / "fonts" / "JetBrainsMono-Regular.ttf"), size)


@cache
def label(size: int = LABEL_PX) -> Font:
    return ImageFont.truetype(str(ASSETS / "fonts" / "Inter-Regular.otf"), size)


@cache
def _others(size: int) -> tuple[Font, ...]:
    found = []
    for name in WIDE_FONTS:
        try:
            found.append(ImageFont.truetype(name, size))
        except OSError:  # this system has none of that name
            continue
    return tuple(found)


def columns(text: str) -> int:
    """How many columns a text takes: two for a wide character, none for one that combines."""
    return sum(_width(character) for character in text)


@cache
def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def visible(text: str) -> str:
    """A token's text as it is drawn: line ends and tabs as signs, other controls as a dot."""
    signs = {"\n": "↵", "\r": "↵", "\t": "→"}
    return "".join(
        signs.get(c, c if c == " " or c.isprintable() or _width(c) == 0 else "·") for c in text
    )


@cache
def _font_for(character: str, size: int) -> Font:
    """The first font that draws it; where none does, the bundled one, whose box says so."""
    for font in (mono(size), *_others(size)):
        if _drawn(font, character, size) != _drawn(font, "\uffff", size):
            return font
    return mono(size)


@cache
def _drawn(font: Font, character: str, size: int) -> bytes:
    image = Image.new("L", (2 * size, 2 * size))
    ImageDraw.Draw(image).text((0, 1.5 * size), character, fill=255, font=font, anchor="ls")
    return image.tobytes()


def draw_columns(text: str, height: int = LINE, size: int = TOKEN_PX) -> Image.Image:
    """Coverage of a line of text, mode L, columns(text) x COLUMN px wide."""
    image = Image.new("L", (max(1, columns(text) * COLUMN), height))
    draw = ImageDraw.Draw(image)
    x = 0
    for character in text:
        width = _width(character)
        if character != " " and character.isprintable():
            at = max(0, x - COLUMN) if width == 0 else x
            font = _font_for(character, size)
            draw.text((at, height * 0.72), character, fill=255, font=font, anchor="ls")
        x += width * COLUMN
    return image
