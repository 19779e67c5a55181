"""The conversations' file: every change is in it when the call returns, and is never lost.

It knows transactions, and what to do when the file cannot be written: changes are kept in memory
and go in before the next one. Safe to call from several threads. It refuses to know widgets.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.backend.chat_store.rows import (
    COLUMNS,
    json_value,
    kept_status,
    message_of,
    text_of,
    text_value,
)
from app.backend.chat_store.schema import open_database
from app.backend.chat_store.tree import Tree
from app.backend.conversations import (
    ChatMessage,
    Conversation,
    MessageStatus,
    new_id,
    title_of,
)
from engine.errors import UnblurError

log = logging.getLogger("unblur.conversations")
DELETED_DAYS = 30  # how long a deleted conversation can be had back
Change = tuple[str, tuple[object, ...]]

_BEGIN = "INSERT INTO conversations (id, created, title, pinned) VALUES (?, ?, ?, ?)"
_BEGIN += " ON CONFLICT DO NOTHING"
_MESSAGE = f"""INSERT INTO messages (conversation, {COLUMNS}, time)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (conversation, id) DO UPDATE SET text = excluded.text, status = excluded.status,
        model = excluded.model, reason = excluded.reason, figures = excluded.figures,
        failure = excluded.failure, made = excluded.made"""
_LEAF = "UPDATE conversations SET leaf = ? WHERE id = ?"
_PARTIAL = "UPDATE messages SET text = ? WHERE conversation = ? AND id = ?"
# the first prompt names a conversation that nobody named
_FIRST = """(SELECT text FROM messages WHERE conversation = c.id AND role = 'user'
    ORDER BY number LIMIT 1)"""
_LIST = f"""SELECT id, created, title, pinned, substr({_FIRST}, 1, 2000), deleted
    FROM conversations AS c
    WHERE EXISTS (SELECT 1 FROM messages WHERE conversation = c.id)"""


@dataclass(frozen=True)
class Entry:
    """A conversation in a list. name: a title that a person gave it, "" for none."""

    id: str
    created: float
    title: str
    name: str = ""
    pinned: bool = False


class ChatStore:
    """`problem` is None, or a sentence on why nothing can be kept. `notice`: what happened to the
    file when it was opened, as a sentence, or None."""

    def __init__(self, path: Path, opener: Callable[[Path], sqlite3.Connection] = open_database):
        self.path = path
        self.problem: str | None = None
        self.notice: str | None = None
        self._opener = opener
        self._lock = threading.RLock()
        self._unsaved: list[list[Change]] = []
        self._database: sqlite3.Connection | None = None
        with self._lock:
            self._connected()

    # writing

    def begin(self, conversation: Conversation) -> None:
        self.change([_begin(conversation)])

    def prompt(self, conversation: str, message: ChatMessage, parent: str | None) -> None:
        """A message of the person's, which ends the branch that is shown."""
        self.change([*message_changes(conversation, message, parent)])

    def reply(self, conversation: str, message: ChatMessage, parent: str | None) -> None:
        """An answer was begun: until `answer` comes it counts as cut off. What an earlier try of
        the same message wrote stays until there is something better."""
        self.change([*message_changes(conversation, message, parent)])

    def partial(self, conversation: str, message_id: str, text: str) -> None:
        """The answer so far."""
        self.change([(_PARTIAL, (text_value(text), conversation, message_id))])

    def answer(self, conversation: str, message: ChatMessage, parent: str | None) -> None:
        """How an answer ended."""
        self.change([*message_changes(conversation, message, parent)])

    def show_branch(self, conversation: str, leaf: str) -> None:
        self.change([(_LEAF, (leaf, conversation))])

    def rename(self, conversation: str, name: str) -> None:
        """An empty name gives the first prompt's beginning back."""
        self.change([("UPDATE conversations SET title = ? WHERE id = ?", (name, conversation))])

    def pin(self, conversation: str, pinned: bool) -> None:
        sql = "UPDATE conversations SET pinned = ? WHERE id = ?"
        self.change([(sql, (int(pinned), conversation))])

    def delete(self, conversation: str) -> None:
        """Takes it out of the lists. `restore` brings it back, for DELETED_DAYS."""
        sql = "UPDATE conversations SET deleted = ? WHERE id = ?"
        self.change([(sql, (time.time(), conversation))])

    def restore(self, conversation: str) -> None:
        self.change([("UPDATE conversations SET deleted = NULL WHERE id = ?", (conversation,))])

    def purge(self, now: float) -> None:
        """Removes what was deleted more than DELETED_DAYS ago, for good."""
        before = now - DELETED_DAYS * 86400
        self.change([("DELETE FROM conversations WHERE deleted < ?", (before,))])

    def change(self, changes: Sequence[Change]) -> None:
        """All of them or none, after what could not be written before. In memory if need be."""
        with self._lock:
            self._unsaved.append(list(changes))
            database = self._connected()
            if database is None:
                return
            try:
                database.execute("BEGIN IMMEDIATE")
                for each in self._unsaved:
                    for sql, values in each:
                        database.execute(sql, values)
                database.execute("COMMIT")
            except sqlite3.Error as error:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                self._failed(str(error))
            else:
                self._unsaved.clear()
                self.problem = None

    def sync(self) -> None:
        """Waits until the disk has everything (power loss, not only a kill). Slow: not for the
        GUI thread, which may write meanwhile."""
        if self._database is None:
            return  # `problem` says why
        log_file = self.path.with_name(f"{self.path.name}-wal")
        try:
            # opened for writing: Windows flushes no other file
            with open(log_file, "r+b") as stream:
                os.fsync(stream.fileno())
        except FileNotFoundError:
            return  # everything is in the main file, which SQLite has synced
        except OSError as error:
            with self._lock:
                self._failed(error.strerror or str(error))

    # reading

    def entries(self) -> list[Entry]:
        """All that are not deleted: pinned ones first, then the newest."""
        sql = f"{_LIST} AND deleted IS NULL ORDER BY pinned DESC, created DESC, rowid DESC"
        return [_entry(row) for row in self.rows(sql)]

    def deleted(self) -> list[Entry]:
        """What can be restored, the last deleted first."""
        return [_entry(row) for row in self.rows(f"{_LIST} AND deleted > 0 ORDER BY deleted DESC")]

    def tree(self, conversation: str) -> Tree:
        """Every message of a conversation."""
        found = Tree()
        sql = f"SELECT {COLUMNS} FROM messages WHERE conversation = ? ORDER BY number"
        for row in self.rows(sql, (conversation,)):
            found.add(*message_of(row))
        return found

    def open(self, conversation: str) -> Conversation | None:
        """The branch that was shown last; None when there is no such conversation. A prompt whose
        answer was never begun gets a place for one, so that it can be asked for again."""
        sql = "SELECT created, title, pinned, leaf FROM conversations WHERE id = ?"
        for created, name, pinned, leaf in self.rows(sql, (conversation,)):
            found = self.tree(conversation)
            path = found.path(leaf if isinstance(leaf, str) else None)
            siblings = found.siblings(path)
            if path and path[-1].role == "user":
                missing = ChatMessage(new_id(), "assistant", "", status=MessageStatus.INTERRUPTED)
                path = (*path, missing)
            moment = created if isinstance(created, float) else 0.0
            return Conversation(conversation, moment, path, siblings, text_of(name), bool(pinned))
        return None

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """What a query gives; nothing, with a `problem`, when the file cannot be read."""
        with self._lock:
            database = self._connected()
            if database is None:
                return []
            try:
                return database.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                self._failed(str(error))
                return []

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _connected(self) -> sqlite3.Connection | None:
        if self._database is not None:
            return self._database
        try:
            try:
                self._database = self._opener(self.path)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # locked, full, unwritable
                    raise
                self._set_aside(error)
                self._database = self._opener(self.path)
        except UnblurError as error:
            self.problem = f"{error.message} {error.action}"
        except (sqlite3.Error, OSError) as error:
            self._failed(getattr(error, "strerror", None) or str(error))
        return self._database

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """A damaged file is kept beside the new one: it is somebody's work."""
        aside = self.path.with_name(f"{self.path.name}.damaged-{int(time.time())}")
        for suffix in ("", "-wal", "-shm"):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        self.notice = (
            f"The file of your conversations was damaged ({error}); a new one was begun. "
            f"The damaged file is kept as {aside.name}."
        )
        log.error("%s", self.notice)

    def _failed(self, reason: str) -> None:
        self.problem = (
            f"Conversations cannot be saved in {self.path.parent} ({reason}). "
            "They are kept until the window is closed."
        )
        log.warning("conversations: %s", reason)


def _begin(conversation: Conversation) -> Change:
    return _BEGIN, (
        conversation.id,
        float(conversation.created),
        conversation.name,
        int(conversation.pinned),
    )


def message_changes(
    conversation: str, message: ChatMessage, parent: str | None
) -> tuple[Change, Change]:
    """A message as it stands, new or again, and the branch it ends."""
    values = (
        conversation,
        message.id,
        parent,
        message.role,
        text_value(message.text),
        kept_status(message),
        message.model,
        message.reason,
        json_value(message.figures),
        json_value(message.failure),
        json_value(message.made),
        time.time(),
    )
    return (_MESSAGE, values), (_LEAF, (message.id, conversation))


def tree_changes(conversation: Conversation, tree: Tree, leaf: str | None) -> list[Change]:
    """A whole conversation, as it comes from a journal or an import."""
    changes = [_begin(conversation)]
    for identity, message in tree.messages.items():
        changes.append(message_changes(conversation.id, message, tree.parents[identity])[0])
    changes.append((_LEAF, (leaf, conversation.id)))
    return changes


def _entry(row: tuple[object, ...]) -> Entry:
    identity, created, name, pinned, first, _ = row
    moment = created if isinstance(created, float) else 0.0
    title = text_of(name) or title_of(text_of(first)) or "New chat"
    return Entry(str(identity), moment, title, text_of(name), bool(pinned))
