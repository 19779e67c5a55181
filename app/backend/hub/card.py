"""A model card as text: Markdown of words alone, whoever wrote it.

It knows Markdown and HTML as far as they could reach the network or draw as something else. It
refuses to render. Every step takes time in proportion to the text: a card must not hold others up.
"""

from __future__ import annotations

import re

LETTERS, LINES, CELLS = 40_000, 1500, 2000  # each some 0.1 s of laying out at worst
_FRONT = re.compile(r"\A---[ \t]*\n.*?\n---[ \t]*(?:\n|\Z)", re.DOTALL)
# what is inside stops at another opening, so that no text is read twice
_IMAGE = re.compile(r"!+\[([^\[\]]*)\](?:\([^()\n]*\)|\[([^\[\]]*)\])")
_IMAGE_LEFT = re.compile(r"!+\[")  # with brackets inside: a link, which opens on a press alone
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9-]*(?=[\s/>])[^<>]*>")
_TAG_LEFT = re.compile(r"<(?=[A-Za-z/!?])(?!https?://|mailto:)")
_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)


def text_only(card: str) -> str:
    """A model card without what could reach the network or draw as something else. Code is left as
    it is."""
    card = _FRONT.sub("", card.replace("\r\n", "\n"), count=1)
    pieces = _CODE.split(card)
    for index in range(0, len(pieces), 2):
        plain = _TAG.sub("", _without_comments(pieces[index]))
        plain = _TAG_LEFT.sub(r"\\<", plain)  # tags inside tags: shown as typed
        plain = _IMAGE.sub(lambda m: f"[{m[1] or m[2] or 'image'}]", plain)
        pieces[index] = _IMAGE_LEFT.sub("[", plain)
    return re.sub(r"\n{3,}", "\n\n", "".join(pieces)).strip()


def beginning(text: str) -> str:
    """The part that a window lays out at once, in whole lines: lists and tables take far longer
    than words do."""
    letters = lines = cells = end = 0
    for line in text.splitlines(keepends=True):
        letters, lines, cells = letters + len(line), lines + 1, cells + line.count("|")
        if letters > LETTERS or lines > LINES or cells > CELLS:
            return text[:end] or text[:LETTERS]
        end += len(line)
    return text


def _without_comments(text: str) -> str:
    kept: list[str] = []
    position = 0
    while (begin := text.find("<!--", position)) >= 0:
        end = text.find("-->", begin + 4)
        if end < 0:
            break
        kept.append(text[position:begin])
        position = end + 3
    return "".join((*kept, text[position:]))
