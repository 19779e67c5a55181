"""That one process at a time works in a run's folder, and that others see it live.

Knows a lock of the operating system, which ends with its process, and a thread that writes signs of
life however long an update takes. Knows no learner and no events.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import RequestError, UnblurError
from trainer.run_dir import RunDir

BEAT = 5.0  # seconds between signs of life


@contextmanager
def only_here(folder: RunDir) -> Iterator[None]:
    """Holds the folder for this process. Raises RequestError `run.alive` when another has it.

    The lock belongs to the process, not to the file: children that outlive it hold nothing.
    """
    path = folder.path / "lock"
    with path.open("a+b") as file:
        if not _locked(file.fileno()):
            raise RequestError(
                "run.alive",
                f"Another process works in {folder.path}.",
                "Wait until it ends, or stop it first.",
            )
        yield


def _locked(descriptor: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            import fcntl

            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Heart:
    """Writes a run's sign of life every `BEAT` seconds, from a thread of its own."""

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._now = ("running", 0, "", time.time())
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def says(self, state: str, update: int, reason: str = "") -> None:
        """What the run does from now on, or how it ended; written at once. Raises RuntimeFailure
        `train.disk`."""
        with self._guard:
            self._now = (state, update, reason, time.time())
            self.folder.beat(*self._now)

    def moved(self, update: int) -> None:
        """An update is done; written with the next sign of life."""
        with self._guard:
            state, _, reason, _ = self._now
            self._now = (state, update, reason, time.time())

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            with self._guard:
                try:
                    self.folder.beat(*self._now)
                except UnblurError:
                    continue  # the run itself meets the same disk at its next event, and says so
