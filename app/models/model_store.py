"""What stands behind the Models page: opened off the GUI thread, closed before the process ends.

It knows the parts and how they tell each other things. It refuses to know widgets. Opening reads
files and imports the hub's library, so it waits until `open` is called, once the window is there.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal, Slot

from app.backend.model_services import ModelServices
from app.backend.transfer.plan import DownloadPlan
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.access_token import TokenModel
from app.models.background import Background
from app.models.copying import Copier, CopyModel
from app.models.downloads import DownloadsModel
from app.models.find import FindModel, Judge, MachineLook, judge, look_at_machine
from app.models.library import LibraryModel
from app.models.lifecycle import checked_move
from app.models.model_states import OPENING, Opening
from engine.errors import UnblurError

log = logging.getLogger("unblur.models")
CLOSE_SECONDS = 30.0

ServicesMaker = Callable[[Callable[[], None]], ModelServices]  # given the queue's on_change


class ModelStore(QObject):
    changed = Signal()  # `state`

    def __init__(
        self,
        make: ServicesMaker,
        judging: Judge = judge,
        machine_look: MachineLook = look_at_machine,
        copier: Copier | None = None,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.state = Opening.CLOSED
        self.problem: Problem | None = None
        self._make = make
        self._services: ModelServices | None = None
        self._all_ended = True
        self._lane = Background("model files", 1, self)
        self.library = LibraryModel(self)
        self.downloads = DownloadsModel(self)
        self.find = FindModel(judging, machine_look, self)
        self.token = TokenModel(self)
        self.copying = CopyModel(copier, self)
        self.downloads.finished.connect(self.library.refresh)
        self.copying.finished.connect(self.library.refresh)
        self.library.repair_wanted.connect(self._repair)
        self.token.usable.connect(self.find.forget_refusals)

    @Slot()
    def open(self) -> None:
        """Opens what is behind the page and goes on with downloads. Once; again after a failure."""
        if self.state not in (Opening.CLOSED, Opening.FAILED):
            return
        self.problem = None
        self._move(Opening.OPENING)
        self._lane.run(self._opened_by, self._attach, self._not_opened)

    def close(self) -> bool:
        """Stops all work, keeps the downloads for the next start, and deletes for good what was
        deleted. True when every thread ended; waits `CLOSE_SECONDS` at most. Idempotent."""
        if self.state is Opening.ENDED:
            return self._all_ended
        self._move(Opening.ENDED)
        until = time.monotonic() + CLOSE_SECONDS
        parts = (self._lane, self.find, self.token, self.library, self.copying, self.downloads)
        closed = [part.close(until) for part in parts]  # each, also after one that hangs
        self._all_ended = all(closed)
        services = self._services
        if services is not None:
            services.queue.stop(max(0.0, until - time.monotonic()))
            if self._all_ended:  # else something may still be moving a model
                _empty_trash(services)
        return self._all_ended

    def _opened_by(self, _stop: Stop) -> ModelServices:
        services = self._make(self.downloads.note_change)
        self._services = services  # also where nobody is told any more: its queue must be stopped
        # Imports on several threads at once make every widget wait for the interpreter's lock, so
        # what the parts will need (the keyring, the hub's library) is brought in here, in turn.
        services.tokens.get()
        importlib.import_module("huggingface_hub.hf_api")
        return services

    def _attach(self, services: ModelServices) -> None:
        self._move(Opening.OPEN)
        for part in (self.library, self.downloads, self.find, self.token):
            part.attach(services)

    def _not_opened(self, problem: Problem) -> None:
        self.problem = problem
        self._move(Opening.FAILED)

    @Slot(object, object)
    def _repair(self, plan: DownloadPlan, root: Path) -> None:
        self.downloads.add(plan, root)

    def _move(self, state: Opening) -> None:
        self.state = checked_move(OPENING, self.state, state)
        self.changed.emit()


def _empty_trash(services: ModelServices) -> None:
    try:
        services.library.empty_trash()
    except UnblurError as error:
        log.warning("what was deleted stays in its trash: %s", error.code)
