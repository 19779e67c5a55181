"""The What if panel with a real mouse and keys: what can be run, what is run, what was tried."""

from __future__ import annotations

import pytest
from inspector_traces import small_trace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.desktop import Desktop
from app.models.inspector import Source
from app.ui.inspector.fork_panel import ForkPanel
from engine.fake import FakeScript


@pytest.fixture
def desktop(open_window, qtbot: QtBot) -> Desktop:
    """A window on the What if panel of a finished answer of four steps a block."""
    desktop = open_window(FakeScript(seconds_per_step=0.001, steps_per_block=4))
    desktop.chat.send("hello")
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    desktop.window.rail.choose("inspector")
    desktop.window.inspector_page.side.tabs["forks"].click()
    desktop.window.inspector.select(5, 40)
    QApplication.processEvents()
    return desktop


def panel_of(desktop: Desktop) -> ForkPanel:
    panel = desktop.window.inspector_page.side.panels["forks"]
    assert isinstance(panel, ForkPanel)
    return panel


def press(button) -> None:
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


def run(desktop: Desktop, qtbot: QtBot) -> None:
    press(panel_of(desktop).run_button)
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    QApplication.processEvents()


def rows(panel: ForkPanel) -> list[str]:
    items = (panel.tree.topLevelItem(i) for i in range(panel.tree.topLevelItemCount()))
    return [item.text(0) for item in items]


@pytest.mark.qt_log_ignore(r"This plugin does not support (raise\(\)|grabbing the keyboard)")
def test_a_forced_token_is_typed_run_and_shown(desktop: Desktop, qtbot: QtBot) -> None:
    panel = panel_of(desktop)
    assert panel.where.text() == "Before step 6 is taken, at position 40"
    assert not panel.run_button.isEnabled()
    assert "Type the token's text" in panel.reason.text()
    QTest.keyClicks(panel.token, " the")
    assert panel.reason.text() == "force “ the” at 40"
    run(desktop, qtbot)
    data = desktop.window.inspector.data
    assert data.text(data.now(data.steps - 1, 40).token) == " the"
    assert desktop.window.inspector_page.title.text() == "force “ the” at 40"
    assert rows(panel) == ["The last answer", "└ force “ the” at 40"]


def test_a_press_on_the_tree_shows_that_trace(desktop: Desktop, qtbot: QtBot) -> None:
    panel = panel_of(desktop)
    panel.kinds["none"].setChecked(True)
    assert panel.reason.text() == "unchanged: the same steps again"
    run(desktop, qtbot)
    item = panel.tree.topLevelItem(0)
    box = panel.tree.visualItemRect(item)
    QTest.mouseClick(panel.tree.viewport(), Qt.MouseButton.LeftButton, pos=box.center())
    assert desktop.window.inspector.data.trace.header.ancestry == ()
    assert desktop.window.inspector.selection.step == 5
    assert len(rows(panel)) == 2


def test_other_settings_are_said_and_recorded(desktop: Desktop, qtbot: QtBot) -> None:
    panel = panel_of(desktop)
    panel.kinds["none"].setChecked(True)
    panel.threshold.setValue(0.8)
    panel.editing.setValue(0.5)
    assert panel.reason.text() == "threshold 0.8, editing 0.5"
    run(desktop, qtbot)
    change = desktop.window.inspector.data.trace.header.parent.change
    assert (change.settings.threshold, change.settings.editing_threshold) == (0.8, 0.5)
    assert panel.threshold.value() == 0.8  # what is in force now
    panel.kinds["mask"].setChecked(True)
    assert panel.reason.text() == "take back 40"


@pytest.mark.parametrize(
    ("step", "position", "kind", "reason"),
    [
        (5, 0, "mask", "belongs to the prompt"),
        (9, 40, "mask", "is finished at this step"),
        (1, 40, "mask", "has not begun"),
        (5, 40, "force", "Type the token's text"),
    ],
)
def test_what_cannot_be_changed_is_said_before_it_is_tried(
    desktop: Desktop, step: int, position: int, kind: str, reason: str
) -> None:
    panel = panel_of(desktop)
    desktop.window.inspector.select(step, position)
    panel.kinds[kind].setChecked(True)
    assert not panel.run_button.isEnabled()
    assert reason in panel.reason.text()
    assert reason in panel.run_button.accessibleDescription()


def test_a_token_of_another_trace_needs_its_number(desktop: Desktop) -> None:
    panel = panel_of(desktop)
    panel.token.setText("nowhere to be found")
    assert "#123" in panel.reason.text()
    panel.token.setText("#5")
    assert panel.token_id() == 5
    assert panel.run_button.isEnabled()
    panel.token.setText("#٣")  # a digit of another script
    assert not panel.run_button.isEnabled()


def test_a_token_of_the_model_is_found_by_its_text(desktop: Desktop, qtbot: QtBot) -> None:
    panel = panel_of(desktop)
    wanted = desktop.engine._worker._engine.encode(" elsewhere")[0]
    panel.token.setText(" elsewhere")
    assert panel.look.isVisible()
    assert not panel.run_button.isEnabled()
    press(panel.look)
    qtbot.waitUntil(lambda: panel.token_id() == wanted, timeout=5000)
    qtbot.waitUntil(panel.run_button.isEnabled, timeout=5000)
    assert not panel.look.isVisible()
    panel.token.setText("no token at all")
    press(panel.look)
    qtbot.waitUntil(lambda: panel.reason.text() == "No token of this model reads like that.")
    assert not panel.look.isVisible()
    panel.token.setText(" elsewhere")
    run(desktop, qtbot)
    data = desktop.window.inspector.data
    assert data.text(data.now(data.steps - 1, 40).token) == " elsewhere"


def test_a_refusal_of_the_engine_is_a_card(desktop: Desktop, qtbot: QtBot) -> None:
    panel = panel_of(desktop)
    desktop.engine._worker._engine.script = FakeScript(default_answer="Another answer altogether.")
    panel.kinds["none"].setChecked(True)
    run(desktop, qtbot)
    page = desktop.window.inspector_page
    assert page.problem.isVisible()
    assert page.problem.code.text() == "trace.fork_differs"
    press(page.problem.button)
    assert not page.problem.isVisible()
    assert page.title.text() == "The last answer"


def test_without_a_model_the_panel_says_which_to_load(open_window) -> None:
    window = open_window(loaded=False).window
    window.rail.choose("inspector")
    window.inspector.show(small_trace(), Source.FILE, "small.dntrace")
    window.inspector_page.side.tabs["forks"].click()
    QApplication.processEvents()
    panel = window.inspector_page.side.panels["forks"]
    assert not panel.run_button.isEnabled()
    assert panel.reason.text() == "Load small to run a fork: no model is loaded."
    assert not panel.threshold.isEnabled()
