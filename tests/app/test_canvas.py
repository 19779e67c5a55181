"""Tokens flow into lines, and each state is told by more than its colour."""

from __future__ import annotations

import math

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QColor, QHelpEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QToolTip
from pytestqt.qtbot import QtBot

from app.models.snapshot import BlockView, Cell
from app.ui.canvas import CanvasView
from app.ui.canvas_layout import RETURN_MARK, CanvasLayout
from app.ui.theme import LIGHT, Theme
from engine.types import TokenState

S = TokenState
NAN = float("nan")


def cells(*texts: str, state: TokenState = S.COMMITTED) -> tuple[Cell, ...]:
    return tuple(Cell(text, state, NAN) for text in texts)


def flow(*blocks: BlockView, width: float = 100) -> CanvasLayout:
    """Ten pixels a character, twenty a line."""
    layout = CanvasLayout(lambda text: 10.0 * len(text), 20.0)
    layout.flow(blocks, width)
    return layout


def block(*parts: Cell, index: int = 0, final: bool = False) -> BlockView:
    return BlockView(index, tuple(parts), 1, final)


def lines(layout: CanvasLayout) -> list[str]:
    rows: dict[float, str] = {}
    for placed in layout.placed:
        rows[placed.y] = rows.get(placed.y, "") + placed.text
    return [rows[y] for y in sorted(rows)]


def test_words_of_several_tokens_stay_whole() -> None:
    layout = flow(block(*cells("one", " two", " thr", "ee", "!")))
    assert lines(layout) == ["one two", "three!"]
    assert layout.height == 40


def test_a_word_longer_than_a_line_is_broken() -> None:
    assert lines(flow(block(*cells("abcdefgh", "ijklmnop")))) == ["abcdefgh", "ijklmnop"]


def test_a_committed_line_break_breaks_and_a_drafted_one_is_a_mark() -> None:
    assert lines(flow(block(*cells("a", "\n", "b")))) == ["a", "b"]
    drafted = block(*cells("a", "\n", "b", state=S.DRAFT))
    assert lines(flow(drafted)) == ["a" + RETURN_MARK + "b"]


def test_an_empty_line_keeps_its_height() -> None:
    assert flow(block(*cells("a", "\n\n", "b"))).placed[-1].y == 40


def test_a_masked_token_is_a_bar_without_text() -> None:
    (placed,) = flow(block(Cell("", S.MASKED, NAN))).placed
    assert placed.text == ""
    assert placed.width == 50


def test_blocks_continue_one_flow_and_a_change_moves_nothing_before_it() -> None:
    first = block(*cells("one"), final=True)
    layout = CanvasLayout(lambda text: 10.0 * len(text), 20.0)
    layout.flow((first, block(*cells(" two", state=S.DRAFT), index=1)), 100)
    before = layout.placed[0]
    layout.flow((first, block(*cells(" tw", "elve"), index=1)), 100)
    assert layout.placed[0] is before  # laid out once
    assert lines(layout) == ["one", "twelve"] or lines(layout) == ["one twelve"]


def test_a_narrower_column_flows_everything_again() -> None:
    whole = block(*cells("one", " two", " three"), final=True)
    layout = flow(whole, width=200)
    assert len(lines(layout)) == 1
    layout.flow((whole,), 60)
    assert lines(layout) == ["one", "two", "three"]


@pytest.fixture
def canvas(qapp: QApplication, qtbot: QtBot) -> CanvasView:
    theme = Theme(qapp, "light")
    view = CanvasView(theme)
    qtbot.addWidget(view)
    view.resize(400, 30)
    view.show()
    return view


def ink(view: CanvasView) -> QImage:
    return view.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)


def drawn(canvas: CanvasView, cell: Cell) -> QImage:
    canvas.show_blocks((block(cell),), "")
    return ink(canvas)


def gray(image: QImage) -> bytes:
    return bytes(image.convertToFormat(QImage.Format.Format_Mono).constBits())


def test_states_differ_in_shape_and_not_only_in_colour(canvas: CanvasView) -> None:
    """Seen in two tones, no two states of the same word are alike."""
    shapes = [
        gray(drawn(canvas, Cell("word", state, 0.5, before="x")))
        for state in (S.MASKED, S.DRAFT, S.COMMITTED, S.EDITED)
    ]
    assert len(set(shapes)) == 4


def test_a_draft_grows_heavier_with_confidence(canvas: CanvasView) -> None:
    weights = [canvas._draft_font(p).weight() for p in (0.1, 0.5, 0.8, 0.95)]
    assert weights == sorted(set(weights))
    assert canvas._draft_font(NAN).weight() == weights[0]
    assert all(canvas._draft_font(p).italic() for p in (0.1, 0.95))


def test_committed_text_fades_in_once_and_then_is_still(canvas: CanvasView, qtbot: QtBot) -> None:
    canvas.show_blocks((block(Cell("word", S.DRAFT, 0.9)),), "")
    canvas.show_blocks((block(Cell("word", S.COMMITTED, 0.9)),), "")
    assert canvas._fades.isActive()
    qtbot.waitUntil(lambda: not canvas._fades.isActive(), timeout=1000)
    after = ink(canvas)
    canvas.show_blocks((block(Cell("word", S.COMMITTED, 0.9)),), "")
    assert not canvas._fades.isActive()
    assert ink(canvas) == after


def test_reduced_motion_changes_at_once(canvas: CanvasView) -> None:
    canvas._theme.reduce_motion = True
    canvas.show_blocks((block(Cell("word", S.DRAFT, 0.9)),), "")
    canvas.show_blocks((block(Cell("word", S.COMMITTED, 0.9)),), "")
    assert not canvas._fades.isActive()


def test_the_height_follows_the_text(canvas: CanvasView) -> None:
    canvas.show_blocks((block(*cells("a", "\n", "b", "\n", "c")),), "")
    assert canvas.height() == math.ceil(3 * 24)


def test_hovering_an_edit_shows_what_it_replaced(canvas: CanvasView, qtbot: QtBot) -> None:
    canvas.show_blocks((block(Cell(" 417", S.EDITED, 0.97, before=" 418")),), "")
    where = canvas.rect().topLeft()
    where.setX(12)
    where.setY(10)
    event = QHelpEvent(QEvent.Type.ToolTip, where, canvas.mapToGlobal(where))
    QApplication.sendEvent(canvas, event)
    assert "“418” → “417”" in QToolTip.text()
    assert "confidence 0.97" in QToolTip.text()
    QToolTip.hideText()
    qtbot.waitUntil(lambda: not QToolTip.isVisible(), timeout=2000)


def test_the_arrow_keys_explain_tokens_too(canvas: CanvasView, qtbot: QtBot) -> None:
    parts = (Cell("a", S.COMMITTED, NAN), Cell(" b", S.EDITED, 0.5, before=" c"))
    canvas.show_blocks((block(*parts),), "")
    canvas.setFocus()
    QTest.keyClick(canvas, Qt.Key.Key_Right)
    assert QToolTip.text() == "committed"
    QTest.keyClick(canvas, Qt.Key.Key_Right)
    assert "“c” → “b”" in QToolTip.text()
    QToolTip.hideText()
    qtbot.waitUntil(lambda: not QToolTip.isVisible(), timeout=2000)


def test_the_end_of_the_answer_is_a_mark_and_not_a_token_name(canvas: CanvasView) -> None:
    end = Cell("<|end|>", S.COMMITTED, 0.9, special=True)
    canvas.show_blocks((block(end),), "")
    (placed,) = canvas._layout.placed
    assert "<" not in placed.text
    assert "end of the answer" in canvas.explanation(placed)


def test_the_text_of_finished_blocks_is_there_for_screen_readers(canvas: CanvasView) -> None:
    canvas.show_blocks((block(*cells("Hi"), final=True),), "Hi")
    assert canvas.accessibleDescription() == "Hi"
    assert canvas.accessibleName()


def test_the_masked_bar_is_soft(canvas: CanvasView) -> None:
    image = drawn(canvas, Cell("", S.MASKED, NAN))
    bar = image.pixelColor(16, 12)
    page, full = QColor(LIGHT.window), QColor(LIGHT.masked)
    assert full.lightness() < bar.lightness() < page.lightness()
