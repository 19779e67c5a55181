"""The inspector's page: where its views stand, the choices above them, the keys they share.

It knows arrangement. It refuses to know what a view draws and what the selection means: views and
page alike are told by `app.models.inspector`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSplitter,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.backend.conversations import Failure
from app.backend.settings import SettingsStore
from app.backend.transfer.queue import Problem
from app.models.inspector import InspectorModel, Source
from app.models.inspector_compare import CompareModel
from app.models.inspector_files import InspectorFiles
from app.models.inspector_fills import FILL_KEYS, FillKey
from app.models.inspector_forks import ForkModel
from app.models.inspector_why import WhyModel
from app.ui.error_card import ErrorCard
from app.ui.inspector.choice import Choice
from app.ui.inspector.compare_panel import ComparePanel
from app.ui.inspector.curves import CurvesView
from app.ui.inspector.elided import ElidedLabel
from app.ui.inspector.file_menu import FileMenu
from app.ui.inspector.fork_panel import ForkPanel
from app.ui.inspector.numbers_panel import NumbersPanel
from app.ui.inspector.plots import AxisModel
from app.ui.inspector.position_card import PositionCard
from app.ui.inspector.raster import Raster
from app.ui.inspector.scale_bar import ScaleBar
from app.ui.inspector.side_panel import SidePanel
from app.ui.inspector.text_twin import TextTwin
from app.ui.inspector.timeline import Timeline
from app.ui.inspector.token_canvas import CanvasArea, TokenCanvas
from app.ui.inspector.transport import Transport
from app.ui.inspector.why_panel import WhyPanel
from app.ui.inspector.words import capture_meaning, fill_meaning, fill_name
from app.ui.theme import Space, Theme
from app.ui.tips import as_typed


class InspectorPage(QWidget):
    def __init__(
        self,
        theme: Theme,
        model: InspectorModel,
        files: InspectorFiles,
        forks: ForkModel,
        compare: CompareModel,
        why: WhyModel,
        settings: SettingsStore,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._theme = theme
        self._model = model
        self._files = files
        self._forks = forks
        self._compare = compare
        self._why = why
        self._settings = settings
        self.axes = AxisModel(model, self)
        self.canvas = TokenCanvas(theme, model)
        self.canvas_area = CanvasArea(self.canvas, self)
        self.scale = ScaleBar(theme, model, self)
        self.raster = Raster(theme, model, self.axes, self)
        self.curves = CurvesView(theme, model, self.axes, self)
        self.timeline = Timeline(theme, model, self.axes, self)
        self.side = SidePanel(
            (
                ("position", self.tr("Position"), PositionCard(theme, model)),
                ("why", self.tr("Why"), WhyPanel(theme, model, why)),
                ("numbers", self.tr("Numbers"), NumbersPanel(model)),
                ("forks", self.tr("What if"), ForkPanel(model, forks)),
                ("compare", self.tr("Compare"), ComparePanel(model, compare, files, forks)),
            ),
            self,
        )
        self.twin = TextTwin(model, self)
        self.transport = Transport(theme, model, self)
        self.title = ElidedLabel(360, self)
        self.title.setProperty("tone", "strong")
        self.facts = ElidedLabel(900, self)
        self.facts.setProperty("tone", "small")
        self.doing = ElidedLabel(200, self)
        self.doing.setProperty("tone", "small")
        self.file_menu = FileMenu(theme, model, files, self)
        self.words = QPushButton(self.tr("In words"), self)
        self.words.setProperty("kind", "tab")
        self.words.setCheckable(True)
        self.words.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.words.setAccessibleName(self.tr("Show the page in words"))
        self.words.setToolTip(self.tr("The selected step as text, for reading and copying (W)"))
        self.words.toggled.connect(self._show_words)
        self.problem = ErrorCard(theme, self)
        self.problem.hide()
        self.fill = Choice(
            self.tr("Colour"),
            tuple((key, fill_name(key), fill_meaning(key)) for key in (*FILL_KEYS, "difference")),
            self,
        )
        self.capture = Choice(
            self.tr("Record"),
            (
                ("light", self.tr("Light"), capture_meaning("light")),
                ("top-k", self.tr("Candidates"), capture_meaning("top-k")),
            ),
            self,
        )
        self.capture.mark(settings.current.capture)
        self.unit = Choice(
            self.tr("Axis"),
            (
                ("steps", self.tr("Steps"), self.tr("Every step is equally wide")),
                ("seconds", self.tr("Time"), self.tr("Every step is as wide as it took")),
            ),
            self,
        )
        self.span = Choice(
            self.tr("Show"),
            (
                ("reply", self.tr("Reply"), self.tr("All steps and positions")),
                ("block", self.tr("Block"), self.tr("The selected step's block, large")),
            ),
            self,
        )
        self._lay_out()
        self._order_tabs()
        self._connect()
        self._refresh()

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.setContentsMargins(Space.M, Space.S, Space.M, 0)
        head.setSpacing(Space.M)
        head.addWidget(self.title)
        head.addWidget(self.facts, 1)
        head.addWidget(self.doing)
        head.addWidget(self.capture)
        head.addWidget(self.words)
        head.addWidget(self.file_menu)
        card = QHBoxLayout()
        card.setContentsMargins(Space.M, Space.S, Space.M, 0)
        card.addWidget(self.problem)
        choices = QHBoxLayout()
        choices.setContentsMargins(Space.M, Space.XS, Space.M, Space.XS)
        choices.setSpacing(Space.L)
        choices.addWidget(self.fill)
        choices.addStretch(1)
        choices.addWidget(self.unit)
        choices.addWidget(self.span)
        self.split = QSplitter(Qt.Orientation.Vertical, self)
        self.split.setChildrenCollapsible(False)
        self.split.setHandleWidth(Space.S)
        upper = QWidget(self)
        down = QVBoxLayout(upper)
        down.setContentsMargins(0, 0, 0, 0)
        down.setSpacing(0)
        down.addWidget(self.canvas_area, 1)
        legend = QHBoxLayout()
        legend.setContentsMargins(Space.M, Space.XS, Space.M, 0)
        legend.addWidget(self.scale)
        down.addLayout(legend)
        upper.setMinimumHeight(120)
        for widget, stretch in ((upper, 4), (self.raster, 3), (self.curves, 2)):
            self.split.addWidget(widget)
            self.split.setStretchFactor(self.split.count() - 1, stretch)
        self.split.setSizes([230, 140, 210])
        self.main = QStackedWidget(self)
        self.main.addWidget(self.split)
        self.main.addWidget(self.twin)
        left = QVBoxLayout()
        left.setSpacing(0)
        left.addWidget(self.main, 1)
        left.addWidget(self.timeline)
        across = QHBoxLayout()
        across.setSpacing(0)
        across.addLayout(left, 1)
        across.addWidget(self.side)
        self.views = QWidget(self)
        all_ = QVBoxLayout(self.views)
        all_.setContentsMargins(0, 0, 0, 0)
        all_.setSpacing(0)
        all_.addLayout(choices)
        all_.addLayout(across, 1)
        all_.addWidget(self.transport)
        self.empty = self._empty_state()
        self.stack = QStackedWidget(self)
        self.stack.addWidget(self.empty)
        self.stack.addWidget(self.views)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(head)
        layout.addLayout(card)
        layout.addWidget(self.stack, 1)

    def _order_tabs(self) -> None:
        """Tab goes from the top left to the bottom right: choices, views, panels, playing."""
        order: list[QWidget] = [*self.capture.buttons.values(), self.words, self.file_menu]
        for choice in (self.fill, self.unit, self.span):
            order += choice.buttons.values()
        order += [self.canvas, self.twin, self.raster, self.curves, self.timeline]
        order += [*self.side.tabs.values(), self.card.history, *self.transport.buttons()]
        for before, after in pairwise(order):
            QWidget.setTabOrder(before, after)

    def _empty_state(self) -> QWidget:
        """What stands here before there is a trace, and how to get one."""
        empty = QWidget(self)
        title = QLabel(self.tr("See why each token was chosen"), empty)
        title.setProperty("tone", "display")
        title.setWordWrap(True)
        words = QLabel(
            self.tr(
                "Ask something in the chat and come back while the answer is being written, or "
                "press Inspect under an answer. A trace file opens here too, without a model: "
                "drop it on this window."
            ),
            empty,
        )
        words.setProperty("tone", "lead")
        words.setWordWrap(True)
        self.open_button = QPushButton(self.tr("Open trace…"), empty)
        self.open_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.open_button.setAccessibleName(self.tr("Open a trace file"))
        self.open_button.clicked.connect(self.file_menu.ask_open)
        row = QHBoxLayout()
        row.addWidget(self.open_button)
        row.addStretch(1)
        column = QVBoxLayout(empty)
        column.setContentsMargins(Space.XXL * 3, 0, Space.XXL * 3, 0)
        column.setSpacing(Space.M)
        column.addStretch(1)
        column.addWidget(title)
        column.addWidget(words)
        column.addLayout(row)
        column.addStretch(2)
        return empty

    def _connect(self) -> None:
        model = self._model
        self.fill.chosen.connect(self._choose_fill)
        self.capture.chosen.connect(self._choose_capture)
        self.unit.chosen.connect(self.axes.choose_unit)
        self.span.chosen.connect(lambda key: self.axes.choose_block_only(key == "block"))
        model.trace_changed.connect(self._refresh)
        model.grown.connect(self._refresh)
        model.fill_changed.connect(self._refresh)
        self._files.failed.connect(self.show_problem)
        self._forks.failed.connect(self.show_failure)
        self._why.failed.connect(self.show_failure)
        self._compare.failed.connect(self.show_problem)
        self._compare.changed.connect(self._refresh)
        self._files.busy_changed.connect(self._refresh_doing)
        self._files.opened.connect(self.problem.hide)
        self._files.written.connect(self._say_written)
        self.problem.pressed.connect(self._on_problem)

    @Slot(object)
    def show_problem(self, problem: Problem) -> None:
        """Shows why a file could not be read or written; what is shown stays."""
        failure = Failure(problem.code, problem.message, problem.action, "trace")
        self.problem.show_failure(failure, "open", self.tr("Open another trace…"))
        self.problem.show()

    @Slot(object)
    def show_failure(self, failure: Failure) -> None:
        """Shows why the model could not do what was asked of it here."""
        self.problem.show_failure(failure, "close", self.tr("Close"))
        self.problem.show()

    @Slot(str)
    def _on_problem(self, action: str) -> None:
        self.problem.hide()
        if action == "open":
            self.file_menu.ask_open()

    @Slot()
    def _refresh_doing(self) -> None:
        self.doing.say(self._files.doing)

    @Slot(str)
    def _say_written(self, path: str) -> None:
        self.problem.hide()
        self.doing.say(self.tr("Saved {0}").format(Path(path).name))
        self.doing.setToolTip(as_typed(path))

    @property
    def card(self) -> PositionCard:
        """The card of the selected position."""
        card = self.side.panels["position"]
        assert isinstance(card, PositionCard)
        return card

    @Slot(bool)
    def _show_words(self, words: bool) -> None:
        self.main.setCurrentWidget(self.twin if words else self.split)

    @Slot(str)
    def _choose_capture(self, level: str) -> None:
        """Of the answers that are asked for from now on."""
        self._settings.change(capture=level)

    @Slot(str)
    def _choose_fill(self, key: FillKey) -> None:
        self._model.choose_fill(key)

    @Slot()
    def _refresh(self) -> None:
        data = self._model.data
        self.stack.setCurrentWidget(self.views if data is not None else self.empty)
        self.fill.mark(self._model.fill)
        self.fill.buttons["difference"].setVisible(self._model.difference is not None)
        self.words.setVisible(data is not None)
        self.title.say(self._model.title if data else self.tr("Inspector"))
        self.facts.say(self._facts() if data else "")

    def _facts(self) -> str:
        """What is shown, in one line."""
        data = self._model.data
        if data is None:
            return ""
        header = data.trace.header
        parts = [header.model_name or self.tr("model not named"), header.runtime]
        parts.append(self.tr("{0} steps").format(f"{data.steps:,}"))
        parts.append(
            self.tr("{0} positions in {1} blocks").format(
                f"{data.positions:,}", f"{len(data.segments):,}"
            )
        )
        if data.trace.top_ids is None:
            parts.append(self.tr("candidates not captured"))
        else:
            parts.append(self.tr("top {0} candidates").format(data.trace.top_ids.shape[2]))
        if self._model.source is Source.LIVE:
            parts.append(self.tr("being written"))
        return "  ·  ".join(part for part in parts if part)

    # looking

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._model.watch(True)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._model.watch(False)
        self._model.pause()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Keys that work wherever the focus is on the page."""
        model = self._model
        actions = {
            Qt.Key.Key_Space: model.toggle_play,
            Qt.Key.Key_Comma: lambda: model.step_by(-1),
            Qt.Key.Key_Period: lambda: model.step_by(1),
            Qt.Key.Key_BracketLeft: lambda: model.go_to_mark(-1),
            Qt.Key.Key_BracketRight: lambda: model.go_to_mark(1),
            Qt.Key.Key_W: self.words.toggle,
            Qt.Key.Key_PageUp: lambda: model.go_to_block(-1),
            Qt.Key.Key_PageDown: lambda: model.go_to_block(1),
        }
        action = actions.get(Qt.Key(event.key()))
        if action is None or model.data is None:
            super().keyPressEvent(event)
        else:
            action()
