"""The inspector's page with real keys and a real mouse: every view moves one selection."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from inspector_traces import large_trace, small_trace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.backend.files import AppFolders
from app.models.inspector import Selection, Source
from app.ui.inspector.inks import draw_glyph, inks_of
from app.ui.inspector.page import InspectorPage
from app.ui.inspector.words import moment_sentence, share
from engine.fake import FakeScript
from engine.trace import Trace
from engine.types import TokenState

Key = Qt.Key


@pytest.fixture
def page(open_window) -> InspectorPage:
    """The page with the small trace, at its first step."""
    window = open_window(loaded=False).window
    window.rail.choose("inspector")
    window.inspector.show(small_trace(), Source.FILE, "small.dntrace")
    QApplication.processEvents()
    return window.inspector_page


def selection(page: InspectorPage) -> Selection:
    return page._model.selection


def pixels(widget) -> QImage:
    return widget.grab().toImage()


def on_screen(page: InspectorPage) -> QImage:
    """What has been painted so far, without painting anything again."""
    screen = page.screen()
    return screen.grabWindow(page.window().winId()).toImage()


def test_the_page_is_reached_by_its_number(open_window) -> None:
    window = open_window().window
    QTest.keyClick(window, Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert window.inspector_page.isVisible()
    assert window.inspector_page.empty.isVisible()
    assert window.inspector_page.open_button.isVisible()


@pytest.mark.parametrize(
    ("key", "step"),
    [(Key.Key_Period, 1), (Key.Key_PageDown, 3), (Key.Key_BracketRight, 2)],
)
def test_keys_of_the_page_work_from_any_view(page: InspectorPage, key: Key, step: int) -> None:
    for view in (page.canvas, page.raster, page.curves, page.timeline, page.card.history):
        page._model.scrub(0)
        view.setFocus()
        QTest.keyClick(view, key)
        assert selection(page).step == step, view.objectName()


def test_arrow_keys_move_along_what_has_focus(page: InspectorPage) -> None:
    page._model.select(position=1)
    QTest.keyClick(page.canvas, Key.Key_Right)
    assert selection(page) == Selection(0, 2)
    QTest.keyClick(page.raster, Key.Key_Down)
    QTest.keyClick(page.raster, Key.Key_Right)
    assert selection(page) == Selection(1, 3)
    QTest.keyClick(page.curves, Key.Key_Left)
    assert selection(page).step == 0
    QTest.keyClick(page.timeline, Key.Key_End)
    assert selection(page).step == 4
    QTest.keyClick(page.timeline, Key.Key_Left)
    QTest.keyClick(page.card.history, Key.Key_Up)  # position 3 ended in step 2
    assert selection(page).step == 1


def test_every_view_takes_focus_by_tab_and_has_a_name(page: InspectorPage) -> None:
    views = {page.canvas, page.raster, page.curves, page.timeline, page.card.history}
    seen = set()
    page.canvas.setFocus()
    for _ in range(80):
        focused = QApplication.focusWidget()
        seen.add(focused)
        assert focused.accessibleName(), focused
        QTest.keyClick(focused, Key.Key_Tab)
    assert views <= seen


def test_tab_goes_from_the_top_to_the_bottom(page: InspectorPage) -> None:
    wanted = [
        page.words,
        page.file_menu,
        page.fill.buttons["confidence"],
        page.canvas,
        page.raster,
        page.curves,
        page.timeline,
        page.side.tabs["position"],
        page.card.history,
        page.transport.play,
    ]
    page.capture.buttons["light"].setFocus()
    met = []
    for _ in range(60):
        focused = QApplication.focusWidget()
        if focused in wanted and focused not in met:
            met.append(focused)
        QTest.keyClick(focused, Key.Key_Tab)
    assert met == wanted


def test_the_view_with_the_focus_says_what_is_selected(page: InspectorPage) -> None:
    page.raster.setFocus()
    assert "Position 10" in page.raster.accessibleDescription()
    QTest.keyClick(page.raster, Key.Key_Down)
    assert page.raster.accessibleDescription() == moment_sentence(page._model)
    assert "Position 11" in page.raster.accessibleDescription()


def test_the_theme_may_change_while_a_trace_is_shown(page: InspectorPage) -> None:
    light = pixels(page)
    page._theme.choose("dark")
    QApplication.processEvents()
    dark = pixels(page)
    assert dark != light
    page._theme.choose("light")
    QApplication.processEvents()
    assert pixels(page) == light


def test_a_press_on_a_token_selects_it(page: InspectorPage) -> None:
    box = page.canvas._box(2).center().toPoint()
    QTest.mouseClick(page.canvas, Qt.MouseButton.LeftButton, pos=box)
    assert selection(page).position == 2
    assert "dog" not in page.card.now.text()
    page._model.scrub(2)
    assert "“ dog”, in place of “ cat”" in page.card.now.text()


def test_a_press_on_the_raster_selects_step_and_position(page: InspectorPage) -> None:
    axis, raster = page.axes.axis, page.raster
    point = QPoint(round(axis.x(3, raster.width())), round(raster.y_of(5.5)))
    QTest.mouseClick(raster, Qt.MouseButton.LeftButton, pos=point)
    assert selection(page) == Selection(3, 5)


def test_dragging_along_the_timeline_scrubs(page: InspectorPage) -> None:
    axis, line = page.axes.axis, page.timeline
    QTest.mousePress(
        line, Qt.MouseButton.LeftButton, pos=QPoint(round(axis.x(1, line.width())), 30)
    )
    assert selection(page).step == 1
    QTest.mouseMove(line, QPoint(round(axis.x(4, line.width())), 30))
    assert selection(page).step == 4
    QTest.mouseRelease(line, Qt.MouseButton.LeftButton)


def test_a_row_of_the_history_is_a_step(page: InspectorPage) -> None:
    page._model.select(position=2)
    QTest.mouseClick(page.card.history, Qt.MouseButton.LeftButton, pos=QPoint(40, 24 * 2 + 5))
    assert selection(page).step == 2
    assert page.card.history.row == 2


def test_space_plays_and_pauses(page: InspectorPage, qtbot: QtBot) -> None:
    page._model.choose_speed(60)
    page.canvas.setFocus()
    QTest.keyClick(page.canvas, Key.Key_Space)
    assert page.transport.play.accessibleName() == "Pause"
    qtbot.waitUntil(lambda: selection(page).step == 4, timeout=2000)
    qtbot.waitUntil(lambda: not page._model.playing, timeout=2000)
    assert page.transport.play.accessibleName() == "Play"


def test_leaving_the_page_pauses(page: InspectorPage) -> None:
    page._model.choose_speed(1)
    page._model.toggle_play()
    page.window().rail.choose("settings")
    assert not page._model.playing


def test_marks_are_said_beside_the_step(page: InspectorPage) -> None:
    QTest.keyClick(page.timeline, Key.Key_End)
    assert page.transport.marks.text() == "the block ended with 2 open; 1 taken back"
    assert page.transport.where.text() == "Step 5 of 5, block 2, its step 2, at 100.0 ms"


def test_colouring_by_something_else_repaints_both_views(page: InspectorPage) -> None:
    before = pixels(page.canvas), pixels(page.raster)
    page.fill.buttons["entropy"].click()
    assert pixels(page.canvas) != before[0]
    assert pixels(page.raster) != before[1]
    assert "entropy" in page.scale.accessibleDescription().lower()


def test_what_was_not_captured_is_hatched_everywhere_and_said(page: InspectorPage) -> None:
    page.fill.buttons["margin"].click()
    assert "did not capture" in page.scale.accessibleDescription()
    image = pixels(page.raster)
    plot = page.raster._plot().toRect()
    colors = {
        image.pixelColor(x, y).name()
        for x in range(plot.left() + 4, plot.center().x())
        for y in range(plot.top() + 8, plot.center().y())
    }
    page._model.select(position=3)
    assert "not captured" in page.card.candidates_head.text()
    inks = inks_of(page._theme.colors, "cividis")
    assert not colors & {fill.name() for fill in inks.fills}
    assert inks.hatch.name() in colors


def test_each_state_has_a_shape_of_its_own(qapp: QApplication) -> None:
    drawn = []
    for state in TokenState:
        image = QImage(12, 12, QImage.Format.Format_ARGB32)
        image.fill(Qt.GlobalColor.white)
        painter = QPainter(image)
        draw_glyph(painter, state, 3, 3, QColor("black"))
        painter.end()
        drawn.append(bytes(image.constBits()))
    assert len(set(drawn)) == len(TokenState)


def test_noise_is_shown_as_the_tokens_it_is_made_of(page: InspectorPage) -> None:
    trace = small_trace()
    page._model.select(4, 7)
    assert page.card.now.text() == "masked, not judged"
    masks = pixels(page.canvas)
    noise = replace(trace, header=replace(trace.header, mask_id=-1))
    page._model.show(noise, Source.FILE, "noise")
    page._model.select(4, 7)
    QApplication.processEvents()
    assert page.card.now.text() == "masked, “<mask>”, not judged"
    assert pixels(page.canvas) != masks


def test_no_token_moves_while_scrubbing(page: InspectorPage) -> None:
    page._model.show(large_trace(256, 120), Source.FILE, "large")
    QApplication.processEvents()
    boxes = page.canvas.layout_
    places = list(zip(boxes.x, boxes.y, boxes.width, strict=True))
    for step in (0, 30, 60, 119):
        page._model.scrub(step)
        QApplication.processEvents()
        assert list(zip(boxes.x, boxes.y, boxes.width, strict=True)) == places


def test_what_is_scrubbed_to_is_scrolled_into_sight(page: InspectorPage, qtbot: QtBot) -> None:
    page._model.show(large_trace(1024, 400), Source.FILE, "large")
    page._model.scrub(390)
    bar = page.canvas_area.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.value() > 0, timeout=1000)
    page.raster.setFocus()
    page._model.select(position=0)
    page._model.scrub(0)
    qtbot.waitUntil(lambda: bar.value() == 0, timeout=1000)


def test_a_strip_repaint_is_what_a_full_repaint_would_draw(page: InspectorPage) -> None:
    """Nothing of the old playhead or the old cells is left behind."""
    page._model.show(large_trace(128, 60), Source.FILE, "large")
    QApplication.processEvents()
    at_first = on_screen(page)
    for step, position in ((20, 10), (21, 40), (50, 100), (3, 2)):
        page._model.select(step, position)
        QApplication.processEvents()
    kept = on_screen(page)
    assert kept != at_first
    page.update()
    for view in page.findChildren(QWidget):
        view.update()
    QApplication.processEvents()
    assert kept == on_screen(page)


def test_one_block_can_be_shown_large(page: InspectorPage) -> None:
    page.span.buttons["block"].click()
    assert (page.axes.axis.first, page.axes.axis.last) == (0, 2)
    assert page.raster.positions_in_sight() == (0, 4)
    page._model.scrub(3)
    assert (page.axes.axis.first, page.axes.axis.last) == (3, 4)
    assert page.raster.positions_in_sight() == (4, 8)
    assert page.timeline.axis().last == 4  # the timeline shows all


def test_a_step_is_as_wide_as_it_took(page: InspectorPage) -> None:
    page.unit.buttons["seconds"].click()
    axis = page.axes.axis
    widths = [axis.span(step, 1000)[1] - axis.span(step, 1000)[0] for step in range(5)]
    assert widths[3] == pytest.approx(4 * widths[0])
    for step in range(5):
        assert axis.step_at(axis.x(step, 1000), 1000) == step


def test_a_tooltip_sentence_says_what_is_under_the_mouse(page: InspectorPage) -> None:
    assert moment_sentence(page._model, 2, 2) == (
        "Position 10, block 1, 3 of 4: edited, “ dog”, in place of “ cat”, confidence 0.99, "
        "entropy 0.05 nat."
    )
    assert (
        moment_sentence(page._model, 5) == "Position 13, block 2, 2 of 4: its block has not begun."
    )
    assert "not judged" in moment_sentence(page._model, 7, 4)


# live


def test_what_is_recorded_of_the_next_answers_is_chosen_and_kept(
    open_window, qtbot: QtBot, folders: AppFolders
) -> None:
    desktop = open_window()
    window = desktop.window
    window.rail.choose("inspector")
    for level, button in (("light", None), ("top-k", "top-k")):
        if button:
            window.inspector_page.capture.buttons[button].click()
        desktop.chat.send("hello")
        qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=5000)
        window.inspect(desktop.chat.current.messages[-1].id)
        assert window.inspector.data.trace.header.capture == level
    assert json.loads(folders.settings_file.read_text("utf-8"))["capture"] == "top-k"
    window.inspector.select(9, 40)
    card = window.inspector_page.card
    assert card.candidates_head.text() == "Candidates in step 10, by probability"
    assert card.candidates.height() > 0
    window.inspector_page.fill.buttons["margin"].click()
    assert "did not capture" not in window.inspector_page.scale.accessibleDescription()


@pytest.mark.parametrize("unit", ["steps", "seconds"])
def test_a_picture_that_grew_is_the_one_drawn_at_once(page: InspectorPage, unit: str) -> None:
    whole = large_trace(256, 100)

    def after(steps: int) -> Trace:
        arrays = {k: v[:steps] for k, v in vars(whole).items() if isinstance(v, np.ndarray)}
        return replace(whole, **arrays)

    page.unit.buttons[unit].click()
    page._model.show(after(40), Source.LIVE, "live")
    QApplication.processEvents()
    for steps in range(41, 64):
        page._model.extend(after(steps))
        QApplication.processEvents()
    for plot in (page.raster, page.curves, page.timeline):
        grown = plot.picture(plot.axis()).toImage()
        plot.redraw()
        fresh = plot.picture(plot.axis()).toImage()
        different = sum(
            grown.pixel(x, y) != fresh.pixel(x, y)
            for x in range(grown.width())
            for y in range(0, grown.height(), 3)
        )
        assert different <= 0.002 * grown.width() * grown.height() / 3, plot.objectName()
    assert page._model.selection.step == 62


def test_the_page_follows_the_reply_being_written(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.005))
    window = desktop.window
    window.rail.choose("inspector")
    desktop.chat.send("hello")
    model = window.inspector
    qtbot.waitUntil(lambda: model.source is Source.LIVE, timeout=3000)
    assert window.inspector_page.transport.follow.isVisible()
    places = []

    def note() -> None:
        boxes = window.inspector_page.canvas.layout_
        places.append((boxes.x[0], boxes.y[0], len(boxes.x)))

    model.grown.connect(note)
    qtbot.waitUntil(lambda: not desktop.engine.busy, timeout=8000)
    assert model.source is Source.ANSWER
    assert not window.inspector_page.transport.follow.isVisible()
    assert {place[:2] for place in places} == {(0.0, 0.0)}
    assert model.selection.step == model.data.steps - 1


# panels and words


def test_numbers_stand_beside_their_definitions(page: InspectorPage) -> None:
    page.side.tabs["numbers"].click()
    panel = page.side.panels["numbers"]
    assert panel.figures["steps"].text() == "5"
    assert panel.figures["tokens"].text() == "–"  # this trace does not hold the reply's end
    words = " ".join(label.text() for label in panel.findChildren(QLabel))
    assert "does not hold the end of its reply" in words
    assert "Blocks with at least one step" in words


def test_the_page_in_words_says_what_the_views_show(page: InspectorPage) -> None:
    page._model.select(4, 2)
    page.canvas.setFocus()
    QTest.keyClick(page.canvas, Key.Key_W)
    assert page.twin.isVisible()
    text = page.twin.toPlainText()
    assert text.startswith("Step 5 of 5, block 2, its step 2, at 100.0 ms.")
    assert "In this step: the block ended with 2 open; 1 taken back." in text
    assert "> The dog sat on_ mat_" in text
    assert "step 3: edited, “ dog”, in place of “ cat”" in text
    assert "13: masked, confidence 0.20, entropy 3.00 nat" in text
    assert "15: masked, not judged" in text


def test_the_page_in_words_is_worked_by_the_same_keys(page: InspectorPage) -> None:
    page.words.click()
    page.twin.setFocus()
    page.twin.moveCursor(page.twin.textCursor().MoveOperation.Down)
    QTest.keyClick(page.twin, Key.Key_Period)
    assert page.twin.toPlainText().startswith("Step 2 of 5")
    assert page.twin.textCursor().blockNumber() == 1
    QTest.keyClick(page.twin, Key.Key_W)
    assert page.canvas.isVisible()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.50"), (0.0, "0.00"), (1.0, "1.00"), (0.001, "<0.01"), (0.9999, ">0.99")],
)
def test_a_probability_that_is_not_certain_never_reads_as_if_it_were(value, text) -> None:
    assert share(value) == text
    assert share(float("nan")) == "–"
