"""Finds conversations by what was said in them, in any script and by any part of a word.

It knows FTS5's trigram index, which answers for three characters and more; shorter words are looked
for one message after the other. Slow on a large file: not for the GUI thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.backend.chat_store.rows import text_of
from app.backend.chat_store.store import ChatStore

AROUND = 40  # characters of a passage before and after what was found
MOST = 200


@dataclass(frozen=True)
class Hit:
    """conversation: its id. passage: one line of text around what was found, "" when only the
    title has it."""

    conversation: str
    passage: str


def search(store: ChatStore, text: str) -> list[Hit]:
    """Conversations in which one message, or the title, has every word of `text`; the latest
    message that does. Pinned ones first, then the newest."""
    words = text.split()
    if not words:
        return []
    long = [word for word in words if len(word) >= 3]
    short = [word for word in words if len(word) < 3]
    clauses: list[str] = []
    values: list[object] = []
    if long:
        clauses.append("m.number IN (SELECT rowid FROM search WHERE search MATCH ?)")
        values.append(" AND ".join(f'"{_quoted(word)}"' for word in long))
    for word in short:
        clauses.append("m.text LIKE ? ESCAPE '\\'")
        values.append(f"%{_escaped(word)}%")
    titled = " AND ".join("c.title LIKE ? ESCAPE '\\'" for _ in words)
    sql = f"""
        SELECT c.id, (SELECT m.text FROM messages AS m WHERE m.conversation = c.id
            AND {" AND ".join(clauses)} ORDER BY m.number DESC LIMIT 1) AS found
        FROM conversations AS c
        WHERE c.deleted IS NULL AND (found IS NOT NULL OR (c.title <> '' AND {titled}))
        ORDER BY c.pinned DESC, c.created DESC, c.rowid DESC LIMIT {MOST}"""
    values += [f"%{_escaped(word)}%" for word in words]
    rows = store.rows(sql, tuple(values))
    return [Hit(str(row[0]), passage(text_of(row[1]), words)) for row in rows]


def passage(text: str, words: list[str]) -> str:
    """One line of `text` around the first of `words` in it."""
    low = text.lower()
    found = [at for word in words if (at := low.find(word.lower())) >= 0]
    at = min(found, default=0)
    begin, end = max(0, at - AROUND), at + 2 * AROUND
    line = " ".join(text[begin:end].split())
    return f"{'…' if begin and line else ''}{line}{'…' if end < len(text) else ''}"


def _quoted(word: str) -> str:
    return word.replace('"', '""').replace("\0", "")


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("\0", "")
