"""The row of controls that plays the recording: back, play, forward, speed, follow, and where we
are in words.

It knows buttons and their keys. It refuses to know how playing works (`app.models.inspector`).
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt, Slot
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QMenu, QPushButton, QWidget

from app.models.inspector import SPEEDS, InspectorModel, Selection, Source
from app.ui.icons import icon
from app.ui.inspector.words import mark_words, step_words
from app.ui.theme import Space, Theme

ICON = 18


class Transport(QFrame):
    def __init__(self, theme: Theme, model: InspectorModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("transport")
        self._theme = theme
        self._model = model
        self._icons: dict[QPushButton, str] = {}
        add = self._button
        self.block_back = add("block-back", self.tr("Block before (Page up)"))
        self.mark_back = add("mark-back", self.tr("Mark before ([)"))
        self.back = add("step-back", self.tr("Step back (,)"))
        self.play = add("play", self.tr("Play (Space)"))
        self.forward = add("step-forward", self.tr("Step forward (.)"))
        self.mark_forward = add("mark-forward", self.tr("Next mark (])"))
        self.block_forward = add("block-forward", self.tr("Next block (Page down)"))
        self.speed = QPushButton(self)
        self.speed.setProperty("kind", "quiet")
        self.speed.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.speed.setMenu(self._speeds())
        self.follow = QPushButton(self.tr("Follow"), self)
        self.follow.setProperty("kind", "tab")
        self.follow.setCheckable(True)
        self.follow.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.follow.setAccessibleName(self.tr("Follow the answer being written"))
        self.follow.setToolTip(self.tr("Go along with the answer being written"))
        self.where = QLabel(self)
        self.where.setProperty("tone", "number")
        self.marks = QLabel(self)
        self.marks.setProperty("tone", "small")
        self._lay_out()
        self._connect()
        self._refresh()

    def _button(self, name: str, tip: str) -> QPushButton:
        button = QPushButton(self)
        button.setProperty("kind", "icon")
        button.setIconSize(QSize(ICON, ICON))
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.setAccessibleName(tip.partition(" (")[0])
        button.setToolTip(tip)
        self._icons[button] = name
        return button

    def buttons(self) -> tuple[QPushButton, ...]:
        """All controls from left to right."""
        return (*self._icons, self.speed, self.follow)

    def _speeds(self) -> QMenu:
        menu = QMenu(self)
        group = QActionGroup(menu)
        self.speed_actions: dict[int, QAction] = {}
        for speed in SPEEDS:
            action = menu.addAction(self._speed_words(speed))
            action.setCheckable(True)
            action.triggered.connect(lambda _=False, s=speed: self._model.choose_speed(s))
            group.addAction(action)
            self.speed_actions[speed] = action
        return menu

    def _speed_words(self, speed: int) -> str:
        if speed == 0:
            return self.tr("As recorded")
        return self.tr("{0} steps/s").format(speed) if speed > 1 else self.tr("1 step/s")

    def _lay_out(self) -> None:
        layout = QHBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.XS, Space.M, Space.S)
        layout.setSpacing(2)
        for button in self._icons:
            layout.addWidget(button)
        layout.addWidget(self.speed)
        layout.addWidget(self.follow)
        layout.addSpacing(Space.M)
        layout.addWidget(self.where)
        layout.addSpacing(Space.M)
        layout.addWidget(self.marks, 1)

    def _connect(self) -> None:
        model = self._model
        actions: dict[QPushButton, Callable[[], object]] = {
            self.block_back: lambda: model.go_to_block(-1),
            self.mark_back: lambda: model.go_to_mark(-1),
            self.back: lambda: model.step_by(-1),
            self.play: model.toggle_play,
            self.forward: lambda: model.step_by(1),
            self.mark_forward: lambda: model.go_to_mark(1),
            self.block_forward: lambda: model.go_to_block(1),
        }
        for button, action in actions.items():
            button.clicked.connect(lambda _=False, act=action: act())
        self.follow.clicked.connect(model.choose_follow)
        for signal in (model.trace_changed, model.grown, model.play_changed, self._theme.changed):
            signal.connect(self._refresh)
        model.selection_changed.connect(self._on_selection)

    @Slot(object, object)
    def _on_selection(self, before: Selection, now: Selection) -> None:
        if before.step != now.step:
            self._say_where()

    @Slot()
    def _refresh(self) -> None:
        playing = self._model.playing
        self._icons[self.play] = "pause" if playing else "play"
        self.play.setToolTip(self.tr("Pause (Space)") if playing else self.tr("Play (Space)"))
        self.play.setAccessibleName(self.tr("Pause") if playing else self.tr("Play"))
        for button, name in self._icons.items():
            button.setIcon(icon(name, self._theme.colors.text, ICON))
        words = self._speed_words(self._model.speed)
        self.speed.setText(words)
        self.speed.setAccessibleName(self.tr("Speed: {0}").format(words))
        self.speed_actions[self._model.speed].setChecked(True)
        self.follow.setVisible(self._model.source is Source.LIVE)
        self.follow.setChecked(self._model.follow)
        self._say_where()

    def _say_where(self) -> None:
        self.where.setText(step_words(self._model))
        step = self._model.selection.step
        happened = [mark_words(mark) for mark in self._model.marks_at(step)]
        self.marks.setText("; ".join(happened))
