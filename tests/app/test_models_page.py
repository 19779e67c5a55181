"""The Models page as a whole: names for every control, no overflow, a window that stays awake."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hub_server import HubServer, Repository
from models_page import open_page, page_of, settled
from PySide6.QtCore import Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QLineEdit, QProgressBar, QWidget
from pytestqt.qtbot import QtBot
from transfers import NAME, model_files, plan_of

from app.backend.files import AppFolders
from app.backend.transfer.queue import State
from app.desktop import Desktop
from app.models.model_states import Opening, Scanning
from app.screenshots_models import show_downloads, show_library, store_for_pictures
from app.ui.model_parts import Section

LONG = "a folder with a rather long name that goes on for a while " * 3


def filled(open_window, qtbot: QtBot, tmp_path: Path) -> Desktop:
    """Every section with something in it: the page of the pictures."""
    desktop = open_window(models=store_for_pictures(tmp_path), loaded=False)
    desktop.window.rail.choose("models")
    store = desktop.models
    qtbot.waitUntil(lambda: store.library.state is Scanning.SHOWN)
    page = page_of(desktop)
    for section in ("find", "downloads", "library"):
        page.choose(section)
        qtbot.wait(50)
    qtbot.waitUntil(lambda: page.find_section.cards.complete)
    qtbot.waitUntil(lambda: store.downloads.views == () and not store.downloads._looking)
    show_library(store)
    show_downloads(store)
    return desktop


def test_every_control_has_a_name_for_a_screen_reader(
    open_window, qtbot: QtBot, tmp_path: Path
) -> None:
    page = page_of(filled(open_window, qtbot, tmp_path))
    kinds = (QAbstractButton, QLineEdit, QProgressBar)
    controls = [control for kind in kinds for control in page.findChildren(kind)]
    assert len(controls) > 80
    unnamed = [
        f"{type(control).__name__} in {type(control.parent()).__name__}"
        for control in controls
        if not control.accessibleName() and not control.isHidden()
    ]
    assert unnamed == []


def test_two_controls_with_one_name_are_not_beside_each_other(
    open_window, qtbot: QtBot, tmp_path: Path
) -> None:
    """A list of buttons that are all called Use is of no use to who only hears them."""
    page = page_of(filled(open_window, qtbot, tmp_path))
    for section in page.findChildren(Section):
        section.show()
        uses = [b for b in section.findChildren(QAbstractButton) if b.text() == "Use"]
        assert all(button.accessibleName() != "Use" for button in uses)


def test_nothing_is_wider_than_the_smallest_window(
    open_window, qtbot: QtBot, tmp_path: Path
) -> None:
    desktop = filled(open_window, qtbot, tmp_path)
    desktop.window.resize(960, 640)
    page = page_of(desktop)
    for key in page.tabs:
        page.choose(key)
        qtbot.wait(50)
        section = page._stack.currentWidget()
        assert isinstance(section, Section)
        content = section.widget()
        assert content.width() <= section.viewport().width(), key
        edges = [
            child.mapTo(section.viewport(), child.rect().topRight()).x()
            for child in content.findChildren(QWidget)
            if child.isVisible()
        ]
        assert max(edges) <= section.viewport().width(), key


@pytest.mark.parametrize(("key", "least"), [("library", 20), ("find", 60), ("downloads", 10)])
def test_tab_goes_through_a_section_from_top_to_bottom(
    open_window, qtbot: QtBot, tmp_path: Path, key: str, least: int
) -> None:
    page = page_of(filled(open_window, qtbot, tmp_path))
    page.choose(key)
    section = page._stack.currentWidget()
    assert isinstance(section, Section)
    qtbot.waitUntil(lambda: not section._order.isActive())
    qtbot.wait(50)
    page.tabs[key].setFocus(Qt.FocusReason.TabFocusReason)
    heights: list[int] = []
    while True:
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
        focused = QApplication.focusWidget()
        if not section.isAncestorOf(focused):
            break
        assert focused.isVisible()
        heights.append(focused.mapTo(section.widget(), focused.rect().center()).y())
        corner = focused.mapTo(section.viewport(), focused.rect().center())
        assert section.viewport().rect().contains(corner)  # it is scrolled to
    assert heights == sorted(heights)
    assert len(heights) >= least


def test_the_window_stays_awake_during_a_download(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    """The server runs in this very process, so that this is harder than in life."""
    with HubServer(Repository(NAME, model_files(12_000_000, 12_000_000))) as hub:
        desktop = open_page(open_window, qtbot, folders.data, hub.endpoint, "downloads")
        (folders.data / "models").mkdir(parents=True, exist_ok=True)
        lags: list[float] = []
        last = [time.perf_counter()]

        def note() -> None:
            now = time.perf_counter()
            lags.append(now - last[0] - 0.010)
            last[0] = now

        timer = QTimer()
        timer.setTimerType(Qt.TimerType.PreciseTimer)
        timer.timeout.connect(note)
        timer.start(10)
        desktop.models.downloads.add(plan_of(hub, hub.repositories[NAME]), folders.data / "models")
        done = lambda: [v.state for v in desktop.models.downloads.views] == [State.DONE]  # noqa: E731
        qtbot.waitUntil(done, timeout=30_000)
        timer.stop()
        settled(qtbot, desktop)
    assert len(lags) > 3
    assert max(lags) < 0.250


def test_nothing_is_opened_before_the_page_is_shown(
    qapp: QApplication, open_window, folders: AppFolders
) -> None:
    desktop = open_window(loaded=False)
    assert desktop.models.state is Opening.CLOSED
    assert not (folders.data / "models").exists()
    assert page_of(desktop).find_section.cards.cards == {}
