"""One model, from the first byte to the published folder.

It knows the unfinished folder (`ROOT/.unblur/downloads/ID`), the room a disk must have, several
files at once, and publishing: every file verified, the manifest last, then one rename. It refuses
to know queues and windows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from app.backend.transfer.faults import Interrupted, TransferError, no_space, not_written
from app.backend.transfer.fetch import Place, Policy, fetch
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.http import Source
from app.backend.transfer.lock import only_process
from app.backend.transfer.plan import DownloadPlan, new_folder, published, write_manifest
from app.backend.transfer.progress import Progress
from app.backend.transfer.stop import Stop

HIDDEN = ".unblur"
FILES_AT_ONCE = 4
MARGIN = 256_000_000  # bytes left free on the disk, so that the system goes on working

Token = Callable[[str], str | None]  # given a hub's address, the token kept for that one


class Download:
    """A plan that is carried out in `root`. `run` once; `figures` from any thread."""

    def __init__(self, plan: DownloadPlan, root: Path, token: Token, policy: Policy) -> None:
        self.plan, self.root = plan, root
        self.progress = Progress(plan.total_bytes)
        self._token, self._policy = token, policy
        self._stop = Stop()
        self.folder = unfinished_folder(root, plan.id)

    def interrupt(self) -> None:
        """Ends `run` soon, with Interrupted; may be called before it begins."""
        self._stop.set()

    def run(self) -> Path:
        """The finished model's folder. Blocks. Raises TransferError, HubError, Interrupted."""
        self._check_root()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = only_process(self.folder.with_suffix(".lock"), self.plan.repo_id)
        except OSError as error:
            raise not_written(str(self.folder), error, 0, 0) from error
        with lock:
            here = published(self.root, self.plan) if self.plan.into is None else None
            if here is not None:  # a kill came between publishing it and noting so
                shutil.rmtree(self.folder, ignore_errors=True)
                self._forget_lock()
                return here
            self._check_room()
            self._fetch_all()
            self._stop.check()
            return self._publish()

    def discard(self) -> None:
        """Deletes what was received. Not while `run` runs. Raises TransferError."""
        try:
            with only_process(self.folder.with_suffix(".lock"), self.plan.repo_id):
                shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.with_suffix(".lock").unlink(missing_ok=True)
        except FileNotFoundError:  # nothing was begun
            return
        except OSError as error:
            raise not_written(str(self.folder), error, 0, 0) from error

    def _check_root(self) -> None:
        if not self.root.is_dir():
            raise TransferError(
                "transfer.folder_absent",
                f"The models folder {self.root} is not there.",
                "Connect its disk or choose another folder, then resume.",
            )
        if self.plan.into is not None and not self.plan.into.is_dir():
            raise TransferError(
                "transfer.folder_absent",
                f"{self.plan.into} is not there any more.",
                "Connect its disk, or download the model anew.",
            )

    def _check_room(self) -> None:
        missing = sum(file.size - _kept(self.folder, file) for file in self.plan.files)
        try:
            free = shutil.disk_usage(self.root).free
        except OSError as error:  # it was there a moment ago
            raise not_written(str(self.root), error, 0, 0) from error
        if missing and missing + MARGIN > free:
            raise no_space(self.plan.repo_id, missing + MARGIN, free)

    def _fetch_all(self) -> None:
        place = Place(self.plan.repo_id, self.plan.endpoint, self._locate)
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="transfer") as pool:
            futures = [
                pool.submit(
                    fetch, place, file, self.folder, self._stop, self.progress, self._policy
                )
                for file in self.plan.files
            ]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = next((f for f in done if f.exception() is not None), None)
            if failed is not None:
                self._end_others(futures)
        if failed is not None:
            raise failed.exception() or Interrupted

    def _end_others(self, futures: list[Future[None]]) -> None:
        """One file failed: the rest stops too, keeping what it has."""
        for future in futures:
            future.cancel()
        self._stop.set()

    def _locate(self, file: RemoteFile) -> Source:
        return Source(self.plan.url(file), self._token(self.plan.endpoint))

    def _publish(self) -> Path:
        try:
            if self.plan.into is not None:
                return self._replace_in(self.plan.into)
            self._clean()
            write_manifest(self.folder, self.plan)
            _sync(self.folder)
            target = new_folder(self.root, self.plan)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.folder, target)
            _sync(target.parent)
        except OSError as error:
            raise not_written(self.plan.repo_id, error, 0, 0) from error
        self._forget_lock()
        return target

    def _clean(self) -> None:
        """Removes what a kill in the middle of a write has left beside the files."""
        names = {file.path for file in self.plan.files}
        for item in self.folder.iterdir():
            if item.is_dir() and not item.is_symlink():  # of a network disk's own housekeeping
                shutil.rmtree(item)
            elif item.name not in names:
                item.unlink()

    def _replace_in(self, model: Path) -> Path:
        places = {file.path: _place_in(model, file) for file in self.plan.files}
        for name, place in places.items():
            place.parent.mkdir(exist_ok=True)
            os.replace(self.folder / name, place)
        folders = {place.parent for place in places.values()}
        for folder in folders:
            _sync(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._forget_lock()
        if folders != {model}:  # a cache that other programs look through: nothing of ours stays
            for folder in (self.folder.parent, self.folder.parent.parent):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        return model

    def _forget_lock(self) -> None:
        with contextlib.suppress(OSError):  # on Windows an open file stays; it is empty
            self.folder.with_suffix(".lock").unlink()


def unfinished_folder(root: Path, identity: str) -> Path:
    """Where a download of this id keeps its parts: beside the models, so that a rename publishes
    it."""
    return root / HIDDEN / "downloads" / identity


def kept_bytes(root: Path, plan: DownloadPlan) -> int:
    """What an earlier run has left on the disk, by file sizes alone."""
    folder = unfinished_folder(root, plan.id)
    return sum(_kept(folder, file) for file in plan.files)


def _place_in(model: Path, file: RemoteFile) -> Path:
    """Where a repaired file goes: to its name; in Hugging Face's cache, where the name is a link to
    a content that is called by its hash, to that content, so that every version has it again."""
    named = model / file.path
    if named.is_symlink():
        content = Path(os.path.normpath(model / os.readlink(named)))
        if content == model.parent.parent / "blobs" / file.expected:
            return content
    return named


def _kept(folder: Path, file: RemoteFile) -> int:
    for name in (file.path, f"{file.path}.part"):
        with contextlib.suppress(OSError):
            return min((folder / name).stat().st_size, file.size)
    return 0


def _sync(folder: Path) -> None:
    """Waits until the disk knows the names in a folder, where the system has that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
