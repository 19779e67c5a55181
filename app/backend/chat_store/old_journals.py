"""Takes the journals of earlier versions into the file, once, and leaves them until that is proven.

It knows the journals' folder. A journal is moved aside only after what it says was read back from
the file and is the same; one that cannot be proven stays where it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.backend.chat_store.journal_reader import read_journal
from app.backend.chat_store.store import ChatStore, tree_changes
from app.backend.chat_store.tree import Tree
from app.backend.conversations import Conversation, new_id

log = logging.getLogger("unblur.conversations")
ASIDE = "imported"


def import_journals(store: ChatStore, folder: Path, check: Callable[[], None]) -> int:
    """How many were taken in. `check` is called before each and ends it by raising. Nothing is
    done while the store cannot be written."""
    taken = 0
    for path in sorted(folder.glob("*.jsonl")):
        check()
        if store.problem is not None:
            break
        if not path.is_file():  # a pipe would be waited for
            continue
        try:
            taken += _import(store, path)
        except OSError as error:
            log.warning("journal %s cannot be imported: %s", path.name, error)
    return taken


def _import(store: ChatStore, path: Path) -> bool:
    conversation = read_journal(path)
    if not conversation.messages:
        return False  # nothing that can be read: it is left as it is
    size = path.stat().st_size
    before = store.rows("SELECT bytes FROM imported WHERE journal = ?", (path.name,))
    if (size,) not in before:
        if before:  # an earlier version went on with it: what was taken in stays as it is
            conversation = replace(conversation, id=new_id())
        tree = _chain(conversation)
        leaf = conversation.messages[-1].id
        done = "INSERT OR REPLACE INTO imported VALUES (?, ?, ?)"
        values = (path.name, size, time.time())
        store.change([*tree_changes(conversation, tree, leaf), (done, values)])
        if _kept(store, conversation) != conversation.messages:
            log.error("journal %s was not imported as it is; it stays", path.name)
            return False
        store.sync()
    if store.problem is not None:
        return False
    aside = path.parent / ASIDE
    aside.mkdir(exist_ok=True)
    path.rename(_free(aside / path.name))
    return True


def _free(path: Path) -> Path:
    """A name that nothing has yet."""
    number, free = 2, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def _chain(conversation: Conversation) -> Tree:
    tree, before = Tree(), None
    for message in conversation.messages:
        tree.add(message, before)
        before = message.id
    return tree


def _kept(store: ChatStore, conversation: Conversation) -> tuple[object, ...]:
    return store.tree(conversation.id).path(conversation.messages[-1].id)
