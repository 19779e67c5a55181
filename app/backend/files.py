"""Where the app keeps its files, and how it writes one without ever leaving half of it.

It knows folders and bytes. It refuses to know what is in them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent.parent
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
        return self.data / "conversations"


def standard_folders() -> AppFolders:
    """The platform's own places (QStandardPaths), for the application name set at start."""
    from PySide6.QtCore import QStandardPaths  # here: the commands without a window write files too

    where = QStandardPaths.StandardLocation
    data = Path(QStandardPaths.writableLocation(where.AppDataLocation))
    config = Path(QStandardPaths.writableLocation(where.AppConfigLocation))
    return AppFolders(data=data, config=config, logs=data / "logs")


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
