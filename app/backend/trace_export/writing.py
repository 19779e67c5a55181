"""Puts an export in its place: whole or not at all, and over another file only when asked to.

Knows files. Refuses to know what is written into them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from engine.errors import UnblurError


class ExportError(UnblurError):
    """A trace cannot be exported as asked. Codes begin with `export.`."""


def write_whole(path: Path, write: Callable[[BinaryIO], None], *, overwrite: bool) -> None:
    """Lets `write` fill a new file beside `path` and puts it there when it is complete.

    Without `overwrite`, a file that is there by then stays as it is. Raises ExportError
    `export.exists` or `export.not_written`; nothing is left behind but what was there before.
    """
    if not overwrite and os.path.lexists(path):
        raise _exists(path)
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        _put(draft, path, overwrite=overwrite)
    except OSError as error:
        raise ExportError(
            "export.not_written",
            f"{path.name} could not be written: {error.strerror or error}.",
            "Choose another folder, or make room on the disk.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _put(draft: Path, path: Path, *, overwrite: bool) -> None:
    if overwrite:
        os.replace(draft, path)
        return
    try:
        os.link(draft, path)  # refuses where a file appeared in the meantime; a rename would not
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise _exists(path) from None
        os.rename(draft, path)


def _exists(path: Path) -> ExportError:
    return ExportError(
        "export.exists",
        f"{path.name} is there already; it was not touched.",
        "Choose another name, or replace it (in the terminal: --force).",
    )
