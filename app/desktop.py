"""Puts the desktop app together: Qt's application, files, models and the window, in that order.

It knows construction and the order of starting and ending. It refuses to know behaviour. torch is
not imported here: the engine's worker thread does that when a load starts, with the window already
on screen.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass

from PySide6.QtCore import QMessageLogContext, QSettings, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from app import STARTED
from app.backend.chat_store.store import ChatStore
from app.backend.files import AppFolders, standard_folders
from app.backend.gpu import GpuSampler
from app.backend.logs import start_logging, stop_logging
from app.backend.model_services import open_services
from app.backend.server_key import ServerKey
from app.backend.settings import SettingsStore
from app.cli import version
from app.models.chat import ChatModel
from app.models.engine_model import EngineModel
from app.models.gpu_meter import GpuMeter, Sampler
from app.models.model_store import ModelStore, ServicesMaker
from app.models.server import ServerModel
from app.models.worker import load_real_engine
from app.ui.main_window import MainWindow
from app.ui.theme import Theme, load_fonts
from engine.protocol import EngineLoader

log = logging.getLogger("unblur")
NAME = "Unblur"
OPEN_MODELS_MS = 3000
NO_WINDOW = (
    "The window cannot open: Qt reached no screen here. Check that DISPLAY, WAYLAND_DISPLAY and\n"
    "QT_QPA_PLATFORM name one that exists, and that this user may use it.\n"
    "Without a window, this works as it is: unblur generate PROMPT"
)


@dataclass(frozen=True)
class Desktop:
    """Everything a running window consists of."""

    window: MainWindow
    theme: Theme
    engine: EngineModel
    chat: ChatModel
    settings: SettingsStore
    models: ModelStore
    server: ServerModel


def make_application() -> QApplication:
    """The one QApplication, named, with the bundled fonts."""
    QApplication.setApplicationName(NAME)
    QApplication.setDesktopFileName("unblur")
    app = QApplication.instance()
    if not isinstance(app, QApplication):
        before = qInstallMessageHandler(_qt_speaks_before_a_window)
        app = QApplication(sys.argv[:1])
        qInstallMessageHandler(before)
    app.setApplicationDisplayName(NAME)
    load_fonts()
    return app


def _qt_speaks_before_a_window(kind: QtMsgType, _context: QMessageLogContext, message: str) -> None:
    """Without a platform to run on, Qt says so and aborts the process: end it in order instead."""
    if sys.stderr is not None:
        print(message.strip(), file=sys.stderr, flush=True)
    if kind is QtMsgType.QtFatalMsg:
        if sys.stderr is not None:
            print(NO_WINDOW, file=sys.stderr, flush=True)
        os._exit(1)  # nothing is open yet, and Qt's own end would follow any other


def build(
    app: QApplication,
    folders: AppFolders,
    loader: EngineLoader = load_real_engine,
    sampler: Sampler | None = None,
    geometry: QSettings | None = None,
    notices: tuple[str, ...] = (),
    models: ModelStore | None = None,
) -> Desktop:
    """Makes the window and what stands behind it. Nothing is loaded and nothing is shown yet.
    models: what is behind the Models page, the person's own if omitted."""
    settings = SettingsStore(folders.settings_file)
    theme = Theme(app, settings.current.appearance)
    theme.reduce_motion = settings.current.reduce_motion
    engine = EngineModel(loader)
    chat = ChatModel(engine, ChatStore(folders.conversations), settings)
    chat.import_old(folders.old_conversations)
    meter = GpuMeter(engine, sampler or GpuSampler())
    models = models or ModelStore(_services_of(folders))
    server = ServerModel(engine, settings, ServerKey(folders.data / "server.key"))
    window = MainWindow(
        theme, settings, folders, engine, chat, meter, models, server, geometry, notices
    )
    for model in (engine, chat, meter, models, server):
        model.setParent(window)
    return Desktop(window, theme, engine, chat, settings, models, server)


def _services_of(folders: AppFolders) -> ServicesMaker:
    return lambda on_change: open_services(folders.data, on_change=on_change, version=version())


def run_window(
    startup_time: bool = False, model: str | None = None, trace: str | None = None
) -> int:
    """Opens the window and runs until it is closed. startup_time: print when it was usable, counted
    from the first line of this program, then close. trace: a file to show in the inspector; then no
    model is loaded unless one is named.
    """
    app = make_application()
    folders = standard_folders()
    problem = start_logging(folders.logs)
    geometry = QSettings(NAME, NAME)
    desktop = build(app, folders, geometry=geometry, notices=(problem,) if problem else ())
    desktop.window.show()
    if startup_time:
        QTimer.singleShot(0, lambda: _report_startup(desktop.window))
    for name in (signal.SIGINT, signal.SIGTERM):  # seen when a timer next runs Python, see GpuMeter
        signal.signal(name, lambda *_: desktop.window.close())
    # the load starts once the first frame is out, so that it cannot delay it
    if trace is not None:
        QTimer.singleShot(0, lambda: desktop.window.open_trace(trace))
    if trace is None or model is not None:
        QTimer.singleShot(0, lambda: _load(desktop.engine, model))
    QTimer.singleShot(0, desktop.server.apply)
    # downloads go on by themselves, but not while the first load needs the disk
    QTimer.singleShot(OPEN_MODELS_MS, desktop.models.open)
    try:
        status = app.exec()
    finally:
        desktop.window.close()
        ended = desktop.engine.close() and desktop.models.close()
        stop_logging()
    if not ended:
        os._exit(1)  # a thread that hangs in the system cannot be ended, and Qt would crash on it
    return status


def _load(engine: EngineModel, model: str | None) -> None:
    if model is None:
        engine.load_demo()
    else:
        engine.load(model)


def _report_startup(window: MainWindow) -> None:
    window.repaint()
    print(f"usable window after {(time.perf_counter() - STARTED) * 1000:.0f} ms")
    window.close()
