"""The downloads a person asked for: they run two at a time, can be paused, and survive a restart.

It knows states, the queue's file and threads. It refuses to know widgets and to say anything per
byte: `views` gives the latest figures whenever a timer asks, `on_change` tells of states only.

    QUEUED -> RUNNING -> DONE | FAILED | PAUSED        PAUSED, FAILED -> QUEUED (resume)
    any -> gone (cancel, which deletes what was received; forget, for DONE)

A running download is kept as QUEUED in the file, so that after a kill it goes on by itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from app.backend.files import read_json_object, write_atomically
from app.backend.hub.access import without_secrets
from app.backend.transfer.download import Download, Token, kept_bytes
from app.backend.transfer.faults import Interrupted, TransferError
from app.backend.transfer.fetch import Policy
from app.backend.transfer.lock import only_process
from app.backend.transfer.plan import DownloadPlan, refuse_if_here
from engine.errors import UnblurError

log = logging.getLogger("unblur.transfer")
VERSION = 1
AT_ONCE = 2


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True)
class Problem:
    """Why a download failed, as a person meets it. link: a page to go to, "" if none."""

    code: str
    message: str
    action: str
    link: str = ""


@dataclass(frozen=True)
class DownloadView:
    """One download as it is now. Bytes; bytes_per_second and seconds_left are None while unknown.
    waiting: why nothing arrives at the moment, "" otherwise. path: the model's folder once DONE."""

    id: str
    repo_id: str
    commit: str
    root: Path
    state: State
    done_bytes: int
    total_bytes: int
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    waiting: str = ""
    problem: Problem | None = None
    path: Path | None = None
    is_repair: bool = False


@dataclass
class _Item:
    plan: DownloadPlan
    root: Path
    state: State = State.QUEUED
    problem: Problem | None = None
    path: Path | None = None
    done_bytes: int = 0
    run: Download | None = None  # set while a thread works on it, also once it was told to end


class DownloadQueue:
    """Safe to call from any thread. No call waits for the network or deletes large files, but for
    `stop`, which waits for the threads to end.

    on_change is called without arguments, from any thread and without a lock held, whenever a state
    changes. `problem`: None, or a sentence on why the queue will not survive a restart.
    """

    def __init__(
        self,
        store: Path,
        token: Token,
        on_change: Callable[[], None] = lambda: None,
        policy: Policy | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self.problem: str | None = None
        self._store, self._token, self._on_change = store, token, on_change
        self._policy, self._at_once = policy or Policy(), at_once
        self._lock = threading.RLock()
        self._items: dict[str, _Item] = {}
        self._threads: dict[str, threading.Thread] = {}  # a download's thread, to its very end
        self._started = False
        self._held = contextlib.ExitStack()  # the list's lock, while it is started
        self._may_write = True
        self._read()

    def start(self) -> None:
        """Begins what is queued, what a kill interrupted included. Where another process has the
        list already, its downloads are left to it."""
        with self._lock:
            if not self._started:
                self._hold_list()
            self._started = True
        self._advance()

    def stop(self, seconds: float = 30.0) -> None:
        """Ends all threads and keeps the queue as it is for the next start. Idempotent."""
        with self._lock:
            if not self._started:
                return  # another process may have the list by now
            self._started = False
            threads = list(self._threads.values())
            for item in self._items.values():
                if item.run is not None and item.state is State.RUNNING:
                    item.state = State.QUEUED
                    item.run.interrupt()
            self._write()
        until = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._held.close()

    def add(self, plan: DownloadPlan, root: Path) -> str:
        """Queues a model for the folder `root`; the id. What an earlier run received is used.
        Raises TransferError for one that is in the queue, or in the folder, already."""
        refuse_if_here(root, plan)
        with self._lock:
            known = self._items.get(plan.id)
            if known is not None and known.state is not State.DONE:
                raise TransferError(
                    "transfer.already_queued",
                    f"{plan.repo_id} is already in the list of downloads.",
                    "Resume it there.",
                )
            self._items[plan.id] = _Item(plan, root, done_bytes=kept_bytes(root, plan))
            self._write()
        self._changed()
        return plan.id

    def pause(self, identity: str) -> None:
        """Stops receiving at once and keeps every byte. No effect on a finished one."""
        with self._lock:
            item = self._items.get(identity)
            if item is None or item.state not in (State.QUEUED, State.RUNNING):
                return
            item.state = State.PAUSED
            if item.run is not None:
                item.run.interrupt()
            self._write()
        self._changed()

    def resume(self, identity: str) -> None:
        """Queues a paused or failed one again."""
        with self._lock:
            item = self._items.get(identity)
            if item is None or item.state not in (State.PAUSED, State.FAILED):
                return
            item.state, item.problem = State.QUEUED, None
            self._write()
        self._changed()

    def cancel(self, identity: str) -> None:
        """Takes it off the list and deletes what was received, in the background. A finished model
        stays."""
        with self._lock:
            item = self._items.pop(identity, None)
            if item is None:
                return
            self._write()
            if item.run is not None:
                item.run.interrupt()  # its thread deletes, once it has let go of the files
            elif item.state is not State.DONE:
                download = Download(item.plan, item.root, self._token, self._policy)
                self._begin(identity, lambda: self._discard(identity, download))
        self._changed()

    def forget(self, identity: str) -> None:
        """Takes a finished one off the list; the model stays."""
        with self._lock:
            item = self._items.get(identity)
            if item is None or item.state is not State.DONE:
                return
            del self._items[identity]
            self._write()
        self._changed()

    def views(self) -> tuple[DownloadView, ...]:
        """Every download, in the order they were added. Cheap: no file is touched."""
        with self._lock:
            return tuple(_view(identity, item) for identity, item in self._items.items())

    @property
    def busy(self) -> bool:
        with self._lock:
            return any(i.state in (State.QUEUED, State.RUNNING) for i in self._items.values())

    def _changed(self) -> None:
        self._advance()
        self._on_change()

    def _advance(self) -> None:
        """Starts threads up to the limit."""
        with self._lock:
            if not self._started:
                return
            running = sum(item.run is not None for item in self._items.values())
            for identity, item in self._items.items():
                if running >= self._at_once:
                    return
                if item.state is State.QUEUED and identity not in self._threads:
                    running += 1
                    item.state = State.RUNNING
                    item.run = Download(item.plan, item.root, self._token, self._policy)
                    self._begin(identity, partial(self._carry_out, identity, item, item.run))

    def _begin(self, identity: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"download {identity}")
        self._threads[identity] = thread
        thread.start()

    def _carry_out(self, identity: str, item: _Item, run: Download) -> None:
        problem, path = None, None
        try:
            path = run.run()
        except Interrupted:
            log.info("download of %s: stopped", item.plan.repo_id)
        except UnblurError as error:
            link = str(getattr(error, "link", ""))
            problem = Problem(error.code, error.message, error.action, link)
            log.warning("download of %s: %s", item.plan.repo_id, error.code)
        except Exception as error:  # the thread's root: the app and its other downloads go on
            log.exception("download of %s", item.plan.repo_id)
            problem = Problem(
                "transfer.internal",
                f"The download failed ({without_secrets(str(error)) or type(error).__name__}).",
                "Resume it; if it fails again, please report it with the log.",
            )
        with self._lock:
            cancelled = self._items.get(identity) is not item
            item.run = None
            item.done_bytes = run.progress.done
            if path is not None:
                item.state, item.path = State.DONE, path
            elif problem is not None and item.state is not State.QUEUED:  # not resumed meanwhile
                item.state, item.problem = State.FAILED, problem
            if not cancelled or path is not None:
                del self._threads[identity]
            self._write()
        if cancelled and path is None:
            self._discard(identity, run)
            return
        self._changed()

    def _discard(self, identity: str, download: Download) -> None:
        try:
            download.discard()
        except UnblurError as error:
            log.warning("what was received of %s stays: %s", download.plan.repo_id, error.code)
        finally:
            with self._lock:
                del self._threads[identity]
        self._changed()

    def _hold_list(self) -> None:
        """One process has the list at a time: two would write over each other's downloads."""
        try:
            self._store.parent.mkdir(parents=True, exist_ok=True)
            lock = only_process(self._store.with_suffix(".lock"), "The list of downloads")
            self._held.enter_context(lock)
        except TransferError as error:
            if error.code != "transfer.in_use":
                return  # nothing can be written there: `_write` says so
            self._may_write = False
            self._items.clear()
            self.problem = (
                "Another Unblur is open and has the list of downloads. What is begun here lasts"
                " until this window is closed."
            )
        except OSError:
            return  # as above

    def _write(self) -> None:
        if not self._may_write:
            return
        entries = []
        for item in self._items.values():
            state = State.QUEUED if item.state is State.RUNNING else item.state
            entry: dict[str, object] = {
                "plan": item.plan.to_json(),
                "root": str(item.root),
                "state": state.value,
                "path": str(item.path) if item.path else None,
                "problem": vars(item.problem) if item.problem else None,
            }
            entries.append(entry)
        try:
            document = {"version": VERSION, "downloads": entries}
            write_atomically(self._store, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            self.problem = (
                f"The list of downloads cannot be saved in {self._store.parent}"
                f" ({error.strerror}). It lasts until the window is closed."
            )
        else:
            self.problem = None

    def _read(self) -> None:
        try:
            document = read_json_object(self._store)
            if int(document["version"]) > VERSION:
                self._may_write = False
                self.problem = "The list of downloads is of a newer Unblur and is left alone."
                return
            for entry in document["downloads"]:
                item = _item_from(entry)
                item.done_bytes = kept_bytes(item.root, item.plan)
                self._items[item.plan.id] = item
        except FileNotFoundError:
            return
        except OSError as error:
            self._may_write = False
            self.problem = f"The list of downloads cannot be read ({error.strerror})."
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._set_aside(error)

    def _set_aside(self, error: Exception) -> None:
        """A damaged list is kept; what was received stays on the disk and is found again when the
        same model is asked for."""
        self._items.clear()
        aside = self._store.with_suffix(f".damaged-{int(time.time())}.json")
        try:
            self._store.rename(aside)
        except OSError:
            self._may_write = False
        self.problem = f"The list of downloads was damaged ({error}); it is kept as {aside.name}."


def _item_from(entry: object) -> _Item:
    if not isinstance(entry, dict):
        raise ValueError("a download is not an object")
    problem = entry.get("problem")
    path = entry.get("path")
    return _Item(
        plan=DownloadPlan.from_json(entry["plan"]),
        root=Path(str(entry["root"])),
        state=State(str(entry["state"])),
        problem=Problem(**{k: str(v) for k, v in problem.items()})
        if isinstance(problem, dict)
        else None,
        path=Path(str(path)) if path else None,
    )


def _view(identity: str, item: _Item) -> DownloadView:
    done, rate, left, waiting = item.done_bytes, None, None, ""
    if item.run is not None:
        done, rate, left, waiting = item.run.progress.figures()
    if item.state is State.DONE:
        done = item.plan.total_bytes
    return DownloadView(
        id=identity,
        repo_id=item.plan.repo_id,
        commit=item.plan.commit,
        root=item.root,
        state=item.state,
        done_bytes=max(0, done),
        total_bytes=item.plan.total_bytes,
        bytes_per_second=rate,
        seconds_left=left,
        waiting=waiting,
        problem=item.problem,
        path=item.path,
        is_repair=item.plan.into is not None,
    )
