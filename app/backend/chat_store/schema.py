"""The file's schema, version by version, and how a file is opened.

It knows SQL. `MIGRATIONS[n]` makes version n + 1 of version n and is never changed once released: a
person's file may be of any of them. It refuses to touch a file that a newer Unblur wrote.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from engine.errors import UnblurError

MIGRATIONS = (
    # 1: conversations are trees of messages; `leaf` is the end of the branch that is shown
    """
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        created REAL NOT NULL,
        title TEXT NOT NULL DEFAULT '',
        leaf TEXT,
        deleted REAL
    ) STRICT;
    CREATE TABLE messages (
        number INTEGER PRIMARY KEY,
        conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        id TEXT NOT NULL,
        parent TEXT,
        role TEXT NOT NULL,
        text ANY NOT NULL,
        status TEXT NOT NULL,
        model TEXT NOT NULL DEFAULT '',
        reason TEXT NOT NULL DEFAULT '',
        figures TEXT,
        failure TEXT,
        made TEXT,
        time REAL NOT NULL,
        UNIQUE (conversation, id)
    ) STRICT;
    CREATE TABLE imported (
        journal TEXT PRIMARY KEY,
        bytes INTEGER NOT NULL,
        time REAL NOT NULL
    ) STRICT;
    """,
    # 2: search for any part of a word, in any script; a growing answer is indexed once it ended
    """
    ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
    CREATE VIRTUAL TABLE search USING fts5 (text, tokenize = 'trigram');
    INSERT INTO search (rowid, text)
        SELECT number, text FROM messages WHERE typeof(text) = 'text';
    CREATE TRIGGER message_added AFTER INSERT ON messages
        WHEN new.status <> 'interrupted' AND typeof(new.text) = 'text' BEGIN
        INSERT INTO search (rowid, text) VALUES (new.number, new.text);
    END;
    CREATE TRIGGER message_ended AFTER UPDATE OF text, status ON messages
        WHEN new.status <> 'interrupted' BEGIN
        DELETE FROM search WHERE rowid = old.number;
        INSERT INTO search (rowid, text)
            SELECT new.number, new.text WHERE typeof(new.text) = 'text';
    END;
    CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
        DELETE FROM search WHERE rowid = old.number;
    END;
    """,
)
VERSION = len(MIGRATIONS)
# answers that a kill cut off are found, too
INDEX_INTERRUPTED = """
    INSERT INTO search (rowid, text)
        SELECT number, text FROM messages
        WHERE status = 'interrupted' AND typeof(text) = 'text' AND text <> ''
            AND number NOT IN (SELECT rowid FROM search)
"""
WAIT_SECONDS = 1.0  # for another process that is writing


def open_database(path: Path) -> sqlite3.Connection:
    """The file, made or migrated to VERSION. What is committed survives a kill at any moment (WAL).
    Raises UnblurError `chats.newer` for a file of a newer Unblur, sqlite3.Error and OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(
        path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        found = int(database.execute("PRAGMA user_version").fetchone()[0])
        if found > VERSION:
            raise UnblurError(
                "chats.newer",
                f"Conversations in {path} were written by a newer Unblur.",
                "They are left alone. Install the newer version to see them.",
            )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")  # a power failure: see ChatStore.sync
        database.execute("PRAGMA foreign_keys = ON")
        for version in range(found, VERSION):
            migrate(database, version)
        database.execute(INDEX_INTERRUPTED)
    except BaseException:
        database.close()
        raise
    return database


def migrate(database: sqlite3.Connection, version: int) -> None:
    """From `version` to the next, all of it or nothing."""
    script = f"BEGIN IMMEDIATE; {MIGRATIONS[version]} PRAGMA user_version = {version + 1}; COMMIT;"
    try:
        database.executescript(script)
    except sqlite3.Error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
