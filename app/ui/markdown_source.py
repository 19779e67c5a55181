"""A model's Markdown made ready for Qt's reader, so that its lines stay lines.

Models write one step a line and indent JSON without a fence; Markdown would join those lines into
one paragraph. It knows lines, fences, lists and tables. It refuses to change what is copied: only
the picture is made from its result.
"""

from __future__ import annotations

import re

TAB_STAND_IN = "\ue009"  # private use: Qt's reader would turn tabs in code into spaces
LINE_SEPARATOR = "\N{LINE SEPARATOR}"  # Qt's line break inside a paragraph
_FENCE = re.compile(r" {0,3}(```|~~~)")
# what begins something else than a paragraph: list, heading, quote, rule, table, indented code
_OTHER = re.compile(r" {0,3}(?:[-*+]\s|\d{1,9}[.)]\s|#{1,6}\s|>|\||([-*_] *){3,}$|[-=:| ]+$)|.*\|")


def for_display(source: str) -> str:
    """`source` with the lines of each paragraph held apart by line separators, indentation kept.

    Fenced and indented code, tables, headings, quotes and the first lines of list items are left as
    they are, but for tabs in fenced code, which become `TAB_STAND_IN`.
    """
    shown: list[str] = []
    fenced = False
    open_paragraph = False  # the last line shown is a paragraph's, and may be continued
    for line in source.split("\n"):
        if fenced:
            line = line.replace("\t", TAB_STAND_IN)
        if _FENCE.match(line):
            fenced, open_paragraph = not fenced, False
        elif fenced or not line.strip():
            open_paragraph = False
        elif open_paragraph and not _OTHER.match(line):
            shown[-1] += LINE_SEPARATOR + line.rstrip()
            continue
        else:
            open_paragraph = not _OTHER.match(line) and not line.startswith("    ")
        shown.append(line)
    return "\n".join(shown)
