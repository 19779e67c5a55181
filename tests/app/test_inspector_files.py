"""Traces come in and go out as files, off the GUI thread; odd ones are refused in words or shown
without harm."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from inspector_traces import small_trace
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QFileDialog
from pytestqt.qtbot import QtBot

from app import cli, desktop
from app.backend.trace_export import FORMATS, ExportFormat, export_trace
from app.models.inspector import Source
from app.ui.inspector import file_menu
from app.ui.inspector.page import InspectorPage
from engine.trace import Trace, TraceHeader, open_trace, save_trace


@pytest.fixture
def page(open_window) -> InspectorPage:
    """The page with the small trace."""
    window = open_window(loaded=False).window
    window.rail.choose("inspector")
    window.inspector.show(small_trace(), Source.FILE, "small.dntrace")
    QApplication.processEvents()
    return window.inspector_page


def drop(window, path: Path) -> None:
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path))])
    args = (Qt.DropAction.CopyAction, mime, Qt.MouseButton.LeftButton, Qt.KeyboardModifier(0))
    enter = QDragEnterEvent(QPoint(9, 9), *args)
    QApplication.sendEvent(window, enter)
    if enter.isAccepted():
        QApplication.sendEvent(window, QDropEvent(QPointF(9, 9), *args))


def test_a_dropped_trace_opens_without_a_model(open_window, qtbot: QtBot, tmp_path: Path) -> None:
    window = open_window(loaded=False).window
    save_trace(small_trace(), tmp_path / "ä trace.dntrace")
    drop(window, tmp_path / "ä trace.dntrace")
    qtbot.waitUntil(lambda: window.inspector.data is not None, timeout=3000)
    assert window.inspector_page.isVisible()
    assert window.inspector_page.title.text() == "ä trace.dntrace"
    assert window.inspector.data.steps == 5


def test_something_else_is_not_taken(open_window, tmp_path: Path) -> None:
    window = open_window(loaded=False).window
    drop(window, tmp_path / "picture.png")
    assert window.chat_page.isVisible()


def test_a_damaged_file_is_a_card_and_what_was_shown_stays(
    page: InspectorPage, qtbot: QtBot, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.dntrace"
    save_trace(small_trace(), whole)
    cut = tmp_path / "cut.dntrace"
    cut.write_bytes(whole.read_bytes()[:-70])
    page.window().open_trace(str(cut))
    qtbot.waitUntil(page.problem.isVisible, timeout=3000)
    assert page.problem.code.text() == "trace.truncated"
    assert page.title.text() == "small.dntrace"
    page.window().open_trace(str(whole))
    qtbot.waitUntil(lambda: page.title.text() == "whole.dntrace", timeout=3000)
    assert not page.problem.isVisible()


def test_the_last_file_asked_for_is_the_one_shown(
    page: InspectorPage, qtbot: QtBot, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        save_trace(small_trace(), tmp_path / f"{name}.dntrace")
        page.window().open_trace(str(tmp_path / f"{name}.dntrace"))
    qtbot.waitUntil(lambda: page.title.text() == "c.dntrace", timeout=3000)


def test_a_trace_is_saved_where_the_dialog_says(
    page: InspectorPage, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "kept.dntrace"
    monkeypatch.setattr(QFileDialog, "exec", lambda _self: 1)
    monkeypatch.setattr(QFileDialog, "selectedFiles", lambda _self: [str(target)])
    page.file_menu.save_action.trigger()
    qtbot.waitUntil(lambda: page.doing.text() == "Saved kept.dntrace", timeout=3000)
    assert open_trace(target).ids.tolist() == small_trace().ids.tolist()


def test_a_trace_that_cannot_be_saved_says_so(
    page: InspectorPage, qtbot: QtBot, tmp_path: Path
) -> None:
    page._files.save(tmp_path / "no folder" / "kept.dntrace")
    qtbot.waitUntil(page.problem.isVisible, timeout=3000)
    assert page.problem.code.text() == "trace.not_written"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_trace_is_exported_off_the_gui_thread(
    page: InspectorPage,
    qtbot: QtBot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: ExportFormat,
) -> None:
    target = tmp_path / f"kept.{kind}"
    target.write_bytes(b"older")
    threads = []

    def export(*args: object) -> object:
        threads.append(threading.current_thread())
        return export_trace(*args)

    monkeypatch.setattr(file_menu, "export_trace", export)
    monkeypatch.setattr(QFileDialog, "exec", lambda _self: 1)
    monkeypatch.setattr(QFileDialog, "selectedFiles", lambda _self: [str(target)])
    page.file_menu.export_actions[kind].trigger()
    qtbot.waitUntil(lambda: page.doing.text() == f"Saved kept.{kind}", timeout=8000)
    assert threads != [threading.main_thread()]
    assert target.stat().st_size > 100


def odd_trace() -> Trace:
    """Tokens that no tokenizer makes: endless, leftward, of signs that move the cursor."""
    trace = small_trace()
    pieces = {
        0: "<mask>",
        1: "x" * 200_000,
        2: "\u202eشراب\u202c",
        3: "\x00\x07\x1b[31m\u2028\u0085\v",
        4: "👩‍👩‍👧‍👦" * 30,
        5: "",
        6: "\r\n\r\n",
        7: "<b>&amp;</b>",
        9: "\ufffd",
    }
    header = replace(trace.header, pieces=pieces, model_name="M" * 100_000)
    return replace(trace, header=header)


def test_odd_tokens_and_endless_names_leave_the_page_usable(page: InspectorPage) -> None:
    window = page.window()
    width = window.width()
    page._model.show(odd_trace(), Source.FILE, "T" * 100_000)
    for step, position in ((0, 1), (2, 2), (4, 6), (4, 4)):
        page._model.select(step, position)
        QApplication.processEvents()
        page.grab()
    assert window.width() == width
    boxes = page.canvas.layout_
    assert all(w <= page.canvas.width() for w in boxes.width)
    assert len(page.card.now.text()) < 400
    page.words.click()
    QApplication.processEvents()
    assert "<b>&amp;</b>" in page.twin.toPlainText()
    for key in ("why", "numbers", "forks", "compare"):
        page.side.tabs[key].click()
        QApplication.processEvents()
    assert window.width() == width


def test_a_file_without_a_step_and_one_without_end_are_refused(
    page: InspectorPage, qtbot: QtBot, tmp_path: Path
) -> None:
    vast = np.zeros((1, 2**18), np.int32)
    one = np.zeros(1, np.int32)
    trace = Trace(
        one, one, one, one + 1, np.ones(1), vast, vast - 1,
        vast.astype(np.uint8) + 2, vast.astype(np.float32), vast.astype(np.float32),
    )  # fmt: skip
    save_trace(trace, tmp_path / "vast.dntrace")
    page.window().open_trace(str(tmp_path / "vast.dntrace"))
    qtbot.waitUntil(page.problem.isVisible, timeout=5000)
    assert page.problem.code.text() == "trace.too_long_to_show"
    assert "262,144 positions" in page.problem.happened.text()
    assert page.title.text() == "small.dntrace"


def test_a_trace_of_one_step_and_one_position_is_shown(page: InspectorPage) -> None:
    one = np.zeros(1, np.int32)
    cell = np.zeros((1, 1), np.int32)
    nan = np.full((1, 1), np.nan, np.float32)
    state = cell.astype(np.uint8)
    trace = Trace(one, one, one, one, np.zeros(1), cell, cell - 1, state, nan, nan)
    trace = replace(trace, header=TraceHeader(mask_id=0))
    page._model.show(trace, Source.FILE, "one")
    for unit in ("seconds", "steps"):
        page.unit.buttons[unit].click()
        for span in ("block", "reply"):
            page.span.buttons[span].click()
            QApplication.processEvents()
            page.grab()
    page._model.toggle_play()
    QApplication.processEvents()
    page._model.pause()
    assert page.card.now.text() == "masked, not judged"


# from the command line


def test_a_trace_named_on_the_command_line_is_opened_in_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(desktop, "run_window", lambda **options: asked.append(options) or 0)
    monkeypatch.setattr(cli, "no_screen", lambda: False)
    path = tmp_path / "mine.DNTRACE"
    save_trace(small_trace(), path)
    assert cli.run([str(path)]) == 0
    assert (asked[0]["trace"], asked[0]["model"]) == (str(path), None)


@pytest.mark.parametrize(
    ("argument", "words"),
    [("gone.dntrace", "there is no file"), ("generat", "no command; --help lists")],
)
def test_what_is_neither_a_trace_nor_a_command_is_said(
    argument: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run([argument])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
