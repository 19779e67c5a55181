"""The model in use: its facts, its notes, and the buttons that open, load or unload one.

It knows `ModelInfo` and the lifecycle. It refuses to know how a model is loaded.
"""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot

from app.models.engine_model import EngineModel
from app.models.lifecycle import Lifecycle
from app.ui.model_parts import CardFrame, button, put, row, text_label
from app.ui.theme import Space
from engine.types import ModelInfo


class InUseCard(CardFrame):
    open_pressed = Signal()
    demo_pressed = Signal()

    def __init__(self, engine: EngineModel) -> None:
        super().__init__(self.tr("The model in use"))
        self._engine = engine
        heading = text_label("small")
        heading.setText(self.tr("In use"))
        self.name = text_label("heading")
        self.facts = text_label("muted")
        self.path = text_label("figures")
        self.notes = text_label("small")
        for label in (heading, self.name, self.facts, self.path, self.notes):
            self.inside.addWidget(label)
        self.open_button = button(self.tr("Open model folder…"))
        self.open_button.setToolTip(self.tr("Open a checkpoint folder on this computer (Ctrl+O)"))
        self.demo_button = button(self.tr("Load the demo model"))
        self.unload_button = button(self.tr("Unload"), self.tr("Unload the model"))
        self.inside.addSpacing(Space.S)
        self.inside.addLayout(row(self.open_button, self.demo_button, self.unload_button, None))
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
            put(self.path, engine.path)
            put(self.facts, failure.message if failure else "")
            put(self.notes, failure.action if failure else "")
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
        words = ", ".join(facts)
        put(self.facts, words[:1].upper() + words[1:])
        put(self.path, info.path)
        put(self.notes, "\n".join((info.runtime, *info.notes)))
