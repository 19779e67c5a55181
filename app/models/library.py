"""The models on this computer as the window sees them, and what can be done with them.

It knows when to look at the folders again, one check of files at a time, and what was deleted. It
refuses to know widgets; disks are only touched on threads of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.backend.library.library import LibraryView, disk_use
from app.backend.library.scan import LocalModel
from app.backend.library.trash import Deleted
from app.backend.library.verify import Report, verify
from app.backend.model_services import ModelServices
from app.backend.repair import plan_repair
from app.backend.transfer.plan import DownloadPlan
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background, Task
from app.models.lifecycle import checked_move
from app.models.model_states import CHECKING, SCANNING, Checking, Scanning

PROGRESS_MS = 100


@dataclass(frozen=True)
class Shelf:
    """The library at one moment. used: bytes of each folder's models, shared contents once. total:
    of all of them. free: on the disk that downloads go to, None where it is absent."""

    view: LibraryView = field(default_factory=lambda: LibraryView(()))
    deleted: tuple[Deleted, ...] = ()
    used: Mapping[Path, int] | None = None
    total: int = 0
    download_to: Path | None = None
    free: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class Check:
    """A model's files against their hashes. done, total: bytes read. report: once CHECKED."""

    state: Checking = Checking.UNCHECKED
    done: int = 0
    total: int = 0
    report: Report | None = None
    problem: Problem | None = None


class LibraryModel(QObject):
    changed = Signal()  # the shelf, or what is being done with it
    check_changed = Signal(object)  # a model's path
    failed = Signal(object)  # Problem
    repair_wanted = Signal(object, object)  # DownloadPlan, the folder it belongs to

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.state = Scanning.NEW
        self.shelf = Shelf()
        self._services: ModelServices | None = None
        self._again = False
        self._checks: dict[Path, Check] = {}
        self._tasks: dict[Path, Task] = {}
        self._read: dict[Path, int] = {}  # written by the checking thread, read by the timer
        self._disk = Background("library", 1, self)
        self._checker = Background("verify", 1, self)
        self._planner = Background("repair", 1, self)  # may wait for the hub
        self._timer = QTimer(self)
        self._timer.setInterval(PROGRESS_MS)
        self._timer.timeout.connect(self._tell_progress)

    def attach(self, services: ModelServices) -> None:
        """From now on there are folders to look at."""
        self._services = services
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        """Looks at every folder again. What is asked for while it looks, it does afterwards."""
        if self._services is None:
            return
        if self.state is Scanning.SCANNING:
            self._again = True
            return
        services = self._services
        self._move(Scanning.SCANNING)
        self._disk.run(lambda _stop: look(services), self._show, self._not_scanned)

    def add_folder(self, path: Path) -> None:
        self._change(lambda services: services.library.folders.add(path))

    def remove_folder(self, path: Path) -> None:
        """Takes it off the list; nothing on the disk changes."""
        self._change(lambda services: services.library.folders.remove(path))

    def choose_download_folder(self, path: Path) -> None:
        self._change(lambda services: services.library.folders.choose_download_folder(path))

    def delete(self, model: LocalModel) -> None:
        """Moves a model to the trash of its disk, from where `undo` brings it back."""
        self.stop_check(model.path)
        self._change(lambda services: services.library.delete(model))

    def undo(self, deleted: Deleted) -> None:
        self._change(lambda services: services.library.undo(deleted))

    def check_of(self, path: Path) -> Check:
        return self._checks.get(path, Check())

    def check(self, model: LocalModel) -> None:
        """Reads all files of a model and compares them. Does nothing while it is at it."""
        path = model.path
        if self.check_of(path).state in (Checking.CHECKING, Checking.STOPPING):
            return

        def progress(done: int, _total: int) -> None:
            self._read[path] = done

        def work(stop: Stop) -> Report:
            return verify(model, stop, progress)

        self._read[path] = 0
        self._put(path, Checking.CHECKING, total=model.size)
        self._tasks[path] = self._checker.run(
            work,
            lambda report: self._put(path, Checking.CHECKED, report=report),
            lambda problem: self._put(path, Checking.FAILED, problem=problem),
            lambda: self._put(path, Checking.UNCHECKED),
        )
        self._timer.start()

    def stop_check(self, path: Path) -> None:
        if self.check_of(path).state is Checking.CHECKING:
            self._put(path, Checking.STOPPING)
            self._tasks[path].stop.set()

    def repair(self, path: Path) -> None:
        """Asks for the bad files that the last check found; see `repair_wanted`."""
        services, report = self._services, self.check_of(path).report
        if services is None or report is None:
            return
        root = report.model.root

        def then(plan: DownloadPlan) -> None:
            self._checks.pop(path, None)
            self.check_changed.emit(path)
            self.repair_wanted.emit(plan, root)

        self._planner.run(lambda _stop: plan_repair(services, report), then, self.failed.emit)

    def close(self, until: float) -> bool:
        """See `Background.close`."""
        self._timer.stop()
        lanes = (self._checker, self._planner, self._disk)
        ended = [lane.close(until) for lane in lanes]  # each of them, also after one that hangs
        return all(ended)

    def _change(self, action: Callable[[ModelServices], object]) -> None:
        """Does something to the library, then looks at it again, also where it failed half-way."""
        services = self._services
        if services is None:
            return

        def failed(problem: Problem) -> None:
            self.failed.emit(problem)
            self.refresh()

        self._disk.run(lambda _stop: action(services), lambda _result: self.refresh(), failed)

    def _show(self, shelf: Shelf) -> None:
        self.shelf = shelf
        there = {model.path for model in shelf.view.models}
        for path in [path for path in self._checks if path not in there]:
            if self._checks[path].state not in (Checking.CHECKING, Checking.STOPPING):
                del self._checks[path]
        self._scanned()

    def _not_scanned(self, problem: Problem) -> None:
        self._scanned()
        self.failed.emit(problem)

    def _scanned(self) -> None:
        self._move(Scanning.SHOWN)
        if self._again:
            self._again = False
            self.refresh()

    def _move(self, state: Scanning) -> None:
        self.state = checked_move(SCANNING, self.state, state)
        self.changed.emit()

    def _put(
        self,
        path: Path,
        state: Checking,
        total: int | None = None,
        report: Report | None = None,
        problem: Problem | None = None,
    ) -> None:
        before = self.check_of(path)
        state = checked_move(CHECKING, before.state, state)
        total = before.total if total is None else total
        self._checks[path] = Check(state, self._read.get(path, 0), total, report, problem)
        self.check_changed.emit(path)

    @Slot()
    def _tell_progress(self) -> None:
        running = False
        for path, check in list(self._checks.items()):
            if check.state in (Checking.CHECKING, Checking.STOPPING):
                running = True
                done = self._read.get(path, 0)
                if done != check.done:
                    self._checks[path] = replace(check, done=done)
                    self.check_changed.emit(path)
        if not running:
            self._timer.stop()


def look(services: ModelServices) -> Shelf:
    """Everything the shelf shows. Reads disks, which may be slow or asleep."""
    library = services.library
    view = library.scan()
    folder = library.folders.all()
    target = next(item.path for item in folder if item.kind == "models")
    try:
        place = target if target.exists() or target != library.folders.default else _parent(target)
        free = shutil.disk_usage(place).free
    except OSError:
        free = None
    return Shelf(
        view=view,
        deleted=library.deleted(),
        used={item.folder.path: disk_use(item.models) for item in view.folders},
        total=disk_use(view.models),
        download_to=target,
        free=free,
        problem=library.folders.problem or "",
    )


def _parent(path: Path) -> Path:
    """The nearest folder above that exists: the default one is made when it is first needed."""
    while not path.exists() and path.parent != path:
        path = path.parent
    return path
