"""What can go wrong while bytes arrive: faults that are tried again, and errors that end it.

It knows the two kinds and how the second is worded. It refuses to know when to try again.
"""

from __future__ import annotations

import errno

from engine.errors import UnblurError


class TransferError(UnblurError):
    """A download has ended without its file. What was received is kept unless the text says
    otherwise."""


class Interrupted(Exception):
    """The person (or the end of the app) asked to stop; nothing is wrong."""


class Fault(Exception):
    """One attempt failed in a way that another may not.

    wait: seconds the server asks for, None = not said. restart: what was kept is of no use.
    """

    def __init__(
        self, code: str, message: str, *, wait: float | None = None, restart: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.wait = wait
        self.restart = restart

    def final(self, tries: int) -> TransferError:
        """The error once `tries` attempts in a row have brought nothing."""
        kept = "Nothing of this file" if self.restart else "What was received"
        return TransferError(
            self.code,
            f"{self.message} ({tries} tries without a byte gained.)",
            f"{kept} is kept. Check the connection, then resume.",
        )


def no_space(name: str, needed: int, free: int) -> TransferError:
    """Too little room, found before or while writing. Bytes."""
    return TransferError(
        "transfer.disk_full",
        f"{name} needs {gigabytes(needed)} more, and {gigabytes(free)} are free on its disk.",
        "Free some space or choose another models folder, then resume. What was received is kept.",
    )


def not_written(name: str, error: OSError, needed: int, free: int) -> TransferError:
    """For a file that the system does not let us write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return no_space(name, needed, free)
    if error.errno == errno.EFBIG:
        return TransferError(
            "transfer.file_too_large",
            f"The disk cannot hold a file as large as {name}.",
            "Choose a models folder on another disk (FAT32 ends at 4 GB a file).",
        )
    return TransferError(
        "transfer.not_writable",
        f"{name} cannot be written ({error.strerror or error}).",
        "Check that the models folder is connected and can be written, then resume.",
    )


def gigabytes(count: int) -> str:
    """Bytes for a person, in powers of 1000."""
    if count < 1_000_000_000:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e9:.2f} GB"
