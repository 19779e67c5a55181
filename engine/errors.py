"""Errors a person can meet: each has a stable code, a sentence and an action to take.

Knows only how an error is worded. It imports nothing, so that every layer (and a window without
torch) can use it.
"""

from __future__ import annotations


class UnblurError(Exception):
    """Base of every error shown to a person.

    code: stable dotted identifier, e.g. `checkpoint.truncated` (tests and logs use it, never the
    sentence).
    message: what happened, one or two plain sentences. Names the file and the tensor or field where
    there is one.
    action: what the person can do about it.
    """

    code: str
    message: str
    action: str

    def __init__(self, code: str, message: str, action: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.action = action

    def __str__(self) -> str:
        return f"[{self.code}] {self.message} {self.action}"


class CheckpointError(UnblurError):
    """A model folder cannot be used. `file` and `item` (tensor or config field) say where, when
    known.
    """

    def __init__(
        self,
        code: str,
        message: str,
        action: str,
        *,
        file: str | None = None,
        item: str | None = None,
    ) -> None:
        super().__init__(code, message, action)
        self.file = file
        self.item = item


class UnsupportedFamilyError(CheckpointError):
    """The folder is readable, but its model family is not built (yet)."""


class RequestError(UnblurError):
    """A generation request cannot be served as asked (empty prompt, too long, settings out of
    range).
    """


class RuntimeFailure(UnblurError):
    """The engine failed while loading or running (out of memory, non-finite logits, lost
    device).
    """
