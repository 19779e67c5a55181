"""Tooltips that show text as it is.

It knows when Qt would read a tooltip as HTML. It refuses to know what the text says.
"""

from __future__ import annotations

import html

LONGEST = 1000  # characters: a prompt can be a book


def as_typed(text: str) -> str:
    """A tooltip that shows the characters of `text`, also where they look like HTML: what a person
    or a folder's name says is never markup, and loads nothing. A longer one ends in an ellipsis.
    """
    if len(text) > LONGEST:
        text = text[:LONGEST].rstrip() + "…"
    if not set(text) & set("<&"):  # nothing Qt could read as HTML
        return text
    return f'<p style="white-space: pre-wrap">{html.escape(text)}</p>'
