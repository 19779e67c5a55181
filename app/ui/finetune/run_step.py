"""Step 5: the run as it goes: curves, the newest reply, and what it can be told.

It knows controls and drawing. What a run does is read from its journal by the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Slot
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from app.models.finetune import FinetuneModel, Step
from app.models.finetune_run import RunModel
from app.ui.finetune.step_page import StepPage, figure
from app.ui.model_parts import ProblemCard, button, put, row, text_label
from app.ui.theme import Space, Theme


class Curve(QWidget):
    """One figure over updates, with its last value. A value that is not known leaves a gap."""

    def __init__(self, theme: Theme, name: str, unit: str = "") -> None:
        super().__init__()
        self._theme, self._name, self._unit = theme, name, unit
        self._points: list[tuple[float, float]] = []
        self.setMinimumHeight(96)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(name)
        theme.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return QSize(240, 96)

    def show_points(self, points: Sequence[tuple[float, float | None]]) -> None:
        """(update, value) in order; None and what is not finite are left out."""
        known = [(x, y) for x, y in points if y is not None and math.isfinite(y)]
        if known != self._points:
            self._points = known
            self.setAccessibleDescription(self._last())
            self.update()

    def _last(self) -> str:
        if not self._points:
            return "–"
        return f"{self._points[-1][1]:.4g}{self._unit}"

    def paintEvent(self, event: QPaintEvent) -> None:
        colors = self._theme.colors
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(0.5, 0.5, self.width() - 1, self.height() - 1)
        painter.setPen(QPen(QColor(colors.line), 1))
        painter.setBrush(QColor(colors.surface))
        painter.drawRoundedRect(area, 6, 6)
        painter.setPen(QColor(colors.muted))
        inside = area.adjusted(Space.S, Space.XS, -Space.S, -Space.XS)
        painter.drawText(inside, Qt.AlignmentFlag.AlignLeft, self._name)
        painter.setPen(QColor(colors.text))
        painter.drawText(inside, Qt.AlignmentFlag.AlignRight, self._last())
        plot = inside.adjusted(0, 22, 0, -Space.XS)
        if len(self._points) > 1:
            self._draw(painter, plot, QColor(colors.accent))
        painter.end()

    def _draw(self, painter: QPainter, plot: QRectF, ink: QColor) -> None:
        xs, ys = [p[0] for p in self._points], [p[1] for p in self._points]
        left, right = min(xs), max(xs)
        low, high = min(ys), max(ys)
        wide, tall = (right - left) or 1.0, (high - low) or 1.0
        line = [
            QPointF(
                plot.left() + plot.width() * (x - left) / wide,
                plot.bottom() - plot.height() * (y - low) / tall,
            )
            for x, y in self._points
        ]
        painter.setPen(QPen(ink, 1.5))
        painter.drawPolyline(line)


class RunStep(StepPage):
    def __init__(self, theme: Theme, model: FinetuneModel, run: RunModel) -> None:
        super().__init__(
            self.tr("Run"),
            self.tr("The training runs by itself: this window may close, and finds it again."),
        )
        self._model, self._run = model, run
        head = self.card(self.tr("The run"))
        self.state = text_label()
        self.left = text_label("muted")
        self.notices = text_label("muted")
        self.problem = ProblemCard(theme)
        self.start_button = button(self.tr("Start the training"), kind="primary")
        self.pause_button = button(self.tr("Pause"))
        self.save_button = button(self.tr("Save now"))
        self.stop_button = button(self.tr("Stop, keeping the best"))
        self.again_button = button(self.tr("Go on"), self.tr("Go on with this run"))
        for part in (self.state, self.left, self.notices, self.problem):
            head.inside.addWidget(part)
        buttons = (self.start_button, self.pause_button, self.save_button)
        head.inside.addLayout(row(*buttons, self.stop_button, self.again_button, None))
        self._add_curves(theme)
        sample = self.card(self.tr("Newest measured reply"))
        self.sample = figure()
        self.sample.setWordWrap(True)
        sample.inside.addWidget(self.sample)
        self.column.addStretch(1)
        self.start_button.clicked.connect(self._begin)
        self.pause_button.clicked.connect(self._pause)
        self.save_button.clicked.connect(lambda: run.ask("save"))
        self.stop_button.clicked.connect(lambda: run.ask("stop"))
        self.again_button.clicked.connect(run.go_on)
        self.problem.pressed.connect(lambda _action: run.go_on())
        run.changed.connect(self.refresh)
        self.refresh()

    def _add_curves(self, theme: Theme) -> None:
        card = self.card(self.tr("Figures over updates"))
        grid = QGridLayout()
        grid.setSpacing(Space.S)
        self.curves = {
            "accuracy": Curve(theme, self.tr("Verified rollouts, share")),
            "tpf": Curve(theme, self.tr("Tokens per forward")),
            "loss": Curve(theme, self.tr("Loss")),
            "entropy": Curve(theme, self.tr("Entropy, normalised")),
            "grad_norm": Curve(theme, self.tr("Gradient norm")),
            "seconds": Curve(theme, self.tr("An update"), " s"),
        }
        for place, curve in enumerate(self.curves.values()):
            grid.addWidget(curve, place // 2, place % 2)
        card.inside.addLayout(grid)

    @Slot()
    def refresh(self) -> None:
        run, watched = self._run, self._run.watched
        status = run.status
        begun = run.path is not None
        state = "" if status is None else status.state
        words = self.tr("Not started.")
        if begun and status is not None:
            done = watched.updates[-1]["update"] if watched.updates else status.update
            total = watched.total or "–"
            words = self.tr("{0}: update {1} of {2}. {3}").format(
                self._state_word(state), done, total, status.reason
            )
        put(self.state, words)
        left = watched.seconds_left if state == "running" else None
        put(self.left, "" if left is None else self.tr("About {0} left.").format(_span(left)))
        put(self.notices, "\n".join(watched.notices[-3:]))
        problem = run.problem or watched.error
        self.problem.setVisible(problem is not None)
        if problem is not None:
            self.problem.show_problem(problem, "again", self.tr("Go on"))
        missing = self._model.missing(Step.RECIPE)
        self.start_button.setVisible(not begun or state in ("finished", "failed", "stopped"))
        self.start_button.setEnabled(not missing)
        self.start_button.setText(
            self.tr("Start another run") if begun else self.tr("Start the training")
        )
        self.start_button.setToolTip(missing)
        for part in (self.pause_button, self.save_button, self.stop_button):
            part.setVisible(run.alive)
        self.pause_button.setText(self.tr("Go on") if state == "paused" else self.tr("Pause"))
        self.again_button.setVisible(begun and state in ("stopped", "crashed", "failed"))
        self._show_curves()

    def _show_curves(self) -> None:
        watched = self._run.watched
        for name in ("accuracy", "tpf", "loss", "entropy", "grad_norm"):
            self.curves[name].show_points([(u["update"], u.get(name)) for u in watched.updates])
        self.curves["seconds"].show_points(
            [
                (u["update"], (u.get("seconds_rollout") or 0) + (u.get("seconds_update") or 0))
                for u in watched.updates
            ]
        )
        if watched.samples:
            newest = watched.samples[0]
            mark = self.tr("passes") if newest.get("passed") else self.tr("does not pass")
            text = f"{newest.get('prompt', '')}\n\n{newest.get('reply', '')}\n\n({mark})"
            put(self.sample, text[:1500])
        else:
            put(self.sample, self.tr("Nothing has been measured yet."))

    def _state_word(self, state: str) -> str:
        words = {
            "running": self.tr("Running"),
            "paused": self.tr("Paused"),
            "stopped": self.tr("Stopped"),
            "finished": self.tr("Finished"),
            "failed": self.tr("Ended with an error"),
            "crashed": self.tr("Its process is gone"),
        }
        return words.get(state, state)

    @Slot()
    def _pause(self) -> None:
        status = self._run.status
        paused = status is not None and status.state == "paused"
        self._run.ask("resume" if paused else "pause")

    @Slot()
    def _begin(self) -> None:
        self.start_button.setEnabled(False)
        self._model.begin()

    def decided(self) -> str:
        status = self._run.status
        return "" if status is None else self._state_word(status.state).lower()


def _span(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
