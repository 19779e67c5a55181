"""What a person chose, in one versioned JSON file that is migrated, never guessed at.

It knows the fields, their allowed values and how older files become this one. It refuses to know
how a choice is applied. A file that cannot be read or written never stops the app: settings then
live in memory, and `problem` says so in a sentence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from app.backend.files import write_atomically

VERSION = 1
APPEARANCES = ("system", "light", "dark")
LEAST_TOKENS, MOST_TOKENS = 32, 8192  # of one answer
LEAST_PORT, MOST_PORT = 1024, 65535  # lower ones need an administrator
DEFAULT_PORT = 8421  # of the local server
CAPTURES = ("light", "top-k")  # of every step of an answer: `engine.types.Capture`
Document = dict[str, Any]
# version found in a file -> function giving the document of the next version
MIGRATIONS: Mapping[int, Callable[[Document], Document]] = {}


@dataclass(frozen=True)
class Settings:
    """appearance: one of APPEARANCES. reduce_motion: no fades. answer_tokens: most new tokens in
    one answer. capture: what is recorded of each step, one of CAPTURES. serve: whether other
    programs may ask the model. serve_port: where, on 127.0.0.1.
    """

    appearance: str = "system"
    reduce_motion: bool = False
    answer_tokens: int = 256
    capture: str = "light"
    serve: bool = False
    serve_port: int = DEFAULT_PORT


class SettingsStore:
    """Reads once, keeps the current `Settings` and writes each change at once.

    `problem` is None, or a sentence for a person on why changes will not outlive the window.
    """

    def __init__(
        self,
        path: Path,
        migrations: Mapping[int, Callable[[Document], Document]] = MIGRATIONS,
        version: int = VERSION,
    ) -> None:
        self.path = path
        self.problem: str | None = None
        self._version = version
        self._migrations = migrations
        self._may_write = True
        self.current = self._read()

    def change(self, **values: object) -> Settings:
        """Sets fields and writes the file. Raises ValueError for a value that is not allowed."""
        self.current = _checked(replace(self.current, **values))  # pyright: ignore[reportArgumentType]
        if self._may_write:
            self._write()
        return self.current

    def _write(self) -> None:
        document = {"version": self._version, **asdict(self.current)}
        try:
            write_atomically(self.path, json.dumps(document, indent=2) + "\n")
        except OSError as error:
            self.problem = (
                f"Settings cannot be saved: {self.path.parent} is not writable ({error.strerror}). "
                "Changes last until the window is closed."
            )
        else:
            self.problem = None

    def _read(self) -> Settings:
        try:
            text = self.path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return Settings()
        except (OSError, UnicodeDecodeError) as error:
            self._may_write = False
            self.problem = (
                f"Settings could not be read from {self.path} ({error}). "
                "The defaults are used, and the file is left alone."
            )
            return Settings()
        try:
            return self._migrated(json.loads(text))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            return self._set_aside(error)

    def _migrated(self, document: object) -> Settings:
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        found = int(document.pop("version"))
        if found > self._version:
            self._may_write = False
            self.problem = (
                f"Settings in {self.path} were written by a newer Unblur (version {found}). "
                "The defaults are used, and the file is left alone."
            )
            return Settings()
        while found < self._version:
            document = self._migrations[found](document)
            found += 1
        known = {field.name for field in fields(Settings)}
        return _checked(Settings(**{k: v for k, v in document.items() if k in known}))

    def _set_aside(self, error: Exception) -> Settings:
        """A damaged file is kept beside the new one: it is somebody's work."""
        aside = self.path.with_suffix(f".damaged-{int(time.time())}.json")
        try:
            self.path.rename(aside)
        except OSError:
            self._may_write = False
            aside = self.path
        self.problem = (
            f"Settings were damaged ({error}); the defaults are used. "
            f"The damaged file is kept as {aside.name}."
        )
        return Settings()


def _checked(settings: Settings) -> Settings:
    if settings.appearance not in APPEARANCES:
        raise ValueError(f"appearance must be one of {APPEARANCES}, not {settings.appearance!r}")
    if not isinstance(settings.reduce_motion, bool):
        raise ValueError(f"reduce_motion must be true or false, not {settings.reduce_motion!r}")
    tokens = settings.answer_tokens
    whole = isinstance(tokens, int) and not isinstance(tokens, bool)
    if not whole or not LEAST_TOKENS <= tokens <= MOST_TOKENS:
        raise ValueError(f"answer_tokens must be {LEAST_TOKENS} to {MOST_TOKENS}, not {tokens!r}")
    if not isinstance(settings.serve, bool):
        raise ValueError(f"serve must be true or false, not {settings.serve!r}")
    port = settings.serve_port
    whole = isinstance(port, int) and not isinstance(port, bool)
    if not whole or not LEAST_PORT <= port <= MOST_PORT:
        raise ValueError(f"serve_port must be {LEAST_PORT} to {MOST_PORT}, not {port!r}")
    if settings.capture not in CAPTURES:
        raise ValueError(f"capture must be one of {CAPTURES}, not {settings.capture!r}")
    return settings
