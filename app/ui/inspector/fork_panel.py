"""What if: a change at the selected step and position, run by the loaded model, and the tree of
what was tried.

It knows the controls and how a change is said. It refuses to know how a fork is taken. What cannot
be run is said beside the button, before it is pressed.
"""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QSignalBlocker, Qt, Slot
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QCompleter,
    QDoubleSpinBox,
    QFrame,
    QGridLayout,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QRadioButton,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.models.inspector import InspectorModel
from app.models.inspector_data import InspectorData
from app.models.inspector_forks import Branch, ForkModel
from app.ui.inspector.token_layout import shown
from app.ui.inspector.words import quoted
from app.ui.theme import Space
from app.ui.tips import as_typed
from engine.trace import Change
from engine.trace.numbers import numbers_of
from engine.types import DecodeSettings, TokenState

TPF_WIDTH = 64  # px
OFF = -0.01  # of the editing threshold: the value below the least says that editing is off


class ForkPanel(QFrame):
    def __init__(
        self, model: InspectorModel, forks: ForkModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self.setAccessibleName(self.tr("What if"))
        self._model = model
        self._forks = forks
        self._ids: dict[str, int] = {}
        self._of: object = None  # the trace that the controls were filled from
        self.where = _label(self, "strong")
        self.kinds: dict[str, QRadioButton] = {}
        self._group = QButtonGroup(self)
        for key, name, meaning in (
            ("force", self.tr("Force a token"), self.tr("It stands there and is never edited")),
            ("ban", self.tr("Ban a token"), self.tr("It may not be proposed there any more")),
            ("mask", self.tr("Take it back"), self.tr("The position is open again at this step")),
            ("none", self.tr("No token"), self.tr("Only other settings, or nothing at all")),
        ):
            button = QRadioButton(name, self)
            button.setAccessibleName(name)
            button.setToolTip(meaning)
            button.toggled.connect(self._refresh)
            self._group.addButton(button)
            self.kinds[key] = button
        self.token = QLineEdit(self)
        self.token.setAccessibleName(self.tr("Token to force or ban"))
        self.token.setPlaceholderText(self.tr("its text, or #number"))
        self.token.textChanged.connect(self._refresh)
        self.look = QPushButton(self.tr("Look in the whole vocabulary"), self)
        self.look.setProperty("kind", "link")
        self.look.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.look.setAccessibleName(self.tr("Look for the token in the model's whole vocabulary"))
        self.look.clicked.connect(lambda: self._forks.look_for(self.token.text()))
        self._absent: set[str] = set()  # texts that no token of the vocabulary reads
        forks.token_found.connect(self._on_found)
        self.threshold = self._number(self.tr("Threshold"), 0.0, 1.0)
        self.editing = self._number(self.tr("Editing threshold"), OFF, 1.0)
        self.editing.setSpecialValueText(self.tr("off"))
        self.temperature = self._number(self.tr("Temperature"), 0.0, 10.0)
        self.run_button = QPushButton(self.tr("Continue from here"), self)
        self.run_button.setAccessibleName(self.tr("Continue from here"))
        self.run_button.setProperty("kind", "primary")
        self.run_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.run_button.clicked.connect(self._run)
        self.reason = _label(self, "small")
        self.tree = QTreeWidget(self)
        self.tree.setAccessibleName(self.tr("Traces of this tree"))
        self.tree.setColumnCount(2)
        self.tree.setHeaderHidden(True)
        self.tree.setRootIsDecorated(False)
        self.tree.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        header = self.tree.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.Fixed)
        header.setMinimumSectionSize(TPF_WIDTH)
        header.resizeSection(1, TPF_WIDTH)
        self.tree.itemActivated.connect(self._on_chosen)
        self.tree.itemClicked.connect(self._on_chosen)
        self._lay_out()
        self.kinds["force"].setChecked(True)
        for signal in (model.trace_changed, model.grown, forks.changed):
            signal.connect(self._refresh_all)
        model.selection_changed.connect(self._on_selection)

    def _number(self, name: str, least: float, most: float) -> QDoubleSpinBox:
        box = QDoubleSpinBox(self)
        box.setAccessibleName(name)
        box.setRange(least, most)
        box.setSingleStep(0.01 if most <= 1 else 0.1)
        box.setDecimals(2)
        box.valueChanged.connect(self._refresh)
        return box

    def _lay_out(self) -> None:
        layout = QVBoxLayout(self)
        layout.setContentsMargins(Space.M, Space.M, Space.M, Space.S)
        layout.setSpacing(Space.XS)
        layout.addWidget(self.where)
        grid = QGridLayout()
        grid.setHorizontalSpacing(0)
        grid.setVerticalSpacing(0)
        for index, button in enumerate(self.kinds.values()):
            grid.addWidget(button, index // 2, index % 2)
        layout.addLayout(grid)
        layout.addWidget(self.token)
        layout.addWidget(self.look)
        numbers = QGridLayout()
        numbers.setVerticalSpacing(Space.XS)
        rows = (self.threshold, self.editing, self.temperature)
        for row, box in enumerate(rows):
            label = QLabel(box.accessibleName(), self)
            label.setBuddy(box)
            numbers.addWidget(label, row, 0)
            numbers.addWidget(box, row, 1)
        numbers.setColumnStretch(0, 1)
        layout.addLayout(numbers)
        layout.addWidget(self.run_button)
        layout.addWidget(self.reason)
        head = _label(self, "small")
        head.setText(self.tr("Tried so far (TPF at the right)"))
        layout.addWidget(head)
        layout.addWidget(self.tree, 1)

    # what is shown

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh_all()

    @Slot(object, object)
    def _on_selection(self, _before: object, _now: object) -> None:
        if self.isVisible():
            self._refresh()

    @Slot()
    def _refresh_all(self) -> None:
        data = self._model.data
        if data is None or not self.isVisible():
            return
        if self._of is not data.trace.header.trace_id:
            self._of = data.trace.header.trace_id
            self._fill(data)
        self._show_tree()
        self._refresh()

    def _fill(self, data: InspectorData) -> None:
        """The trace's own tokens to choose from, and its settings to start from."""
        self._ids, self._absent = {}, set()
        for token, text in data.pieces.items():
            self._ids.setdefault(text, token)
            self._ids.setdefault(shown(text), token)
        completer = QCompleter(sorted({shown(text) for text in data.pieces.values()}), self.token)
        self.token.setCompleter(completer)
        settings = current_settings(data)
        for box in (self.threshold, self.editing, self.temperature):
            box.setEnabled(settings is not None)
        if settings is not None:
            editing = settings.editing_threshold
            values = (
                (self.threshold, settings.threshold),
                (self.editing, OFF if editing is None else editing),
                (self.temperature, settings.temperature),
            )
            for box, value in values:
                with QSignalBlocker(box):
                    box.setValue(value)

    def _show_tree(self) -> None:
        data = self._model.data
        current = data.trace.header.trace_id if data else ""
        self.tree.clear()
        for branch in self._forks.tree():
            item = QTreeWidgetItem([_indented(branch), _tpf(branch)])
            item.setData(0, Qt.ItemDataRole.UserRole, branch.trace.header.trace_id)
            item.setToolTip(0, as_typed(self._branch_words(branch)))
            item.setTextAlignment(1, Qt.AlignmentFlag.AlignRight)
            self.tree.addTopLevelItem(item)
            if branch.trace.header.trace_id == current:
                self.tree.setCurrentItem(item)

    def _branch_words(self, branch: Branch) -> str:
        if branch.parent is None:
            return branch.title
        return self.tr("{0}, from step {1} of its parent").format(
            branch.title, branch.parent.step + 1
        )

    @Slot()
    def _refresh(self) -> None:
        data = self._model.data
        if data is None or not self.isVisible():
            return
        selection = self._model.selection
        self.where.setText(
            self.tr("Before step {0} is taken, at position {1}").format(
                selection.step + 1, data.first_position + selection.position
            )
        )
        self.token.setEnabled(self._kind in ("force", "ban"))
        self.look.setVisible(self._can_look(data))
        reason = self._forks.blocked_reason() or self._problem(data)
        self.run_button.setEnabled(reason is None)
        self.reason.setText(reason or self.change_words(data, self.change(data)))
        self.run_button.setAccessibleDescription(self.reason.text())

    def _can_look(self, data: InspectorData) -> bool:
        """Whether the typed token is not one of the trace's, and may be one of the model's."""
        text = self.token.text()
        unknown = bool(text) and text not in self._absent and self.token_id() is None
        asked = self._kind in ("force", "ban") and data.trace.header.vocab_size is not None
        return asked and unknown and self._forks.blocked_reason() is None

    @Slot(str, object)
    def _on_found(self, text: str, token: int | None) -> None:
        if token is None:
            self._absent.add(text)
        else:
            self._ids[text] = token
        self._refresh()

    # the change

    @property
    def _kind(self) -> str:
        return next((key for key, button in self.kinds.items() if button.isChecked()), "none")

    def token_id(self) -> int | None:
        """The token that is typed; None when it is not known."""
        text = self.token.text()
        if text[:1] == "#" and text[1:].isascii() and text[1:].isdigit():
            return int(text[1:])
        return self._ids.get(text)

    def _problem(self, data: InspectorData) -> str | None:
        """Why this change cannot be made, as a sentence."""
        if self._kind == "none":
            return None
        selection = self._model.selection
        position, block = selection.position, data.segment_at(selection.step)
        moment = data.now(selection.step, position)
        if moment is not None and moment.state == TokenState.PROMPT:
            return self.tr("This position belongs to the prompt.")
        if position < block.begin:
            return self.tr("This position's block is finished at this step: go back to it.")
        if self._kind == "mask" and position >= block.begin + data.length:
            return self.tr("This position's block has not begun at this step.")
        if self._kind == "mask":
            return None
        if not self.token.text():
            return self.tr("Type the token's text, or its number as #123.")
        if self.token.text() in self._absent:
            return self.tr("No token of this model reads like that.")
        if self.token_id() is None:
            return self.tr("No token of this trace reads like that. Type its number as #123.")
        return None

    def change(self, data: InspectorData) -> Change:
        """What the controls say. Only when there is no `_problem`."""
        where = data.first_position + self._model.selection.position
        token = self.token_id()
        pair = ((where, token),) if token is not None else ()
        return Change(
            force=pair if self._kind == "force" else (),
            ban=pair if self._kind == "ban" else (),
            mask=(where,) if self._kind == "mask" else (),
            settings=self._settings(data),
        )

    def _settings(self, data: InspectorData) -> DecodeSettings | None:
        """Other settings than the trace's, None when they are the same."""
        now = current_settings(data)
        if now is None:
            return None
        off = self.editing.value() < 0
        wanted = replace(
            now,
            threshold=_kept(now.threshold, self.threshold.value()),
            editing_threshold=None
            if off
            else _kept(now.editing_threshold, round(self.editing.value(), 2)),
            temperature=_kept(now.temperature, self.temperature.value()),
        )
        return None if wanted == now else wanted

    def change_words(self, data: InspectorData, change: Change) -> str:
        """A change in a few words, as the tree shows it."""
        parts = [
            self.tr("force {0} at {1}").format(quoted(data, token), where)
            for where, token in change.force
        ]
        parts += [
            self.tr("ban {0} at {1}").format(quoted(data, token), where)
            for where, token in change.ban
        ]
        parts += [self.tr("take back {0}").format(where) for where in change.mask]
        before = current_settings(data)
        if change.settings is not None and before is not None:
            for name, field in (
                (self.tr("threshold"), "threshold"),
                (self.tr("editing"), "editing_threshold"),
                (self.tr("temperature"), "temperature"),
            ):
                old, new = getattr(before, field), getattr(change.settings, field)
                if old != new:
                    words = self.tr("off") if new is None else f"{new:g}"
                    parts.append(f"{name} {words}")
        return ", ".join(parts) or self.tr("unchanged: the same steps again")

    @Slot()
    def _run(self) -> None:
        data = self._model.data
        if data is not None:
            change = self.change(data)
            self._forks.run(change, self.change_words(data, change))

    @Slot(QTreeWidgetItem, int)
    def _on_chosen(self, item: QTreeWidgetItem, _column: int) -> None:
        trace_id = str(item.data(0, Qt.ItemDataRole.UserRole))
        data = self._model.data
        if data is not None and data.trace.header.trace_id != trace_id:
            self._forks.show(trace_id)


def current_settings(data: InspectorData) -> DecodeSettings | None:
    """The settings in force at the end of a trace: its own, or those of its last change."""
    header = data.trace.header
    changed = [p.change.settings for p in header.ancestry if p.change.settings is not None]
    return changed[-1] if changed else header.settings


def _kept(recorded: float | None, chosen: float) -> float:
    """The recorded number where the box shows it rounded, else the chosen one."""
    if recorded is not None and abs(recorded - chosen) < 0.005:
        return recorded
    return chosen


def _tpf(branch: Branch) -> str:
    return numbers_of(branch.trace)["tpf"].text


def _indented(branch: Branch) -> str:
    return "    " * (branch.depth - 1) + "└ " * (branch.depth > 0) + branch.title


def _label(parent: QWidget, tone: str) -> QLabel:
    label = QLabel(parent)
    label.setProperty("tone", tone)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label
