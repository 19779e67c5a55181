"""Making an NVFP4 copy in the window: asked first, watched, stopped, and reported."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from models_page import library_card, models, open_page, page_of, press, settled
from pytestqt.qtbot import QtBot

from app.backend.files import AppFolders
from app.desktop import Desktop
from app.models.copying import CopyReport
from app.models.model_states import Copying
from app.ui.copy_card import CopyCard
from engine.errors import CheckpointError, RuntimeFailure
from engine.protocol import ProgressCallback
from engine.types import LoadProgress

NAME = "someone/tiny"


@pytest.fixture
def data(folders: AppFolders, shared_fixtures: Path) -> Path:
    shutil.copytree(shared_fixtures / "llada2-tiny", folders.data / "models" / NAME)
    return folders.data


def ask(desktop: Desktop, qtbot: QtBot) -> CopyCard:
    press(qtbot, library_card(desktop, qtbot, NAME).copy)
    return page_of(desktop).library_section.copy_card


def test_a_copy_is_made_compared_reported_and_used(open_window, qtbot: QtBot, data: Path) -> None:
    desktop = open_page(open_window, qtbot, data)
    card = ask(desktop, qtbot)
    target = data / "models" / "someone" / "tiny-NVFP4"
    assert card.path.text() == str(target)
    assert "The original stays as it is" in card.words.text()
    assert not target.exists()
    assert card.start.hasFocus()
    press(qtbot, card.start)
    qtbot.waitUntil(card.details.isVisible, timeout=60_000)
    assert "Relative error of the" in card.words.text()
    assert "the best token is the same at" in card.words.text()
    written = json.loads((target / "nvfp4-report.json").read_text("utf-8"))
    assert f"{written['relative_error']:.4f}" in card.words.text()
    assert not card.report.isVisible()
    press(qtbot, card.details)
    assert "Worst matrices" in card.report.text()
    copy = library_card(desktop, qtbot, "someone/tiny-NVFP4")
    assert "NVFP4" in copy.facts.text()
    assert not copy.copy.isVisible()  # it is one already
    press(qtbot, card.close_button)
    assert not card.isVisible()
    settled(qtbot, desktop)


def test_a_copy_shows_its_progress_and_stops(open_window, qtbot: QtBot, data: Path) -> None:
    seen: list[tuple[Path, Path]] = []

    def copier(
        source: Path, target: Path, progress: ProgressCallback, stop: threading.Event
    ) -> CopyReport:
        seen.append((source, target))
        progress(LoadProgress(250, 1000, "Quantising"))
        if len(seen) > 1:
            return CopyReport(target, "all of it", ("It went on.",))
        assert stop.wait(30)
        raise RuntimeFailure("quantise.stopped", "Stopped.", "Start it again.")

    desktop = open_page(open_window, qtbot, data, copier=copier)
    card = ask(desktop, qtbot)
    press(qtbot, card.start)
    qtbot.waitUntil(lambda: card.words.text() == "Quantising: 25%")
    assert card.progress.value() == 250
    row = library_card(desktop, qtbot, NAME)
    assert not row.copy.isEnabled()
    assert row.copy.toolTip() == "Another copy is being made."
    press(qtbot, card.stop)
    qtbot.waitUntil(lambda: desktop.models.copying.state is Copying.IDLE)
    press(qtbot, card.start)  # the same question again: it goes on
    qtbot.waitUntil(lambda: card.words.text() == "It went on.")
    assert seen[0] == seen[1]
    settled(qtbot, desktop)


def test_a_copy_that_cannot_be_made_says_why_and_can_be_tried_again(
    open_window, qtbot: QtBot, data: Path
) -> None:
    def copier(
        source: Path, target: Path, progress: ProgressCallback, stop: threading.Event
    ) -> CopyReport:
        raise CheckpointError("quantise.no_space", "Too little room.", "Free some.")

    desktop = open_page(open_window, qtbot, data, copier=copier)
    card = ask(desktop, qtbot)
    press(qtbot, card.start)
    qtbot.waitUntil(card.problem.isVisible)
    assert card.problem.code.text() == "quantise.no_space"
    assert card.problem.button.text() == "Try again"
    press(qtbot, card.problem.button)
    qtbot.waitUntil(card.problem.isVisible)
    press(qtbot, card.close_button)
    assert not card.isVisible()
    assert [model.name for model in models(desktop)] == [NAME]
    settled(qtbot, desktop)


def test_closing_the_window_stops_a_copy(open_window, qtbot: QtBot, data: Path) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def copier(
        source: Path, target: Path, progress: ProgressCallback, stop: threading.Event
    ) -> CopyReport:
        begun.set()
        if stop.wait(30):
            stopped.set()
        raise RuntimeFailure("quantise.stopped", "Stopped.", "Start it again.")

    desktop = open_page(open_window, qtbot, data, copier=copier)
    press(qtbot, ask(desktop, qtbot).start)
    qtbot.waitUntil(begun.is_set)
    settled(qtbot, desktop)
    desktop.window.close()
    assert stopped.is_set()
