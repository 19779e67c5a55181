"""Two traces side by side: chosen from what is at hand, coloured by difference, told in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from inspector_traces import large_trace, small_trace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog
from pytestqt.qtbot import QtBot

from app.models.inspector import Source
from app.models.inspector_compare import CompareModel
from app.ui.inspector.compare_panel import ComparePanel
from app.ui.inspector.inks import inks_of
from app.ui.inspector.page import InspectorPage
from engine.trace import Trace, TraceHeader, save_trace
from engine.trace.compare import Difference


def other_trace() -> Trace:
    """The small trace with another token at position 6 of its last step."""
    trace = small_trace()
    ids = trace.ids.copy()
    ids[4, 2] = 6
    return replace(trace, ids=ids, header=replace(trace.header, trace_id="other"))


@pytest.fixture
def page(open_window) -> InspectorPage:
    window = open_window(loaded=False).window
    window.rail.choose("inspector")
    window.inspector.show(small_trace(), Source.FILE, "small.dntrace")
    window.inspector_page.side.tabs["compare"].click()
    QApplication.processEvents()
    return window.inspector_page


def panel_of(page: InspectorPage) -> ComparePanel:
    panel = page.side.panels["compare"]
    assert isinstance(panel, ComparePanel)
    return panel


def compare_with(page: InspectorPage, qtbot: QtBot, other: Trace) -> CompareModel:
    compare = page.window().comparison
    compare.start(other, "other.dntrace")
    qtbot.waitUntil(lambda: compare.result is not None, timeout=3000)
    QApplication.processEvents()
    return compare


def test_a_file_is_chosen_and_the_difference_is_seen_and_said(
    page: InspectorPage, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_trace(other_trace(), tmp_path / "other.dntrace")
    monkeypatch.setattr(
        QFileDialog, "getOpenFileName", lambda *_: (str(tmp_path / "other.dntrace"), "")
    )
    panel = panel_of(page)
    panel.fill_menu()
    panel.menu.actions()[-1].trigger()
    qtbot.waitUntil(lambda: page._model.difference is not None, timeout=3000)
    assert panel.head.text() == "A: this trace\nB: other.dntrace"
    assert "position 14: A has “ mat”" in panel.words.text()
    assert page.fill.buttons["difference"].isVisible()
    assert page.fill.buttons["difference"].isChecked()
    QTest.mouseClick(panel.go, Qt.MouseButton.LeftButton)
    assert (page._model.selection.step, page._model.selection.position) == (4, 6)
    assert panel.cell.text() == "Step 5 of 5: another token"
    page._model.select(position=4)
    assert panel.cell.text() == "Step 5 of 5: the same"
    assert [label.text() for label in panel.figures["steps"]] == ["Steps", "5", "5"]


def test_a_lone_difference_is_seen_in_a_thinned_raster(page: InspectorPage, qtbot: QtBot) -> None:
    trace = large_trace()
    ids = trace.ids.copy()
    ids[700:, 5] += 1
    page._model.show(trace, Source.FILE, "large")
    compare_with(page, qtbot, replace(trace, ids=ids, header=TraceHeader(trace_id="b")))
    raster = page.raster
    assert raster.thinned > 2
    assert set(np.unique(page._model.difference)) == {Difference.SAME, Difference.TOKEN} | {
        Difference.GUESS
    }
    image = raster.grab().toImage()
    position = int(trace.block[701]) * 32 + 5
    y = round((raster.y_of(position) + raster.y_of(position + 1)) / 2)
    fills = inks_of(page._theme.colors, "difference").fills
    token = fills[round(Difference.TOKEN / max(Difference) * (len(fills) - 1))].name()
    x = raster.width() - 30
    near = {image.pixelColor(x, y + dy).name() for dy in (-1, 0, 1)}
    assert token in near


def test_stopping_gives_the_colours_back(page: InspectorPage, qtbot: QtBot) -> None:
    compare_with(page, qtbot, other_trace())
    panel = panel_of(page)
    QTest.mouseClick(panel.stop, Qt.MouseButton.LeftButton)
    assert page._model.fill == "confidence"
    assert not page.fill.buttons["difference"].isVisible()
    assert not panel.area.isVisible()


def test_another_trace_ends_the_comparison(page: InspectorPage, qtbot: QtBot) -> None:
    compare = compare_with(page, qtbot, other_trace())
    page._model.show(large_trace(64, 20), Source.FILE, "large")
    assert compare.result is None
    assert page._model.levels.fill == "confidence"


def test_traces_on_different_grids_are_told_apart_in_words_only(
    page: InspectorPage, qtbot: QtBot
) -> None:
    compare = compare_with(page, qtbot, large_trace(64, 20))
    assert compare.result.raster is None
    assert page._model.difference is None
    assert page._model.fill == "confidence"
    assert panel_of(page).words.text() != ""
    assert not panel_of(page).go.isVisible()


def test_an_answer_of_the_chat_is_at_hand(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    for prompt in ("first question", "second question"):
        desktop.chat.send(prompt)
        qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
    desktop.window.inspect(desktop.chat.current.messages[-1].id)
    desktop.window.inspector_page.side.tabs["compare"].click()
    panel = panel_of(desktop.window.inspector_page)
    panel.fill_menu()
    names = [action.text() for action in panel.menu.actions() if action.text()]
    assert names == ["first question", "A trace file…"]
    panel.menu.actions()[0].trigger()
    qtbot.waitUntil(lambda: desktop.window.comparison.result is not None, timeout=3000)
