"""A conversation's messages as a tree: each has one parent, and what was edited or asked again
stands beside what it replaces.

It knows parents and the order of creation. It refuses to know where messages are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.backend.conversations import ChatMessage


@dataclass
class Tree:
    """messages: by id, oldest first. parents: id of the message before, None for a first one."""

    messages: dict[str, ChatMessage] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)

    def add(self, message: ChatMessage, parent: str | None) -> None:
        """A parent that is not known makes it a first message: a damaged file loses no text."""
        self.messages[message.id] = message
        self.parents[message.id] = parent if parent in self.messages else None

    def path(self, leaf: str | None) -> tuple[ChatMessage, ...]:
        """The branch that ends in `leaf`, first message first; the newest branch if it is None or
        not known."""
        at = leaf if leaf in self.messages else next(reversed(self.messages), None)
        found: list[ChatMessage] = []
        while at is not None:
            found.append(self.messages[at])
            at = self.parents[at]
        return tuple(reversed(found))

    def siblings(self, path: tuple[ChatMessage, ...]) -> Mapping[str, tuple[str, ...]]:
        """For each message of `path` that has others beside it: all of them, oldest first."""
        children: dict[str | None, list[str]] = {}
        for identity, parent in self.parents.items():
            children.setdefault(parent, []).append(identity)
        beside = {message.id: children[self.parents[message.id]] for message in path}
        return {key: tuple(ids) for key, ids in beside.items() if len(ids) > 1}

    def newest_leaf(self, below: str) -> str:
        """The end of the branch through `below` that was written last."""
        inside = {below}
        last = below
        for identity, parent in self.parents.items():  # oldest first: parents come before
            if parent in inside:
                inside.add(identity)
                last = identity
        return last
