"""How a refused checkpoint is worded: shared actions and constructors, so that every message names
file and item.

Knows wording only.
"""

from __future__ import annotations

import stat
from pathlib import Path

from engine.errors import CheckpointError

DOWNLOAD_AGAIN = "Download this file again."
OTHER_CHECKPOINT = "Use another checkpoint of this model, or download the folder again."


def refuse(
    code: str, message: str, action: str, *, file: str | None = None, item: str | None = None
) -> CheckpointError:
    """The error to raise."""
    return CheckpointError(code, message, action, file=file, item=item)


def unreadable(name: str, error: Exception) -> CheckpointError:
    """For a file or folder the operating system does not give us."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return refuse(
        "checkpoint.unreadable",
        f"{name} cannot be read ({reason}).",
        "Check that the file exists, that you may read it, and that its disk is connected.",
        file=name,
    )


def plain_file_size(path: Path) -> int:
    """Bytes of a plain file (links are followed). Raises CheckpointError for anything else: opening
    a pipe waits for a writer, and a device never ends."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path.name, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise refuse(
            "checkpoint.not_a_file",
            f"{path.name} is not a plain file.",
            "Replace it by the model's own file, or download the folder again.",
            file=path.name,
        )
    return status.st_size


def printable(text: str, limit: int = 200) -> str:
    """Text from a file made safe for a terminal and a log: escapes what cannot be printed, cuts
    what is too long.
    """
    safe = "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."
