"""The page in words: what the pictures show after the selected step, as plain text.

It knows which sentences say it, for screen readers and for copying. It refuses to know pixels. The
text is made only while it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import Slot
from PySide6.QtGui import QKeyEvent, QShowEvent
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from app.models.inspector import InspectorModel, Selection
from app.models.inspector_data import InspectorData
from app.ui.inspector.curves import lanes
from app.ui.inspector.position_card import full_words
from app.ui.inspector.words import mark_words, moment_words, place_words, step_words, tr
from app.ui.theme import Size, mono_font
from engine.types import TokenState


class TextTwin(QPlainTextEdit):
    """Read-only text. Moving over steps keeps the line the cursor is in."""

    def __init__(self, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("textTwin")
        self.setReadOnly(True)
        self.setFont(mono_font(Size.BASE))
        self.setAccessibleName(self.tr("The selected step in words"))
        self._model = model
        model.trace_changed.connect(self.refresh)
        model.grown.connect(self.refresh)
        model.selection_changed.connect(self._on_selection)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    @Slot(object, object)
    def _on_selection(self, _before: Selection, _now: Selection) -> None:
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        if not self.isVisible():
            return
        cursor, bar = self.textCursor(), self.verticalScrollBar()
        line, column, place = cursor.blockNumber(), cursor.columnNumber(), bar.value()
        self.setPlainText(page_in_words(self._model))
        block = self.document().findBlockByNumber(line)
        if block.isValid():
            cursor = self.textCursor()
            cursor.setPosition(block.position() + min(column, block.length() - 1))
            self.setTextCursor(cursor)
        bar.setValue(place)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Letters and signs are the page's keys; moving and copying are the text's."""
        if event.text().strip() or event.text() == " ":
            event.ignore()
        else:
            super().keyPressEvent(event)


def page_in_words(model: InspectorModel) -> str:
    """Everything the views show after the selected step."""
    data, curves = model.data, model.curves
    if data is None or curves is None:
        return tr("No trace is open.")
    step = model.selection.step
    lines = [step_words(model) + "."]
    happened = [mark_words(mark) for mark in model.marks_at(step)]
    lines.append(tr("In this step: {0}.").format("; ".join(happened) or tr("nothing marked")))
    lines += [f"{lane.name}: {lane.words(curves, step)}." for lane in lanes()]
    lines += ["", tr("Text so far:"), text_so_far(data, step), ""]
    lines += _selected(model, data)
    lines.append(tr("The block after this step:"))
    lines += _block(data, step)
    return "\n".join(lines)


def text_so_far(data: InspectorData, step: int) -> str:
    """The tokens in order; an open position is an underscore."""
    state = data.canvas(step)
    there = state.there
    ids = data.trace.ids[state.row[there], state.column[there]].tolist()
    states = data.trace.state[state.row[there], state.column[there]].tolist()
    open_ = (TokenState.MASKED, TokenState.DRAFT)
    return "".join("_" if s in open_ else data.text(i) for i, s in zip(ids, states, strict=True))


def _selected(model: InspectorModel, data: InspectorData) -> Iterator[str]:
    position = model.selection.position
    yield tr("Selected: {0}. Its history:").format(place_words(model, position))
    for moment in data.history(position):
        words = full_words(data, moment).replace("\n", "; ")
        mark = "> " if moment.step == model.selection.step else "  "
        yield f"{mark}{tr('step {0}').format(moment.step + 1)}: {words}"
    yield ""


def _block(data: InspectorData, step: int) -> Iterator[str]:
    segment = data.segment_at(step)
    for position in range(segment.begin, segment.begin + data.length):
        moment = data.now(step, position)
        if moment is not None:
            yield f"{data.first_position + position}: {moment_words(data, moment)}"
