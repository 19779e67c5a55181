"""The Models and Settings pages: facts of the model in use, and choices that apply at once."""

from __future__ import annotations

import json

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from app.backend.files import AppFolders
from app.models.lifecycle import Lifecycle
from engine.errors import CheckpointError
from engine.fake import FakeLoader, FakeScript


def test_the_models_page_says_what_is_in_use(open_window) -> None:
    page = open_window().window.models_page.in_use
    assert page.name.text() == "scripted demo"
    assert "context 2,048 tokens" in page.facts.text()
    assert "plays back text" in page.notes.text()


def test_a_failed_load_is_explained_on_the_models_page_too(open_window, qtbot: QtBot) -> None:
    error = CheckpointError("checkpoint.no_config", "No config.json here.", "Open another.")
    desktop = open_window(loader=FakeLoader(error=error), loaded=False)
    desktop.engine.load("/some/folder")
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.FAILED)
    page = desktop.window.models_page.in_use
    assert page.name.text() == "Failed"
    assert page.path.text() == "/some/folder"
    assert page.facts.text() == "No config.json here."
    assert page.notes.text() == "Open another."


def test_unload_is_offered_only_with_a_model(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    desktop.window.rail.choose("models")
    button = desktop.window.models_page.in_use.unload_button
    assert button.isVisible()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.NO_MODEL)
    assert not button.isVisible()
    assert desktop.window.models_page.in_use.demo_button.isVisible()


def test_a_choice_of_appearance_applies_at_once_and_is_kept(
    open_window, folders: AppFolders
) -> None:
    desktop = open_window(loaded=False)
    page = desktop.window.settings_page
    page.appearance["dark"].click()
    assert desktop.theme.dark
    page.motion.click()
    assert desktop.theme.reduce_motion
    page.tokens.setValue(512)
    kept = json.loads(folders.settings_file.read_text("utf-8"))
    assert (kept["appearance"], kept["reduce_motion"], kept["answer_tokens"]) == ("dark", True, 512)


def test_the_settings_page_names_where_files_are(open_window, folders: AppFolders) -> None:
    page = open_window(loaded=False).window.settings_page
    shown = {label.text() for label in page.findChildren(QLabel)}
    assert {str(folders.conversations), str(folders.settings_file), str(folders.logs)} <= shown


def test_the_length_of_answers_is_the_settings(open_window, qtbot: QtBot) -> None:
    loader = FakeLoader(FakeScript())
    desktop = open_window(loader=loader)
    desktop.window.settings_page.tokens.setValue(64)
    desktop.chat.send("hello")
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    assert loader.engines[0].requests[0].max_new_tokens == 64
    assert desktop.chat.current.messages[-1].reason == "length"
