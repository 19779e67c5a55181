"""The local server's key: one line in a file that only its owner can read, never in the settings.

It knows the file. It refuses to log the key, or to put it into an error.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


class ServerKey:
    """`problem` is None, or a sentence on why the key could not be read or kept."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.problem: str | None = None
        self.key: str | None = None
        try:
            self.key = file.read_text(encoding="utf-8").strip() or None
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, UnicodeDecodeError) as error:
            self._failed("read", error)

    def make(self) -> str:
        """A new key, which takes the old one's place."""
        self.key = f"ub-{secrets.token_urlsafe(24)}"
        part = self._file.with_name(f"{self._file.name}.part")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                stream.write(self.key + "\n")
            os.replace(part, self._file)
            self.problem = None
        except OSError as error:
            self._failed("kept", error)
        return self.key

    def forget(self) -> None:
        self.key = None
        try:
            self._file.unlink(missing_ok=True)
            self.problem = None
        except OSError as error:
            self._failed("removed", error)

    def _failed(self, what: str, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or type(error).__name__
        self.problem = f"The key in {self._file} could not be {what} ({reason})."
