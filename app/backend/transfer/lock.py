"""One process at a time on one unfinished download, also after a kill.

It knows the locks of the two kinds of systems; both end with the process that held them. It refuses
to wait.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from app.backend.transfer.faults import TransferError, not_written

log = logging.getLogger("unblur.transfer")


@contextlib.contextmanager
def only_process(path: Path, what: str) -> Iterator[None]:
    """Holds the lock file `path`. Raises TransferError when another process has it, or where it
    cannot be made; FileNotFoundError where its folder is not there."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise not_written(str(path.parent), error, 0, 0) from error
    try:
        if not _lock(descriptor):
            raise TransferError(
                "transfer.in_use",
                f"{what} is being downloaded by another Unblur.",
                "Wait for it, or pause it there.",
            )
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """False when another process has it. A disk that knows no locks is used without one."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("this disk has no locks (%s): two Unblurs must not share it", error.strerror)
    return True
