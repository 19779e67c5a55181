"""What every test of the window gets: no screen, bundled fonts, no Qt warning and no leak.

`open_window` builds the whole window on the scripted engine, in folders of its own.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"

import pytest
import shiboken6
from PySide6.QtCore import QCoreApplication, QEvent, QThread, QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from services import services_in

from app.backend.files import AppFolders
from app.desktop import Desktop, build, make_application
from app.models.model_store import ModelStore
from engine.fake import FakeLoader, FakeScript
from engine.hardware import GpuSample
from engine.protocol import EngineLoader

HERE = Path(__file__).resolve().parent
OpenWindow = Callable[..., Desktop]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A warning of Qt's fails the test in which it appears, but for what a missing screen says."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.qt_log_level_fail("WARNING"))
            item.add_marker(pytest.mark.qt_log_ignore(r"This plugin does not support \w+\(\)"))


@pytest.fixture(scope="session")
def qapp() -> QApplication:
    return make_application()


class NoGpu:
    """A sampler that has looked and found no GPU."""

    latest: GpuSample | None = GpuSample(None, None, None, None, None, "No NVIDIA driver here.")
    report = None

    def start(self) -> None: ...

    def ask_for_report(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def folders(tmp_path: Path) -> AppFolders:
    return AppFolders(tmp_path / "data", tmp_path / "config", tmp_path / "logs")


@pytest.fixture
def open_window(qapp: QApplication, qtbot: QtBot, folders: AppFolders) -> Iterator[OpenWindow]:
    """`open_window(script=..., loader=..., loaded=True)`: a shown window, with the model loaded."""
    opened: list[Desktop] = []

    def make(
        script: FakeScript | None = None,
        loader: EngineLoader | None = None,
        loaded: bool = True,
        where: AppFolders | None = None,
        models: ModelStore | None = None,
    ) -> Desktop:
        loader = loader or FakeLoader(script or FakeScript(seconds_per_step=0.002))
        where = where or folders
        models = models or ModelStore(services_in(where.data))
        desktop = build(qapp, where, loader, NoGpu(), models=models)
        opened.append(desktop)
        desktop.theme.choose("light")
        desktop.window.show()
        qtbot.waitUntil(desktop.window.isActiveWindow)
        if loaded:
            desktop.engine.load_demo()
            qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
        return desktop

    yield make
    for desktop in opened:
        desktop.engine.stop()
        close(desktop)


def close(desktop: Desktop) -> None:
    """Closes a window and lets Qt delete it."""
    desktop.window.close()
    desktop.window.deleteLater()
    desktop.theme.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


LAST_WORDS = 3.0  # seconds threads may take to end after a test


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a thread, a running timer or a top-level window behind."""
    threads = set(threading.enumerate())
    windows = set(QApplication.topLevelWidgets()) if QApplication.instance() else set()
    yield
    if QApplication.instance() is None:
        return
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    new_threads = [
        thread
        for thread in threading.enumerate()
        if thread not in threads and not thread.name.startswith("Dummy")  # a QThread that logged
    ]
    deadline = time.monotonic() + LAST_WORDS
    for thread in new_threads:  # a server's last answer may still be ending on a busy machine
        thread.join(max(0.0, deadline - time.monotonic()))
    left = [thread.name for thread in new_threads if thread.is_alive()]
    assert not left, f"threads left: {left}"
    new = [str(w) for w in QApplication.topLevelWidgets() if w not in windows and w.isVisible()]
    assert not new, f"windows left: {new}"
    alive = [thing for thing in gc.get_objects() if _runs(thing)]
    assert not alive, f"left running: {alive}"


def _runs(thing: object) -> bool:
    if type(thing) is QTimer:
        return shiboken6.isValid(thing) and thing.isActive()
    if type(thing) is QThread:
        return shiboken6.isValid(thing) and thing.isRunning()
    return False
