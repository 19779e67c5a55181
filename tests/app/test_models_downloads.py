"""Downloads in the window: watched, paused, cancelled only when meant, still there at a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer, Repository, Trouble
from models_page import models, open_page, page_of, press, settled
from pytestqt.qtbot import QtBot
from transfers import NAME, model_files, plan_of

from app.backend.files import AppFolders
from app.backend.transfer.queue import DownloadView, Problem, State
from app.desktop import Desktop
from app.ui.downloads_section import DownloadCard
from app.ui.model_words import download_words


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(Repository(NAME, model_files(400_000))) as server:
        yield server


def slow(_path: str) -> Trouble:
    return Trouble(slow=0.05, piece=10_000)


def begin(desktop: Desktop, qtbot: QtBot, hub: HubServer, data: Path) -> DownloadCard:
    """Asks for the model; its card."""
    (data / "models").mkdir(parents=True, exist_ok=True)
    desktop.models.downloads.add(plan_of(hub, hub.repositories[NAME]), data / "models")
    return card_of(desktop, qtbot)


def card_of(desktop: Desktop, qtbot: QtBot) -> DownloadCard:
    cards = page_of(desktop).downloads_section.cards.cards
    qtbot.waitUntil(lambda: len(cards) == 1)
    return next(iter(cards.values()))


def test_a_download_is_watched_to_its_end_and_used(
    open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer
) -> None:
    desktop = open_page(open_window, qtbot, folders.data, hub.endpoint, "downloads")
    page = page_of(desktop)
    assert page.downloads_section.empty.isVisible()
    hub.trouble = slow
    card = begin(desktop, qtbot, hub, folders.data)
    assert not page.downloads_section.empty.isVisible()
    qtbot.waitUntil(lambda: page.tabs["downloads"].text() == "&Downloads (1)")
    qtbot.waitUntil(lambda: 0 < card.bar.value() < 1000)
    assert card.badge.text() == "Downloading"
    qtbot.waitUntil(lambda: card.view.state is State.DONE, timeout=20_000)
    qtbot.waitUntil(card.use.isVisible)
    assert card.words.text().endswith("every file verified")
    assert page.tabs["downloads"].text() == "&Downloads"
    qtbot.waitUntil(lambda: [model.name for model in models(desktop)] == [NAME])
    press(qtbot, card.forget)
    qtbot.waitUntil(page.downloads_section.empty.isVisible)
    settled(qtbot, desktop)


def test_figures_come_at_most_ten_times_a_second(
    open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer
) -> None:
    desktop = open_page(open_window, qtbot, folders.data, hub.endpoint, "downloads")
    hub.trouble = slow
    begin(desktop, qtbot, hub, folders.data)
    changes: list[int] = []
    desktop.models.downloads.changed.connect(lambda: changes.append(1))
    qtbot.wait(1000)
    assert 3 <= len(changes) <= 12  # and at a change of state
    desktop.models.downloads.pause(desktop.models.downloads.views[0].id)
    qtbot.waitUntil(lambda: desktop.models.downloads.views[0].state is State.PAUSED)
    settled(qtbot, desktop)


def test_a_pause_keeps_what_came_and_a_cancel_asks_first(
    open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer
) -> None:
    desktop = open_page(open_window, qtbot, folders.data, hub.endpoint, "downloads")
    hub.trouble = slow
    card = begin(desktop, qtbot, hub, folders.data)
    qtbot.waitUntil(lambda: card.bar.value() > 0)
    press(qtbot, card.pause)
    qtbot.waitUntil(card.resume.isVisible)
    assert card.badge.text() == "Paused"
    unfinished = folders.data / "models" / ".unblur" / "downloads"
    assert any(unfinished.iterdir())
    press(qtbot, card.cancel)
    assert card.sure.text().startswith("Cancel, and delete the ")
    assert card.keep.hasFocus()
    press(qtbot, card.keep)
    assert not card.sure.isVisible()
    assert any(unfinished.iterdir())
    press(qtbot, card.cancel)
    press(qtbot, card.drop)
    qtbot.waitUntil(page_of(desktop).downloads_section.empty.isVisible)
    qtbot.waitUntil(lambda: not any(unfinished.iterdir()))
    settled(qtbot, desktop)


def test_a_download_goes_on_when_the_window_is_opened_again(
    open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer
) -> None:
    first = open_page(open_window, qtbot, folders.data, hub.endpoint, "downloads")
    hub.trouble = slow
    card = begin(first, qtbot, hub, folders.data)
    qtbot.waitUntil(lambda: card.bar.value() > 100)
    settled(qtbot, first)
    first.window.close()
    hub.trouble = lambda _path: None
    second = open_page(open_window, qtbot, folders.data, hub.endpoint, "downloads")
    again = card_of(second, qtbot)
    qtbot.waitUntil(lambda: again.view.state is State.DONE, timeout=20_000)
    settled(qtbot, second)


def test_a_failed_download_says_what_to_do_and_goes_on_by_a_press(
    open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer
) -> None:
    desktop = open_page(open_window, qtbot, folders.data, hub.endpoint, "downloads")
    hub.trouble = lambda path: Trouble(wrong=True) if "safetensors" in path else None
    card = begin(desktop, qtbot, hub, folders.data)
    qtbot.waitUntil(card.problem.isVisible, timeout=20_000)
    assert card.problem.code.text().startswith("transfer.")
    assert card.badge.text() == "Stopped"
    hub.trouble = lambda _path: None
    press(qtbot, card.problem.button)
    qtbot.waitUntil(lambda: card.view.state is State.DONE, timeout=20_000)
    assert not card.problem.isVisible()
    settled(qtbot, desktop)


def test_asking_twice_is_refused_in_words(
    open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer
) -> None:
    desktop = open_page(open_window, qtbot, folders.data, hub.endpoint, "library")
    hub.trouble = slow
    begin(desktop, qtbot, hub, folders.data)
    begin(desktop, qtbot, hub, folders.data)
    section = page_of(desktop).downloads_section
    qtbot.waitUntil(section.problem.isVisible)
    assert section.problem.code.text() == "transfer.already_queued"
    press(qtbot, section.problem.button)
    assert not section.problem.isVisible()
    settled(qtbot, desktop)


@pytest.mark.parametrize(
    ("state", "more", "words"),
    [
        (
            State.RUNNING,
            {"bytes_per_second": 84.2e6, "seconds_left": 240.0},
            "84.2 MB/s · 4 min left",
        ),
        (State.RUNNING, {"bytes_per_second": 1e6, "waiting": "Cut."}, "12.4 GB of 32.6 GB"),
        (State.RUNNING, {}, "12.4 GB of 32.6 GB"),
        (State.QUEUED, {}, "Waiting for its turn · 12.4 GB of 32.6 GB"),
        (State.PAUSED, {}, "Paused · 12.4 GB of 32.6 GB"),
        (State.FAILED, {"problem": Problem("a.b", "c", "d")}, "Stopped by a problem · 12.4 GB"),
        (State.DONE, {}, "32.6 GB, every file verified"),
    ],
)
def test_a_download_in_one_line(state: State, more: dict[str, object], words: str) -> None:
    view = DownloadView(
        "1",
        NAME,
        "a" * 40,
        Path(),
        state,
        12_400_000_000,
        32_600_000_000,
        **more,  # pyright: ignore[reportArgumentType]
    )
    assert words in download_words(view)
