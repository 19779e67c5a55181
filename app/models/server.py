"""The local server as the window sees it: on or off, in words, on the window's own model.

It knows the server, the engine model and the settings. It refuses to know widgets. A client's
request waits until the model is free, and a prompt of the chat waits for a client's answer: one
reply at a time, whoever asked. Starting and stopping wait for threads and happen off the GUI's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from enum import Enum

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from app.backend.conversations import new_id
from app.backend.server_key import ServerKey
from app.backend.settings import SettingsStore
from app.backend.transfer.queue import Problem
from app.models.background import Background
from app.models.engine_model import EngineModel
from app.models.lifecycle import Lifecycle, checked_move
from app.models.worker import Question
from app.server.errors import ApiError
from app.server.http import LocalServer
from app.server.reply import Reply, no_model
from engine.types import ModelInfo

log = logging.getLogger("unblur.server")
LOOK_MS = 500
CLOSE_SECONDS = 5.0


class ServerState(Enum):
    OFF = "Off"
    STARTING = "Starting"
    ON = "On"
    STOPPING = "Stopping"
    FAILED = "Failed"


_S = ServerState
TRANSITIONS: Mapping[ServerState, frozenset[ServerState]] = {
    _S.OFF: frozenset({_S.STARTING}),
    _S.STARTING: frozenset({_S.ON, _S.FAILED}),
    _S.ON: frozenset({_S.STOPPING}),
    _S.STOPPING: frozenset({_S.OFF}),
    _S.FAILED: frozenset({_S.STARTING, _S.OFF}),
}


class WindowSource(QObject):
    """Implements `app.server.reply.ModelSource` with the window's model."""

    _nudged = Signal()

    def __init__(self, engine: EngineModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: deque[Reply] = deque()
        self._open = True
        self._nudged.connect(self._go_on, Qt.ConnectionType.QueuedConnection)
        engine.state_changed.connect(self._go_on)

    def info(self) -> ModelInfo:
        info = self._engine.info
        if info is None:
            raise _no_model()
        return info

    def submit(self, reply: Reply) -> None:
        with self._lock:
            if self._open:
                self._waiting.append(reply)
        if self._open:
            self._nudged.emit()
        else:
            reply.refuse(_no_model())

    def refuse_all(self, close: bool = False) -> None:
        """What waits is not answered. close: nothing that comes later, either."""
        with self._lock:
            self._open = self._open and not close
            waiting, self._waiting = self._waiting, deque()
        for reply in waiting:
            reply.refuse(_no_model())

    @Slot()
    def _go_on(self) -> None:
        """Gives the model the next request when it is free; refuses all when there is none."""
        state = self._engine.state
        if state in (Lifecycle.NO_MODEL, Lifecycle.FAILED):
            self.refuse_all()
        while self._engine.state is Lifecycle.READY:
            with self._lock:
                if not self._waiting:
                    return
                reply = self._waiting.popleft()
            self._engine.ask(Question(new_id(), reply.run))


def _no_model() -> ApiError:
    return no_model("No model is loaded in Unblur.", "Load one in its window, then ask again.")


class ServerModel(QObject):
    changed = Signal()

    def __init__(
        self,
        engine: EngineModel,
        settings: SettingsStore,
        key: ServerKey,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.state = ServerState.OFF
        self.problem: Problem | None = None
        self.url = ""
        self.busy = False
        self.waiting = 0
        self.last_problem = ""
        self._settings = settings
        self._key = key
        self._server: LocalServer | None = None
        self._served: tuple[int, str | None] | None = None
        self._source = WindowSource(engine, self)
        self._background = Background("server switch", 1, self)
        self._timer = QTimer(self)
        self._timer.setInterval(LOOK_MS)
        self._timer.timeout.connect(self._look)

    @property
    def key(self) -> str | None:
        """What clients must send, None when they need not send any."""
        return self._key.key

    @property
    def key_problem(self) -> str | None:
        return self._key.problem

    def ask_for_key(self, asked: bool) -> None:
        if asked:
            self._key.make()
        else:
            self._key.forget()
        self.apply()
        self.changed.emit()

    @Slot()
    def apply(self) -> None:
        """Makes the server what the settings say: on, off, or on again at another port."""
        wanted = self._settings.current.serve
        asked_for = (self._settings.current.serve_port, self._key.key)
        if self.state is ServerState.ON and (not wanted or self._served != asked_for):
            self._stop()
        elif self.state is ServerState.OFF and wanted:
            self._start(*asked_for)
        elif self.state is ServerState.FAILED and not wanted:
            self._move(ServerState.OFF)
        elif self.state is ServerState.FAILED and self._served != asked_for:
            self._start(*asked_for)

    @Slot()
    def try_again(self) -> None:
        if self.state is ServerState.FAILED:
            self._start(self._settings.current.serve_port, self._key.key)

    def close(self) -> None:
        """Ends it, waiting for the step of a reply that is being made."""
        self._timer.stop()
        self._source.refuse_all(close=True)
        self._background.close(time.monotonic() + CLOSE_SECONDS)
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _start(self, port: int, key: str | None) -> None:
        self._served = (port, key)
        server = LocalServer(self._source, port, key)
        self._move(ServerState.STARTING)

        def work(_stop: object) -> None:
            server.start()
            self._server = server  # here: the window may close before it hears of it

        self._background.run(work, lambda _: self._started(server), self._failed)

    def _started(self, server: LocalServer) -> None:
        self.url = server.url
        self._timer.start()
        self._move(ServerState.ON)
        self.apply()

    def _failed(self, problem: Problem) -> None:
        self.problem = problem
        self._move(ServerState.FAILED)
        self.apply()

    def _stop(self) -> None:
        server = self._server
        if server is None:
            raise RuntimeError("a server that is on is known")
        self._timer.stop()
        self._move(ServerState.STOPPING)
        self._source.refuse_all()
        self._background.run(lambda _: server.stop(), lambda _: self._stopped(), self._stop_failed)

    def _stopped(self) -> None:
        self._server = None
        self.busy, self.waiting = False, 0
        self._move(ServerState.OFF)
        self.apply()

    def _stop_failed(self, problem: Problem) -> None:
        """Stopping raises nothing but what nobody foresaw; the port is gone with the process."""
        log.error("the server could not be stopped: %s", problem.message)
        self._stopped()

    def _move(self, state: ServerState) -> None:
        self.state = checked_move(TRANSITIONS, self.state, state)
        if state is not ServerState.FAILED:
            self.problem = None
        self.changed.emit()

    @Slot()
    def _look(self) -> None:
        server = self._server
        if server is None:
            return
        seen = (server.busy, server.waiting, server.last_problem)
        if seen != (self.busy, self.waiting, self.last_problem):
            self.busy, self.waiting, self.last_problem = seen
            self.changed.emit()
