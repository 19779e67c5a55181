"""Where the app keeps its files, how it writes one without ever leaving half of it, and how it
reads one that anything may have happened to.

It knows folders and bytes. It refuses to know what is in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent.parent
JSON_LIMIT = 64_000_000
ASSETS = REPO / "assets"
DEMO_MODEL = ASSETS / "demo"


@dataclass(frozen=True)
class AppFolders:
    """The three folders of one person's Unblur. None of them need exist yet."""

    data: Path
    config: Path
    logs: Path

    @property
    def settings_file(self) -> Path:
        return self.config / "settings.json"

    @property
    def conversations(self) -> Path:
        return self.data / "conversations.db"

    @property
    def old_conversations(self) -> Path:
        """The journals of earlier versions."""
        return self.data / "conversations"


def standard_folders() -> AppFolders:
    """The platform's own places (QStandardPaths), for the application name set at start."""
    from PySide6.QtCore import QStandardPaths  # here: the commands without a window write files too

    where = QStandardPaths.StandardLocation
    data = Path(QStandardPaths.writableLocation(where.AppDataLocation))
    config = Path(QStandardPaths.writableLocation(where.AppConfigLocation))
    return AppFolders(data=data, config=config, logs=data / "logs")


def read_json_object(path: Path, most: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON object from a file of at most `most` bytes (UTF-8).

    Raises OSError where it cannot be read, and ValueError for all that is not such a file: a pipe
    is not waited for, and neither depth nor size exhausts memory.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a plain file")
    if status.st_size > most:
        raise ValueError(f"{status.st_size} bytes are too many")
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` by `text` (UTF-8) in one step: a reader, or a crash, sees the old file or the
    new one.

    Raises OSError when the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
