"""The settings' card of the local server: a switch, its port and key, and how it is, in words.

It knows `ServerModel`. It refuses to know HTTP.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.backend.settings import LEAST_PORT, MOST_PORT, SettingsStore
from app.models.server import ServerModel, ServerState
from app.ui.controls import CheckBox
from app.ui.theme import Space, Theme


class ServerCard(QFrame):
    changed = Signal()  # a setting was

    def __init__(
        self,
        theme: Theme,
        store: SettingsStore,
        server: ServerModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("card", "true")
        self._store = store
        self._server = server
        heading = QLabel(self.tr("Local server"))
        heading.setProperty("tone", "strong")
        self.switch = CheckBox(theme, self.tr("Let programs on this computer ask the loaded model"))
        self.switch.setAccessibleName(self.tr("Local server"))
        self.switch.setChecked(store.current.serve)
        words = _small(
            self.tr(
                "For programs that speak to OpenAI's API. It listens on this computer alone, and "
                "answers one request at a time, in turn with the chat."
            )
        )
        self.state = QLabel()
        self.state.setWordWrap(True)
        self.state.setTextFormat(Qt.TextFormat.PlainText)
        self.state.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.state.setAccessibleName(self.tr("State of the local server"))
        self.again = _quiet(self.tr("Try again"), self.tr("Start the local server again"))
        self.copy_url = _quiet(self.tr("Copy address"), self.tr("Copy the server's address"))
        self.last = _small("")
        self.last.setProperty("tone", "warn")
        inside = QVBoxLayout(self)
        inside.setContentsMargins(Space.L, Space.M, Space.L, Space.M)
        inside.setSpacing(Space.S)
        inside.addWidget(heading)
        inside.addWidget(self.switch)
        inside.addWidget(words)
        line = QHBoxLayout()
        line.setSpacing(Space.M)
        line.addWidget(self.state, 1)
        line.addWidget(self.again)
        line.addWidget(self.copy_url)
        inside.addLayout(line)
        inside.addWidget(self.last)
        inside.addLayout(self._port_row())
        self.ask_key = CheckBox(theme, self.tr("Ask for a key"))
        self.ask_key.setAccessibleName(self.tr("Ask for a key"))
        self.ask_key.setToolTip(self.tr("Without one, every program of this computer may ask."))
        self.ask_key.setChecked(server.key is not None)
        inside.addLayout(self._key_row())
        self.key_problem = _small("")
        self.key_problem.setProperty("tone", "warn")
        inside.addWidget(self.key_problem)
        self.switch.toggled.connect(lambda on: self._change(serve=on))
        self.ask_key.toggled.connect(server.ask_for_key)
        self.again.clicked.connect(server.try_again)
        self.copy_url.clicked.connect(lambda: QGuiApplication.clipboard().setText(server.url))
        self.copy_key.clicked.connect(lambda: QGuiApplication.clipboard().setText(server.key or ""))
        server.changed.connect(self.refresh)
        self.refresh()

    def _port_row(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(Space.M)
        self.port = QSpinBox()
        self.port.setRange(LEAST_PORT, MOST_PORT)
        self.port.setGroupSeparatorShown(False)
        self.port.setKeyboardTracking(False)  # a port half typed is not meant
        self.port.setValue(self._store.current.serve_port)
        self.port.setAccessibleName(self.tr("Port of the local server"))
        self.port.setMinimumWidth(140)
        self.port.lineEdit().setTextMargins(Space.S, 0, Space.S, 0)
        self.port.valueChanged.connect(lambda value: self._change(serve_port=value))
        label = QLabel(self.tr("&Port"))
        label.setBuddy(self.port)
        row.addWidget(label)
        row.addWidget(self.port)
        row.addStretch(1)
        return row

    def _key_row(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(Space.M)
        self.key = QLineEdit()
        self.key.setReadOnly(True)
        self.key.setEchoMode(QLineEdit.EchoMode.Password)
        self.key.setAccessibleName(self.tr("The server's key, hidden"))
        self.copy_key = _quiet(self.tr("Copy key"), self.tr("Copy the server's key"))
        row.addWidget(self.ask_key)
        row.addWidget(self.key, 1)
        row.addWidget(self.copy_key)
        return row

    @Slot()
    def refresh(self) -> None:
        server = self._server
        self.state.setText(self._words())
        self.again.setVisible(server.state is ServerState.FAILED)
        self.copy_url.setVisible(server.state is ServerState.ON)
        self.last.setText(self.tr("Last error: {0}").format(server.last_problem))
        self.last.setVisible(bool(server.last_problem))
        self.key.setText(server.key or "")
        for widget in (self.key, self.copy_key):
            widget.setVisible(server.key is not None)
        self.key_problem.setText(server.key_problem or "")
        self.key_problem.setVisible(server.key_problem is not None)

    def _words(self) -> str:
        server = self._server
        if server.state is ServerState.OFF:
            return self.tr("Off: no program can ask.")
        if server.state is ServerState.STARTING:
            return self.tr("Starting…")
        if server.state is ServerState.STOPPING:
            return self.tr("Switching off…")
        if server.problem is not None:
            return f"{server.problem.message} {server.problem.action}"
        if not server.busy:
            return self.tr("On at {0}. Nobody is asking.").format(server.url)
        if not server.waiting:
            return self.tr("On at {0}. Answering a request.").format(server.url)
        return self.tr("On at {0}. Answering a request; {1} wait.").format(
            server.url, server.waiting
        )

    def _change(self, **values: object) -> None:
        self._store.change(**values)
        self._server.apply()
        self.changed.emit()


def _small(text: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("tone", "small")
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label


def _quiet(text: str, name: str) -> QPushButton:
    made = QPushButton(text)
    made.setProperty("kind", "quiet")
    made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    made.setAccessibleName(name)
    return made
