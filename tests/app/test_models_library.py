"""On this computer: models seen, used, verified, repaired, deleted and brought back."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from hub_server import HubServer, Repository
from library_models import fill_cache, put_model
from models_page import library_card, models, open_page, page_of, press, settled, tiny_files
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QPushButton
from pytestqt.qtbot import QtBot
from services import services_in
from transfers import NAME, QUICK, serving

from app.backend.files import AppFolders
from app.backend.hub.client import Hub
from app.backend.hub.ref import ModelRef
from app.backend.library.scan import Presence
from app.backend.transfer.download import Download
from app.backend.transfer.fetch import Policy
from app.backend.transfer.queue import State
from app.models.lifecycle import Lifecycle
from app.models.model_states import Checking
from app.models.model_store import ModelStore
from engine.fake import FakeLoader, FakeScript

WORDS = ("Use", "Verify", "Make an NVFP4 copy", "Delete")


def put(hub: HubServer, data: Path, name: str = NAME) -> Path:
    """A model on the disk as a download leaves it."""
    asked = Hub(lambda: None, hub.endpoint)
    plan = asked.plan(asked.look_up(ModelRef(name)))
    root = data / "models"
    root.mkdir(parents=True, exist_ok=True)
    return Download(plan, root, lambda _: None, Policy()).run()


def test_an_empty_library_says_so_and_leads_to_find(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    desktop = open_page(open_window, qtbot, folders.data)
    page = page_of(desktop)
    assert page.library_section.empty.isVisible()
    assert "free" in page.library_section.target.text()
    press(qtbot, page.library_section.find_button)
    assert page.find_section.isVisible()
    assert page.find_section.edit.hasFocus()


def test_a_model_is_shown_with_its_facts_and_used_from_here(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    with serving(4000) as (hub, _):
        path = put(hub, folders.data)
    desktop = open_page(open_window, qtbot, folders.data)
    card = library_card(desktop, qtbot, NAME)
    facts = card.facts.text()
    assert all(word in facts for word in ("LLaDA2", "licence apache-2.0", "version "))
    assert card.badge.text() == "Supported"
    assert card.path.text() == str(path)
    press(qtbot, card.use)
    assert desktop.window.chat_page.isVisible()
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.READY)
    assert desktop.engine.path == str(path)
    assert card.badge.text() == "In use"
    assert not card.delete.isEnabled()
    assert card.delete.toolTip() == "It is in use: unload it first."


def test_a_deleted_model_comes_back_until_the_window_closes(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    with serving(4000) as (hub, _):
        path = put(hub, folders.data)
    desktop = open_page(open_window, qtbot, folders.data)
    press(qtbot, library_card(desktop, qtbot, NAME).delete)
    section = page_of(desktop).library_section
    qtbot.waitUntil(lambda: bool(section.undo.cards) and not models(desktop))
    settled(qtbot, desktop)
    assert not path.exists()
    (card,) = section.undo.cards.values()
    undo = card.findChild(QPushButton)
    assert isinstance(undo, QPushButton)
    assert undo.accessibleName() == f"Bring {NAME} back"
    press(qtbot, undo)
    qtbot.waitUntil(lambda: path.exists() and bool(models(desktop)))
    press(qtbot, library_card(desktop, qtbot, NAME).delete)
    qtbot.waitUntil(lambda: not path.exists() and not models(desktop))
    trash = folders.data / "models" / ".unblur" / "trash"
    assert any(trash.iterdir())
    desktop.window.close()
    assert not trash.exists()


def test_a_drive_that_is_not_there_is_absent_and_not_empty(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    with serving(4000) as (hub, _):
        put(hub, tmp_path / "drive")
    drive = tmp_path / "drive" / "models"
    desktop = open_page(open_window, qtbot, folders.data)
    desktop.models.library.add_folder(drive)
    library_card(desktop, qtbot, NAME)
    settled(qtbot, desktop)
    shutil.move(drive, tmp_path / "elsewhere")
    section = page_of(desktop).library_section
    press(qtbot, section.again)
    qtbot.waitUntil(lambda: not models(desktop))
    block = section.folders.cards[drive]
    assert block.view is not None
    assert block.view.presence is Presence.ABSENT
    assert block.note.text().startswith("Absent.")
    assert not section.empty.isVisible()
    shutil.move(tmp_path / "elsewhere", drive)
    press(qtbot, section.again)
    library_card(desktop, qtbot, NAME)
    assert not block.note.isVisible()


def test_what_cannot_be_read_is_named_beside_the_models_that_can(
    open_window, qtbot: QtBot, folders: AppFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folders.data / "models"
    put_model(root / "someone" / "good")
    (root / "locked").mkdir()
    real = Path.iterdir

    def refused(path: Path):
        if path == root / "locked":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    desktop = open_page(open_window, qtbot, folders.data)
    library_card(desktop, qtbot, NAME)
    block = page_of(desktop).library_section.folders.cards[root]
    qtbot.waitUntil(block.note.isVisible)  # the card beside it may be laid out first
    assert block.note.text() == "Not shown, since it cannot be read: locked."
    settled(qtbot, desktop)


def test_folders_can_be_dropped_on_the_page(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    with serving(4000) as (hub, _):
        put(hub, tmp_path / "ein Ordner\u3000模型")
    desktop = open_page(open_window, qtbot, folders.data)
    section = page_of(desktop).library_section
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(tmp_path / "ein Ordner\u3000模型" / "models"))])
    action, buttons = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton
    none = Qt.KeyboardModifier.NoModifier
    enter = QDragEnterEvent(QPoint(50, 50), action, mime, buttons, none)
    QApplication.sendEvent(section.viewport(), enter)
    assert enter.isAccepted()
    assert section.summary.property("card") == "drop"
    QApplication.sendEvent(
        section.viewport(), QDropEvent(QPointF(50, 50), action, mime, buttons, none)
    )
    assert section.summary.property("card") == "true"
    library_card(desktop, qtbot, NAME)
    text = QMimeData()
    text.setText("words")
    refused = QDragEnterEvent(QPoint(50, 50), action, text, buttons, none)
    QApplication.sendEvent(section.viewport(), refused)
    assert section.summary.property("card") == "true"


def test_a_dropped_file_is_refused_in_words(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    file = tmp_path / "a file"
    file.touch()
    desktop = open_page(open_window, qtbot, folders.data)
    desktop.models.library.add_folder(file)
    problem = page_of(desktop).library_section.problem
    qtbot.waitUntil(problem.isVisible)
    assert problem.code.text() == "library.not_a_folder"
    press(qtbot, problem.button)
    assert not problem.isVisible()
    settled(qtbot, desktop)


def test_another_folder_for_downloads_is_chosen(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path, monkeypatch
) -> None:
    chosen = tmp_path / "big disk"
    chosen.mkdir()
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(chosen))
    desktop = open_page(open_window, qtbot, folders.data)
    section = page_of(desktop).library_section
    press(qtbot, section.relocate)
    qtbot.waitUntil(lambda: str(chosen) in section.target.text())
    settled(qtbot, desktop)


def test_damaged_files_are_named_and_only_they_are_fetched_again(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    with serving(4000, 4000) as (hub, _):
        path = put(hub, folders.data)
        shard = path / "model-00002-of-00002.safetensors"
        right = shard.read_bytes()
        shard.write_bytes(right[:-1] + b"!")
        desktop = open_page(open_window, qtbot, folders.data, hub.endpoint)
        card = library_card(desktop, qtbot, NAME)
        press(qtbot, card.check)
        qtbot.waitUntil(card.repair.isVisible)
        assert card.outcome.text().startswith("Wrong: 1 of ")
        assert shard.name in card.outcome.text()
        hub.requests.clear()
        press(qtbot, card.repair)
        page = page_of(desktop)
        qtbot.waitUntil(page.downloads_section.isVisible)
        downloads = desktop.models.downloads
        qtbot.waitUntil(lambda: [v.state for v in downloads.views] == [State.DONE])
        fetched = {r.path.partition("?")[0].rpartition("/")[2] for r in hub.file_requests()}
        assert fetched == {shard.name}
    assert shard.read_bytes() == right
    page.choose("library")
    press(qtbot, card.check)
    qtbot.waitUntil(lambda: card.outcome.text() == "Every file is as published.")
    settled(qtbot, desktop)


def test_verifying_can_be_stopped(
    open_window, qtbot: QtBot, folders: AppFolders, monkeypatch
) -> None:
    with serving(4000) as (hub, _):
        path = put(hub, folders.data)
    begun: list[bool] = []

    def endless(_model, stop, progress):
        progress(1000, 4000)
        begun.append(True)
        stop.wait(30)

    monkeypatch.setattr("app.models.library.verify", endless)
    desktop = open_page(open_window, qtbot, folders.data)
    card = library_card(desktop, qtbot, NAME)
    press(qtbot, card.check)
    qtbot.waitUntil(
        lambda: bool(begun) and "%" in card.outcome.text() and card.progress.value() > 0
    )
    assert card.check.text() == "Stop verifying"
    press(qtbot, card.check)
    qtbot.waitUntil(lambda: card.check.text() == "Verify" and card.check.isEnabled())
    assert desktop.models.library.check_of(path).state is Checking.UNCHECKED


def test_two_versions_of_a_model_name_each_other(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    with serving(4000) as (hub, repository):
        put(hub, folders.data)
        repository.files["added_tokens.json"] = repository.files["config.json"]
        put(hub, tmp_path / "other")
    desktop = open_page(open_window, qtbot, folders.data)
    desktop.models.library.add_folder(tmp_path / "other" / "models")
    qtbot.waitUntil(lambda: len(models(desktop)) == 2)
    settled(qtbot, desktop)
    section = page_of(desktop).library_section
    one, two = models(desktop)
    cards = section.card_of(one.path), section.card_of(two.path)
    assert cards[0] is not None
    assert cards[1] is not None
    assert str(two.path) in cards[0].doubles.text()
    assert str(one.path) in cards[1].doubles.text()
    assert f"version {two.commit[:8]}" in cards[0].doubles.text()


def test_every_button_of_a_card_is_reached_by_tab_and_says_of_which_model(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    with serving(4000) as (hub, _):
        put(hub, folders.data)
    desktop = open_page(open_window, qtbot, folders.data)
    card = library_card(desktop, qtbot, NAME)
    section = page_of(desktop).library_section
    qtbot.waitUntil(lambda: card.use.isVisible() and not section._order.isActive())
    card.use.setFocus()
    names = [card.use.accessibleName()]
    for _ in range(3):
        QTest.keyClick(desktop.window, Qt.Key.Key_Tab)
        focused = QApplication.focusWidget()
        assert focused is not None
        names.append(focused.accessibleName())
    assert names == [f"{word}: {NAME}" for word in WORDS]
    QTest.keyClick(card.delete, Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: not models(desktop))
    settled(qtbot, desktop)


def test_files_that_cannot_be_opened_are_a_card_whose_button_tries_again(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    from services import services_in

    tries: list[int] = []
    make = services_in(folders.data)

    def fails_once(on_change):
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no such disk")
        return make(on_change)

    store = ModelStore(fails_once)
    desktop = open_window(models=store, loaded=False, loader=FakeLoader(FakeScript()))
    desktop.window.rail.choose("models")
    page = page_of(desktop)
    qtbot.waitUntil(page.problem.isVisible)
    press(qtbot, page.problem.button)
    qtbot.waitUntil(lambda: page.library_section.empty.isVisible())
    assert not page.problem.isVisible()
    settled(qtbot, desktop)


def test_a_model_of_the_fixtures_offers_a_copy_and_a_refused_one_does_not(
    open_window, qtbot: QtBot, folders: AppFolders, shared_fixtures: Path
) -> None:
    files = tiny_files(shared_fixtures)
    with HubServer(Repository("fix/LLaDA2.1-tiny", files)) as hub:
        put(hub, folders.data, "fix/LLaDA2.1-tiny")
    refused = folders.data / "models" / "someone" / "not diffusion"
    refused.mkdir(parents=True)
    (refused / "config.json").write_text('{"model_type": "qwen3", "torch_dtype": "bfloat16"}')
    desktop = open_page(open_window, qtbot, folders.data)
    tiny = library_card(desktop, qtbot, "fix/LLaDA2.1-tiny")
    other = library_card(desktop, qtbot, "someone/not diffusion")
    qtbot.waitUntil(lambda: tiny.isVisible() and other.isVisible())
    assert tiny.copy.isVisible()
    assert not other.copy.isVisible()
    assert not other.use.isEnabled()
    assert "not a diffusion language model" in other.reason.text()


def test_damaged_files_of_hugging_faces_cache_are_repaired_by_a_press(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(4000) as (hub, _):
        cache = tmp_path / "hub"
        fill_cache(cache, hub.endpoint, ["*.json", "*.safetensors"], monkeypatch)
        content = next(cache.glob("models--*/snapshots/*/model.safetensors")).resolve()
        right = content.read_bytes()
        content.write_bytes(right[:-1] + b"!")
        store = ModelStore(services_in(folders.data, hub.endpoint, cache, QUICK))
        desktop = open_window(models=store, loaded=False)
        desktop.window.rail.choose("models")
        card = library_card(desktop, qtbot, NAME)
        press(qtbot, card.check)
        qtbot.waitUntil(card.repair.isVisible)
        press(qtbot, card.repair)
        qtbot.waitUntil(lambda: [v.state for v in store.downloads.views] == [State.DONE])
        settled(qtbot, desktop)
    assert content.read_bytes() == right


ODD_NAMES = ["a\u3000b", "line\nbreak", "<b>bold & co", "n" * 200, "\u202eltr", "\U0001f32b"]
NO_TEXT = os.fsdecode(b"not \xff text")  # a name in the encoding of another time


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have fewer names")
@pytest.mark.parametrize("name", [*ODD_NAMES, NO_TEXT], ids=ascii)
def test_a_folder_of_any_name_is_shown_verified_deleted_and_brought_back(
    open_window, qtbot: QtBot, folders: AppFolders, name: str
) -> None:
    path = folders.data / "models" / "owner" / name
    put_model(path)
    (path / "unblur-model.json").unlink()  # so that the folder's name is the model's
    desktop = open_page(open_window, qtbot, folders.data)
    card = library_card(desktop, qtbot, f"owner/{name}")
    press(qtbot, card.check)
    qtbot.waitUntil(lambda: "whole by length" in card.outcome.text())
    assert card.title.textFormat() is Qt.TextFormat.PlainText
    press(qtbot, card.delete)
    qtbot.waitUntil(lambda: not path.exists() and not models(desktop))
    section = page_of(desktop).library_section
    qtbot.waitUntil(lambda: bool(section.undo.cards))
    (undo,) = section.undo.cards.values()
    button = undo.findChild(QPushButton)
    assert isinstance(button, QPushButton)
    press(qtbot, button)
    qtbot.waitUntil(lambda: path.exists() and bool(models(desktop)))
    settled(qtbot, desktop)
