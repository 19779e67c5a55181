"""A conversation's file as a kill in the middle of an answer leaves it."""

from __future__ import annotations

import sqlite3

from pytestqt.qtbot import QtBot

from app.backend.files import AppFolders
from app.desktop import Desktop


def cut_off(qtbot: QtBot, desktop: Desktop) -> bytes:
    """The file of a window's conversations, once a block of the answer is in it."""
    store = desktop.chat._store
    written = "SELECT 1 FROM messages WHERE role = 'assistant' AND text <> ''"
    qtbot.waitUntil(lambda: bool(store.rows(written)), timeout=3000)
    copy = sqlite3.connect(":memory:")
    with store._lock:
        assert store._database is not None
        store._database.backup(copy)
    data = copy.serialize()
    copy.close()
    return data


def leave(folders: AppFolders, data: bytes) -> None:
    """Puts the file back, as it would have been after a kill."""
    for suffix in ("-wal", "-shm"):
        folders.conversations.with_name(folders.conversations.name + suffix).unlink(missing_ok=True)
    folders.conversations.write_bytes(data)
