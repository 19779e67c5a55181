"""The model in use: one card with its facts, its notes, and the folder button.

It knows `ModelInfo` and the lifecycle. It refuses to know how a model is loaded.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QScrollArea, QWidget

from app.models.engine_model import EngineModel
from app.models.lifecycle import Lifecycle
from app.ui.settings_page import card, centred_page, note, page_title
from app.ui.theme import Space
from engine.types import ModelInfo


class ModelsPage(QScrollArea):
    open_pressed = Signal()
    demo_pressed = Signal()

    def __init__(self, engine: EngineModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._engine = engine
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        page, column = centred_page()
        self.setWidget(page)
        column.addWidget(page_title(self.tr("Models")))
        box = card(column, self.tr("In use"))
        self.name = QLabel()
        self.name.setProperty("tone", "heading")
        self.facts = _wrapped("muted")
        self.path = _wrapped("figures")
        self.notes = _wrapped("small")
        for label in (self.name, self.facts, self.path, self.notes):
            label.setTextFormat(Qt.TextFormat.PlainText)
            box.addWidget(label)
        row = QHBoxLayout()
        row.setSpacing(Space.S)
        self.open_button = QPushButton(self.tr("Open model folder…"))
        self.open_button.setProperty("kind", "primary")
        self.open_button.setToolTip(self.tr("Open a checkpoint folder on this computer (Ctrl+O)"))
        self.demo_button = QPushButton(self.tr("Load the demo model"))
        self.unload_button = QPushButton(self.tr("Unload"))
        for button in (self.open_button, self.demo_button, self.unload_button):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            button.setAccessibleName(button.text())
            row.addWidget(button)
        row.addStretch(1)
        box.addSpacing(Space.S)
        box.addLayout(row)
        column.addWidget(
            note(
                self.tr(
                    "A model folder holds config.json, tokenizer.json and safetensors files, as "
                    "downloaded from Hugging Face. It is checked before use; no code in it is run."
                )
            )
        )
        column.addStretch(1)
        self.open_button.clicked.connect(self.open_pressed)
        self.demo_button.clicked.connect(self.demo_pressed)
        self.unload_button.clicked.connect(engine.unload)
        engine.state_changed.connect(self.refresh)
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        engine = self._engine
        info, failure = engine.info, engine.failure
        if info is not None:
            self._show_info(info)
        else:
            self.name.setText(engine.state.value)
            self.path.setText(engine.path)
            self.facts.setText(failure.message if failure else "")
            self.notes.setText(failure.action if failure else "")
        for label in (self.facts, self.path, self.notes):
            label.setVisible(bool(label.text()))
        self.unload_button.setVisible(info is not None)
        self.demo_button.setVisible(not engine.is_demo or engine.state is Lifecycle.NO_MODEL)

    def _show_info(self, info: ModelInfo) -> None:
        self.name.setText(info.name)
        facts = [self.tr("runs on {0}").format(info.device)]
        if info.parameters:
            facts.append(self.tr("{0} M parameters").format(f"{info.parameters / 1e6:,.1f}"))
        if info.weight_bytes:
            facts.append(self.tr("{0} MB of weights").format(f"{info.weight_bytes / 1e6:,.1f}"))
        facts.append(self.tr("stored as {0}").format(info.quantisation))
        facts.append(self.tr("context {0} tokens").format(f"{info.context:,}"))
        self.facts.setText(", ".join(facts)[:1].upper() + ", ".join(facts)[1:])
        self.path.setText(info.path)
        self.notes.setText("\n".join((info.runtime, *info.notes)))


def _wrapped(tone: str) -> QLabel:
    label = QLabel()
    label.setProperty("tone", tone)
    label.setWordWrap(True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
