"""The card of the selected position: what it is now, the candidates of the step, its whole history.

It knows how one position is told. It refuses to know where it stands on the canvas. What was not
captured is said in words.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Slot
from PySide6.QtGui import QColor, QHelpEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QFrame,
    QLabel,
    QScrollArea,
    QSizePolicy,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from app.models.inspector import InspectorModel, Selection
from app.models.inspector_data import InspectorData, Moment
from app.ui.inspector.inks import GLYPH, draw_glyph
from app.ui.inspector.token_layout import shown
from app.ui.inspector.words import moment_words, number, place_words, quoted, share, state_name
from app.ui.theme import Shape, Size, Space, Theme, mixed, mono_font, ui_font
from app.ui.tips import as_typed
from engine.types import TokenState

ROW = 24
TOP_ROW = 20
SHOWN_CANDIDATES = 8
NUMBERS = 108  # px for the two numbers of a row


class PositionCard(QFrame):
    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self.setAccessibleName(self.tr("The selected position"))
        self._model = model
        self.place = _label(self, "strong")
        self.now = _label(self, "")
        self.candidates_head = _label(self, "small")
        self.candidates = Candidates(theme, model, self)
        self.history_head = _label(self, "small")
        self.columns = Columns(theme, self)
        self.history = History(theme, model)
        self.rows = Rows(self)
        self.rows.setFrameShape(QFrame.Shape.NoFrame)
        self.rows.setWidgetResizable(True)
        self.rows.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.rows.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # always in place, so that the columns keep their names above them
        self.rows.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        self.rows.setWidget(self.history)
        self.rows.viewport().setAutoFillBackground(False)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.M, Space.M, Space.S)
        layout.setSpacing(Space.XS)
        for widget in (self.place, self.now, self.candidates_head, self.candidates):
            layout.addWidget(widget)
        layout.addSpacing(Space.XS)
        layout.addWidget(self.history_head)
        layout.addWidget(self.columns)
        layout.addWidget(self.rows, 1)
        model.trace_changed.connect(self.refresh)
        model.grown.connect(self.refresh)
        model.selection_changed.connect(self._on_selection)
        self.refresh()

    @Slot(object, object)
    def _on_selection(self, _before: Selection, _now: Selection) -> None:
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        data, moment = self._model.data, self._model.moment
        if data is None:
            return
        position = self._model.selection.position
        self.place.setText(place_words(self._model, position))
        if moment is None:
            self.now.setText(self.tr("Its block has not begun at this step."))
        else:
            self.now.setText(moment_words(data, moment))
        self.candidates.show_moment(moment)
        self.candidates_head.setText(self._candidates_words(moment))
        self.history.show_position(position)
        steps = len(self.history.moments)
        edits = sum(m.before is not None for m in self.history.moments)
        self.history_head.setText(
            self.tr("History. Steps of its block: {0}, edits: {1}").format(steps, edits)
        )
        row = self.history.row
        if row is not None:
            self.rows.ensureVisible(0, row * ROW + ROW // 2, 0, ROW)

    def _candidates_words(self, moment: Moment | None) -> str:
        data = self._model.data
        if moment is None:
            return ""
        if moment.top is None:
            if data is None or data.trace.top_ids is None:
                return self.tr("Candidates: not captured in this trace (capture level top-k).")
            return self.tr("Candidates: this position was not judged.")
        return self.tr("Candidates in step {0}, by probability").format(moment.step + 1)


class Rows(QScrollArea):
    """Scrolls the history, and leaves every key to the page."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        event.ignore()


class Candidates(QWidget):
    """The captured candidates of one moment, best first, each with a bar from 0 to 1."""

    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._model = model
        self._moment: Moment | None = None
        self.setFixedHeight(0)
        theme.changed.connect(self.update)

    def show_moment(self, moment: Moment | None) -> None:
        self._moment = moment
        top = moment.top[:SHOWN_CANDIDATES] if moment and moment.top else ()
        self.setFixedHeight(TOP_ROW * len(top))
        data = self._model.data
        if data is not None:
            words = [f"{quoted(data, token)} {share(p, 3)}" for token, p in top]
            self.setAccessibleName(self.tr("Candidates: {0}").format(", ".join(words)))
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        data, moment = self._model.data, self._moment
        if data is None or moment is None or not moment.top:
            return
        colors = self._theme.colors
        painter = QPainter(self)
        painter.setFont(mono_font(Size.SMALL))
        left = 108
        for index, (token, p) in enumerate(moment.top[:SHOWN_CANDIDATES]):
            y = index * TOP_ROW
            chosen = token == moment.token
            painter.setPen(QColor(colors.text if chosen else colors.muted))
            name = painter.fontMetrics().elidedText(
                quoted(data, token), Qt.TextElideMode.ElideRight, left - 16
            )
            if chosen:
                painter.drawText(QPointF(0, y + 14), "›")
            painter.drawText(QPointF(10, y + 14), name)
            width = self.width() - left - 48
            painter.fillRect(
                QRectF(left, y + 5, width, 10), mixed(colors.line, colors.surface, 0.6)
            )
            painter.fillRect(
                QRectF(left, y + 5, width * min(1.0, p), 10),
                QColor(colors.accent if chosen else colors.masked),
            )
            painter.drawText(QPointF(left + width + 8, y + 14), share(p, 3))
        painter.end()


class Columns(QWidget):
    """The names of the history's columns, above their numbers."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self.setFixedHeight(TOP_ROW)
        self.setToolTip(
            self.tr("p: probability of the token shown. H: entropy in nats. –: not judged.")
        )
        theme.changed.connect(self.update)

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(ui_font(Size.SMALL))
        painter.setPen(QColor(self._theme.colors.muted))
        right = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        left = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        begin = self.width() - NUMBERS - Shape.SCROLL_BAR
        painter.drawText(QRectF(0, 0, 36, TOP_ROW), right, self.tr("step"))
        painter.drawText(QRectF(56, 0, 80, TOP_ROW), left, self.tr("token"))
        painter.drawText(QRectF(begin, 0, 44, TOP_ROW), right, "p")
        painter.drawText(QRectF(begin + 50, 0, 46, TOP_ROW), right, "H")
        painter.end()


class History(QWidget):
    """A row a step of the position's block: step, state, token (before -> after), confidence as bar
    and number, entropy. Up and down move over steps."""

    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("history")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(self.tr("History of the position"))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._theme = theme
        self._model = model
        self._shown: tuple[int, int, int] | None = None
        self.moments: tuple[Moment, ...] = ()
        self.row: int | None = None
        theme.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return QSize(240, ROW * max(1, len(self.moments)))

    def show_position(self, position: int) -> None:
        """The history of `position`, with the selected step's row marked."""
        data = self._model.data
        if data is None:
            return
        shown_now = (id(data), data.steps, position)
        if shown_now != self._shown:
            self._shown = shown_now
            self.moments = data.history(position)
            self.setFixedHeight(ROW * max(1, len(self.moments)))
            self.update()
        segment = data.segment_of(position)
        row = None
        if segment is not None and self._model.selection.step >= segment.first:
            row = min(self._model.selection.step, segment.last) - segment.first
        if row != self.row:
            for old in (self.row, row):
                if old is not None:
                    self.update(0, old * ROW, self.width(), ROW)
            self.row = row
        if row is not None and row < len(self.moments):
            self.setAccessibleDescription(moment_words(data, self.moments[row]))

    def paintEvent(self, event: QPaintEvent) -> None:
        data = self._model.data
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colors = self._theme.colors
        painter.fillRect(event.rect(), QColor(colors.surface))
        first = max(0, event.rect().top() // ROW)
        last = min(len(self.moments), event.rect().bottom() // ROW + 1)
        if data is not None:
            for index in range(first, last):
                self._paint_row(painter, data, index)
        if self.hasFocus():
            painter.setPen(QPen(QColor(colors.accent), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(
                QRectF(self.visibleRegion().boundingRect()).adjusted(1, 1, -1, -1), 4, 4
            )
        painter.end()

    def _paint_row(self, painter: QPainter, data: InspectorData, index: int) -> None:
        colors = self._theme.colors
        moment = self.moments[index]
        y, width = index * ROW, self.width()
        if index == self.row:
            painter.fillRect(QRectF(0, y, width, ROW), mixed(colors.accent, colors.surface, 0.16))
            painter.fillRect(QRectF(0, y, 3, ROW), QColor(colors.accent))
        painter.setFont(mono_font(Size.SMALL))
        painter.setPen(QColor(colors.muted))
        flags = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        painter.drawText(QRectF(4, y, 32, ROW), flags, f"{moment.step + 1}")
        ink = QColor(state_color(self._theme, moment.state))
        draw_glyph(painter, moment.state, 44, y + (ROW - GLYPH) / 2, ink)
        painter.setPen(ink)
        numbers = NUMBERS
        text = painter.fontMetrics().elidedText(
            self._token_words(data, moment), Qt.TextElideMode.ElideRight, width - 58 - numbers
        )
        left = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        painter.drawText(QRectF(56, y, width - 56 - numbers, ROW), left, text)
        used = 56 + painter.fontMetrics().horizontalAdvance(text) + 10
        rival = self._rival(data, moment)
        if rival and used + painter.fontMetrics().horizontalAdvance(rival) < width - numbers:
            painter.setPen(QColor(colors.muted))
            painter.drawText(QRectF(used, y, width - numbers - used, ROW), left, rival)
        self._paint_numbers(painter, moment, QRectF(width - numbers, y, numbers - 4, ROW))

    def _rival(self, data: InspectorData, moment: Moment) -> str:
        """The likeliest candidate beside the token shown, with its probability."""
        for token, p in moment.top or ():
            if token != moment.token:
                return f"({shown(data.text(token))} {share(p)})"
        return ""

    def _token_words(self, data: InspectorData, moment: Moment) -> str:
        if data.hides(moment.state):
            return state_name(moment.state)
        if moment.before is not None:
            return f"{shown(data.text(moment.before))} → {shown(data.text(moment.token))}"
        return shown(data.text(moment.token))

    def _paint_numbers(self, painter: QPainter, moment: Moment, box: QRectF) -> None:
        """Confidence as a bar from 0 to 1 with its number, then entropy; en dashes where the
        position was not judged."""
        colors = self._theme.colors
        bar = QRectF(box.x(), box.center().y() + 6, 44, 2)
        painter.setPen(QColor(colors.text))
        flags = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        painter.drawText(QRectF(box.x(), box.y(), 44, ROW), flags, share(moment.confidence))
        painter.drawText(QRectF(box.x() + 50, box.y(), 46, ROW), flags, number(moment.entropy))
        if not math.isnan(moment.confidence):
            painter.fillRect(bar, QColor(colors.line))
            bar.setWidth(44 * min(1.0, moment.confidence))
            painter.fillRect(bar, QColor(colors.accent))

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            index, data = event.pos().y() // ROW, self._model.data
            if data is not None and 0 <= index < len(self.moments):
                QToolTip.showText(
                    event.globalPos(), as_typed(full_words(data, self.moments[index])), self
                )
            else:
                QToolTip.hideText()
            return True
        return super().event(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = int(event.position().y()) // ROW
        if event.button() == Qt.MouseButton.LeftButton and 0 <= index < len(self.moments):
            self._model.scrub(self.moments[index].step)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        by = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}.get(Qt.Key(event.key()))
        if by is None or not self.moments:
            super().keyPressEvent(event)
            return
        row = 0 if self.row is None else self.row + by
        self._model.scrub(self.moments[max(0, min(len(self.moments) - 1, row))].step)


def full_words(data: InspectorData, moment: Moment) -> str:
    """A moment with all its captured candidates, for a tooltip and the text view."""
    text = moment_words(data, moment)
    if moment.top:
        shares = (f"{quoted(data, token)} {share(p, 3)}" for token, p in moment.top)
        text += "\n" + "\n".join(shares)
    return text


def state_color(theme: Theme, state: TokenState) -> str:
    colors = theme.colors
    return {
        TokenState.MASKED: colors.masked,
        TokenState.DRAFT: colors.draft,
        TokenState.COMMITTED: colors.text,
        TokenState.EDITED: colors.edited,
        TokenState.PROMPT: colors.muted,
    }[state]


def _label(parent: QWidget, tone: str) -> QLabel:
    label = QLabel(parent)
    label.setProperty("tone", tone)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
