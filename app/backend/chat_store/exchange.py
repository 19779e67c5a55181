"""Conversations out of the file and back: Markdown for people, JSON without loss.

The JSON is `{"format": "unblur.conversations", "version": 1, "conversations": [...]}`; each has its
messages with all branches, in the order they were written. It refuses to take in half a file: what
is imported is checked whole before any of it is written.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from app.backend.chat_store.rows import ROLES, failure_of, figures_of, made_of, number, string
from app.backend.chat_store.store import ChatStore, tree_changes
from app.backend.chat_store.tree import Tree
from app.backend.conversations import ChatMessage, Conversation, MessageStatus, new_id
from app.backend.files import write_atomically
from engine.errors import UnblurError

FORMAT, VERSION = "unblur.conversations", 1
MOST_BYTES = 512 * 2**20
ENDS = {MessageStatus.DONE, MessageStatus.FAILED, MessageStatus.INTERRUPTED}
Whole = tuple[Conversation, Tree, str | None]


def read_whole(store: ChatStore, conversation: str) -> Whole | None:
    """A conversation with all its branches and the id of the message that ends the shown one."""
    sql = "SELECT created, title, pinned, leaf FROM conversations WHERE id = ?"
    for created, name, pinned, leaf in store.rows(sql, (conversation,)):
        head = Conversation(
            conversation,
            created if isinstance(created, float) else 0.0,
            name=str(name),
            pinned=bool(pinned),
        )
        return head, store.tree(conversation), leaf if isinstance(leaf, str) else None
    return None


def export(store: ChatStore, conversations: Sequence[str], path: Path) -> int:
    """Writes them to `path`: as Markdown if its name ends in .md, else as JSON. Returns how many.
    Raises UnblurError `chats.export` when it cannot be written."""
    wholes = [whole for each in conversations if (whole := read_whole(store, each)) is not None]
    markdown = path.suffix.lower() in (".md", ".markdown")
    text = to_markdown(wholes) if markdown else to_json(wholes)
    try:
        # Markdown cannot hold half of a surrogate pair; JSON spells it out
        write_atomically(path, text.encode("utf-8", "replace").decode("utf-8"))
    except OSError as error:
        raise UnblurError(
            "chats.export",
            f"{path} cannot be written ({error.strerror or error}).",
            "Choose another folder, or free space.",
        ) from error
    return len(wholes)


def to_json(wholes: Sequence[Whole]) -> str:
    documents = [
        {
            "id": head.id,
            "created": head.created,
            "name": head.name,
            "pinned": head.pinned,
            "leaf": leaf,
            "messages": [
                {**asdict(message), "parent": tree.parents[message.id]}
                for message in tree.messages.values()
            ],
        }
        for head, tree, leaf in wholes
    ]
    document = {"format": FORMAT, "version": VERSION, "conversations": documents}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def to_markdown(wholes: Sequence[Whole]) -> str:
    """The shown branch of each. The texts are as they were typed and written."""
    parts: list[str] = []
    for head, tree, leaf in wholes:
        path = tree.path(leaf)
        title = replace(head, messages=path).title
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(head.created))
        parts.append(f"# {title}\n\n{day}\n")
        for message in path:
            who = "You" if message.role == "user" else message.model or message.role.capitalize()
            parts.append(f"## {who}\n\n{message.text}\n")
    return "\n".join(parts)


def import_file(store: ChatStore, path: Path) -> tuple[int, int]:
    """(taken in, already here). A conversation that is here and differs comes in beside it. Raises
    UnblurError `chats.import` for a file that is none of ours, or cannot be kept."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES // 2**20} MB")
        wholes = from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _not_ours(path, error.strerror or str(error)) from error
    except RecursionError:
        raise _not_ours(path, "it is nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise _not_ours(path, str(error)[:200]) from error
    except KeyError as error:
        raise _not_ours(path, f"{str(error)[:80]} is missing") from error
    taken = here = 0
    for head, tree, leaf in wholes:
        kept = read_whole(store, head.id)
        if kept is not None and (kept[1], kept[2]) == (tree, leaf):
            store.restore(head.id)
            here += 1
            continue
        fresh = head if kept is None else replace(head, id=new_id())
        store.change(tree_changes(fresh, tree, leaf))
        taken += 1
    if store.problem is not None:
        raise UnblurError("chats.import", store.problem, "Then import the file again.")
    return taken, here


def from_json(text: str) -> list[Whole]:
    """Raises KeyError, TypeError, ValueError, RecursionError or OverflowError for anything that an
    export did not write."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it is no export of Unblur's conversations")
    if document.get("version") != VERSION:
        raise ValueError("it was written by another version of Unblur")
    return [_whole(each) for each in _list(document["conversations"])]


def _whole(value: object) -> Whole:
    record = _record(value)
    tree = Tree()
    for each in _list(record["messages"]):
        message, parent = _message(_record(each))
        if message.id in tree.messages:
            raise ValueError("a message is there twice")
        if parent is not None and parent not in tree.messages:
            raise ValueError("a message comes before the one it answers")
        tree.add(message, parent)
    if not tree.messages:
        raise ValueError("a conversation is empty")
    leaf = record["leaf"]
    if leaf is not None and leaf not in tree.messages:
        raise ValueError("the branch that is shown is missing")
    pinned = record["pinned"]
    if not isinstance(pinned, bool):
        raise TypeError("pinned must be true or false")
    head = Conversation(
        _id(record["id"]),
        float(number(record["created"])),
        name=string(record["name"]),
        pinned=pinned,
    )
    if not math.isfinite(head.created) or "\0" in head.name:
        raise ValueError("a conversation's date or name cannot be")
    head.name.encode("utf-8")
    return head, tree, leaf if isinstance(leaf, str) else None


def _message(record: dict[str, object]) -> tuple[ChatMessage, str | None]:
    role, status = string(record["role"]), MessageStatus(string(record["status"]))
    if role not in ROLES or status not in ENDS:
        raise ValueError("a message has a role or a status that does not exist")
    figures, failure, made = record["figures"], record["failure"], record["made"]
    parent = record["parent"]
    message = ChatMessage(
        _id(record["id"]),
        next(known for known in ROLES if known == role),
        string(record["text"]),
        status=status,
        model=_plain(record["model"]),
        reason=_plain(record["reason"]),
        figures=None if figures is None else figures_of(figures),
        failure=None if failure is None else failure_of(failure),
        made=None if made is None else made_of(made),
    )
    return message, None if parent is None else _id(parent)


def _id(value: object) -> str:
    found = string(value)
    if not 0 < len(found) <= 100 or not found.isascii() or not found.isprintable():
        raise ValueError("an id is not one")
    return found


def _plain(value: object) -> str:
    found = string(value)
    found.encode("utf-8")  # UnicodeEncodeError is a ValueError
    return found


def _record(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("a list is expected")
    return value


def _not_ours(path: Path, why: str) -> UnblurError:
    return UnblurError(
        "chats.import",
        f"{path.name} cannot be imported: {why}.",
        "Choose a .json file that Unblur exported.",
    )
