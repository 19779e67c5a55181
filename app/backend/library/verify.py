"""Are the files of a model what they should be, and which must be fetched again.

It knows hashes (from our manifest, or from the names in Hugging Face's cache) and, where there are
none, the headers of safetensors files. It refuses to repair by itself: it says what to fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from app.backend.library.folders import LibraryError
from app.backend.library.scan import LocalModel
from app.backend.transfer.files import RemoteFile, hash_matches, is_needed
from app.backend.transfer.plan import DownloadPlan
from app.backend.transfer.stop import Stop
from engine.checkpoint.tensor_file import TensorFile
from engine.errors import CheckpointError


class FileState(StrEnum):
    RIGHT = "right"
    MISSING = "missing"
    WRONG_SIZE = "wrong size"
    WRONG_BYTES = "wrong bytes"
    UNREADABLE = "unreadable"
    NO_HASH = "no hash known"  # whole as far as can be seen
    DAMAGED = "damaged"  # no hash known, and not even whole


BAD = (
    FileState.MISSING,
    FileState.WRONG_SIZE,
    FileState.WRONG_BYTES,
    FileState.UNREADABLE,
    FileState.DAMAGED,
)


@dataclass(frozen=True)
class FileCheck:
    """One file's outcome; reason in words, "" when it is right."""

    path: str
    state: FileState
    reason: str = ""


@dataclass(frozen=True)
class Published:
    """What a hub lists of a model at one commit."""

    endpoint: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Report:
    """The outcome for a model. `bad`: the files to fetch again."""

    model: LocalModel
    files: tuple[FileCheck, ...]

    @property
    def bad(self) -> tuple[FileCheck, ...]:
        return tuple(check for check in self.files if check.state in BAD)

    @property
    def is_proven(self) -> bool:
        """Every file has a hash, and it is right."""
        return bool(self.files) and all(check.state is FileState.RIGHT for check in self.files)


def verify(
    model: LocalModel,
    stop: Stop | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Report:
    """Reads every file that is used here once: not pickles, not code. progress(bytes read, bytes in
    all) is called on this thread. Works without a network. Raises Interrupted."""
    stop = stop or Stop()
    done = 0

    def each(count: int) -> None:
        nonlocal done
        stop.check()
        done += count
        progress(done, model.size)

    known = {file.path: file for file in model.hashes if is_needed(file.path)}
    checks = [_check(model, file, each) for file in known.values()]
    for name, size in model.files:
        named = size < 0 and is_needed(name)
        if name not in known and (named or name.endswith(".safetensors")):
            checks.append(_check_header(model, name, size))
            each(max(size, 0))
    return Report(model, tuple(checks))


def repair_plan(report: Report, published: Published | None = None) -> DownloadPlan:
    """What to fetch to make the model right again, for `DownloadQueue.add(plan, model.root)`.
    published: what the hub lists of this version; the cache of Hugging Face's tools has hashes in
    its links, but no sizes. Raises LibraryError where that is not possible, with what to do
    instead."""
    model = report.model
    endpoint, files = (published.endpoint, published.files) if published else ("", model.hashes)
    known = {file.path: file for file in files}
    wanted = [known[check.path] for check in report.bad if check.path in known]
    if not model.repo_id or len(wanted) != len(report.bad):
        if published is not None:
            raise LibraryError(
                "library.not_published",
                f"The hub lists other files for this version of {model.name}.",
                "Download the model into the models folder instead.",
            )
        raise LibraryError(
            "library.no_origin",
            f"Nobody wrote down where {model.name} came from, so it cannot be fetched again.",
            "Download the model anew.",
        )
    if not wanted:
        raise LibraryError(
            "library.nothing_to_repair", f"Every file of {model.name} is right.", "Nothing to do."
        )
    return DownloadPlan(
        repo_id=model.repo_id,
        commit=model.commit,
        endpoint=endpoint or model.endpoint,
        files=tuple(wanted),
        licence=model.licence,
        into=model.path,
    )


def _check(model: LocalModel, file: RemoteFile, each: Callable[[int], None]) -> FileCheck:
    path = model.path / file.path
    try:
        size = path.stat().st_size
        if size != file.size:
            reason = f"It has {size} bytes instead of {file.size}."
            return FileCheck(file.path, FileState.WRONG_SIZE, reason)
        if hash_matches(path, file, each):
            return FileCheck(file.path, FileState.RIGHT)
    except FileNotFoundError:
        return FileCheck(file.path, FileState.MISSING, "It is not there.")
    except OSError as error:
        reason = f"It cannot be read ({error.strerror})."
        return FileCheck(file.path, FileState.UNREADABLE, reason)
    reason = "Its bytes are not those that were published."
    return FileCheck(file.path, FileState.WRONG_BYTES, reason)


def _check_header(model: LocalModel, name: str, size: int) -> FileCheck:
    if size < 0:
        return FileCheck(name, FileState.MISSING, "It is not there.")
    try:
        TensorFile(model.path / name).close()
    except CheckpointError as error:
        return FileCheck(name, FileState.DAMAGED, error.message)
    reason = "Nobody wrote down its hash; its length and header are whole."
    return FileCheck(name, FileState.NO_HASH, reason)
