"""The bar at the bottom: which model and how it is, which path runs, and what was measured.

It knows how figures are worded and defined (every one has its definition as tooltip). It refuses to
compute any. A figure that was not measured is an en dash, with the reason.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QAction, QColor, QFontMetrics, QIcon, QPainter, QPixmap, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QMenu, QProgressBar, QPushButton, QWidget

from app.backend.conversations import Failure
from app.models.engine_model import EngineModel
from app.models.gpu_meter import GpuMeter, GpuReading
from app.models.lifecycle import Lifecycle
from app.models.snapshot import Snapshot
from app.models.worker import ReplyOutcome
from app.ui.theme import Size, Space, Theme, mono_font
from app.ui.tips import as_typed
from engine.types import LoadProgress

DASH = "–"
GIB = 2**30
CHIP_NAME = 220  # logical pixels that a model's name may take


class ElidedLabel(QLabel):
    """A label that shortens its text instead of pushing its neighbours; the whole text is its
    tooltip.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.full = ""
        self.setMinimumWidth(0)
        self.setTextFormat(Qt.TextFormat.PlainText)

    def show_text(self, text: str, tip: str = "") -> None:
        self.full = text
        self.setToolTip(as_typed(tip or text))
        self._elide()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def _elide(self) -> None:
        width = max(0, self.width() - 2)
        self.setText(self.fontMetrics().elidedText(self.full, Qt.TextElideMode.ElideRight, width))


class Figure(QLabel):
    """One number with its unit, as wide as its widest value, so that neighbours stay still."""

    def __init__(self, name: str, definition: str, widest: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("tone", "number")
        self.setAccessibleName(name)
        self._definition = definition
        metrics = QFontMetrics(mono_font(Size.SMALL))
        self.setMinimumWidth(metrics.horizontalAdvance(widest))
        self.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)

    def show_value(self, text: str, reason: str = "") -> None:
        """`reason` says why nothing was measured, when `text` holds a dash."""
        self.setText(text)
        tip = f"{reason}\n\n{self._definition}" if reason else self._definition
        self.setToolTip(as_typed(tip))


class StatusBar(QFrame):
    open_pressed = Signal()
    demo_pressed = Signal()

    def __init__(
        self, theme: Theme, engine: EngineModel, meter: GpuMeter, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("statusBar")
        self.setFixedHeight(40)
        self._theme = theme
        self._engine = engine
        self._build()
        engine.state_changed.connect(self.refresh)
        engine.progress_changed.connect(self._show_progress)
        engine.snapshot_changed.connect(self.show_snapshot)
        engine.reply_ended.connect(self._show_outcome)
        engine.load_failed.connect(self._show_load_failure)
        meter.changed.connect(self.show_reading)
        theme.changed.connect(self.refresh)
        self._clear_figures()
        self.show_reading(meter.reading)
        self.refresh()

    def _build(self) -> None:
        self.chip = QPushButton(self)
        self.chip.setObjectName("modelChip")
        self.chip.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.chip.setIconSize(QSize(10, 10))
        self.menu = QMenu(self.chip)
        self.open_action = QAction(self.tr("Open model folder…"), self)
        self.open_action.triggered.connect(self.open_pressed)
        self.demo_action = QAction(self.tr("Load the demo model"), self)
        self.demo_action.triggered.connect(self.demo_pressed)
        self.stop_action = QAction(self.tr("Stop loading"), self)
        self.stop_action.triggered.connect(self._engine.stop)
        self.unload_action = QAction(self.tr("Unload the model"), self)
        self.unload_action.triggered.connect(self._engine.unload)
        self.menu.addActions([self.open_action, self.demo_action])
        self.menu.addSeparator()
        self.menu.addActions([self.stop_action, self.unload_action])
        self.chip.setMenu(self.menu)
        self.progress = QProgressBar(self)
        self.progress.setAccessibleName(self.tr("Loading"))
        self.progress.setTextVisible(False)
        self.progress.setFixedWidth(120)
        self.path = ElidedLabel(self)
        self.path.setProperty("tone", "figures")
        self.rate = Figure(
            self.tr("Tokens per second"),
            self.tr(
                "tok/s: tokens kept in the answer so far, up to the first stop token, per second "
                "since its first decode pass. Reading the prompt is not counted."
            ),
            "000,000 tok/s",
            self,
        )
        self.tpf = Figure(
            self.tr("Tokens per forward"),
            self.tr(
                "TPF, tokens per forward: tokens kept in the answer divided by the forward passes "
                "spent on it, cache commits counted. The higher, the fewer passes it needed."
            ),
            "TPF 000.0",
            self,
        )
        self.step = Figure(
            self.tr("Step"),
            self.tr(
                "step: forward passes over the current block. After the answer: all its forward "
                "passes, cache commits counted."
            ),
            "0,000 forwards",
            self,
        )
        self.block = Figure(
            self.tr("Block"),
            self.tr(
                "block: the one being written, counted from 1. After the answer: how many blocks "
                "it took."
            ),
            "000 blocks",
            self,
        )
        self.device = Figure(
            self.tr("Device"),
            self.tr(
                "GPU: share of the last second in which it was busy. VRAM: memory in use on the "
                "GPU by all programs. W: power drawn."
            ),
            "CPU",
            self,
        )
        layout = QHBoxLayout(self)
        layout.setContentsMargins(Space.S, 0, Space.L, 0)
        layout.setSpacing(Space.L)
        for widget in (self.chip, self.progress):
            layout.addWidget(widget)
        layout.addWidget(self.path, 1)
        for widget in (self.rate, self.tpf, self.step, self.block, self.device):
            layout.addWidget(widget)

    @Slot()
    def refresh(self) -> None:
        """Shows the model's state in words, with a dot in its colour."""
        engine, state = self._engine, self._engine.state
        name = engine.info.name if engine.info else Path(engine.path).name
        shown = self.chip.fontMetrics().elidedText(name, Qt.TextElideMode.ElideMiddle, CHIP_NAME)
        named = state is not Lifecycle.NO_MODEL and bool(name)
        text = f"{shown} · {state.value}" if named else state.value
        self.chip.setText(text.replace("&", "&&"))  # a single one would underline a letter
        full = f"{name} · {state.value}" if named else state.value
        self.chip.setAccessibleName(self.tr("Model: {0}").format(full))
        self.chip.setToolTip(as_typed(self._model_tip()))
        self.chip.setIcon(_dot(self._dot_color(state)))
        self.progress.setVisible(state is Lifecycle.LOADING)
        self.stop_action.setVisible(state is Lifecycle.LOADING)
        self.unload_action.setVisible(state in (Lifecycle.READY, Lifecycle.GENERATING))
        if state is Lifecycle.LOADING:
            self.progress.setRange(0, 0)
            self.path.show_text(self.tr("Loading"))
            self._clear_figures()
        elif engine.info is not None:
            self.path.show_text(
                engine.info.runtime, "\n".join((engine.info.runtime, *engine.info.notes))
            )
        elif state is Lifecycle.FAILED and engine.failure is not None:
            self.path.show_text(engine.failure.message)
        else:
            self.path.show_text(self.tr("Open a model folder to begin."))

    @Slot(object)
    def show_snapshot(self, snapshot: Snapshot) -> None:
        figures = snapshot.figures
        not_yet = self.tr("No token is kept yet.")
        rate, tpf = figures.tokens_per_second, figures.tpf
        self.rate.show_value(
            f"{DASH} tok/s" if rate is None else f"{rate:,.0f} tok/s",
            not_yet if rate is None else "",
        )
        self.tpf.show_value(
            f"TPF {DASH}" if tpf is None else f"TPF {tpf:.1f}", not_yet if tpf is None else ""
        )
        step, block = (DASH if n is None else n for n in (figures.step, figures.block))
        self.step.show_value(self.tr("step {0}").format(step))
        most = self.tr("This answer may have at most {0} blocks.").format(figures.max_blocks)
        self.block.show_value(
            self.tr("block {0}").format(block), most if figures.max_blocks else ""
        )
        if snapshot.path:
            self.path.show_text(snapshot.path)

    @Slot(object)
    def show_reading(self, reading: GpuReading) -> None:
        if reading.device == "CPU":
            self.device.show_value("CPU", reading.reason)
        elif not reading.device:
            self.device.show_value(DASH, self.tr("The machine has not been looked at yet."))
        else:
            parts: list[str] = []
            if reading.utilisation is not None:
                parts.append(f"GPU {reading.utilisation:.0f} %")
            if reading.used_bytes is not None and reading.total_bytes is not None:
                used, total = reading.used_bytes / GIB, reading.total_bytes / GIB
                parts.append(f"VRAM {used:.1f}/{total:.1f} GiB")
            if reading.power is not None:
                parts.append(f"{reading.power:.0f} W")
            self.device.show_value("  ".join(parts) or "GPU", reading.reason)

    @Slot(object)
    def _show_outcome(self, outcome: ReplyOutcome) -> None:
        figures = outcome.figures
        if figures is not None and figures.tokens:
            self.rate.show_value(f"{figures.tokens_per_second:,.0f} tok/s")
            self.tpf.show_value(f"TPF {figures.tpf:.1f}")
        if figures is not None:
            # plural by hand: each of the two has one word for one
            forwards = self.tr("forward") if figures.forwards == 1 else self.tr("forwards")
            blocks = self.tr("block") if figures.blocks == 1 else self.tr("blocks")
            self.step.show_value(f"{figures.forwards:,} {forwards}")
            self.block.show_value(f"{figures.blocks:,} {blocks}")

    @Slot(object)
    def _show_progress(self, progress: LoadProgress) -> None:
        text = progress.phase
        if progress.total_bytes > 0:
            self.progress.setRange(0, 1000)
            self.progress.setValue(round(1000 * progress.done_bytes / progress.total_bytes))
            done, total = progress.done_bytes / 1e6, progress.total_bytes / 1e6
            text = self.tr("{0}, {1} of {2} MB").format(
                progress.phase, f"{done:,.1f}", f"{total:,.1f}"
            )
        self.path.show_text(text)

    @Slot(object)
    def _show_load_failure(self, failure: Failure) -> None:
        self.path.show_text(failure.message)

    def _clear_figures(self) -> None:
        none = self.tr("No answer has been written with this model yet.")
        self.rate.show_value(f"{DASH} tok/s", none)
        self.tpf.show_value(f"TPF {DASH}", none)
        self.step.show_value(self.tr("step {0}").format(DASH), none)
        self.block.show_value(self.tr("block {0}").format(DASH), none)

    def _model_tip(self) -> str:
        info = self._engine.info
        if info is None:
            return self.tr("Open, load or unload a model")
        facts = self.tr("{0} parameters, {1}, block {2}, context {3} tokens").format(
            f"{info.parameters:,}", info.quantisation, info.block_length, f"{info.context:,}"
        )
        return "\n".join((info.path or info.name, facts))

    def _dot_color(self, state: Lifecycle) -> str:
        colors = self._theme.colors
        if state is Lifecycle.READY:
            return colors.ok
        if state is Lifecycle.FAILED:
            return colors.bad
        return colors.muted if state is Lifecycle.NO_MODEL else colors.accent


def _dot(color: str) -> QIcon:
    pixmap = QPixmap(20, 20)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(color))
    painter.drawEllipse(3, 3, 14, 14)
    painter.end()
    pixmap.setDevicePixelRatio(2)
    return QIcon(pixmap)
