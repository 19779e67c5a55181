"""The local server in the window: a switch, words for its state, and one model shared fairly."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot
from served import ASK, Served

from app.backend.conversations import MessageStatus
from app.backend.server_key import ServerKey
from app.desktop import Desktop
from app.models.lifecycle import Lifecycle
from app.models.server import ServerState
from engine.fake import DEFAULT_ANSWER, FakeEngine, FakeScript


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def switch_on(qtbot: QtBot, desktop: Desktop, port: int | None = None) -> Served:
    """The server, switched on in the settings, as clients see it."""
    card = desktop.window.settings_page.server_card
    card.port.setValue(port or free_port())
    card.switch.setChecked(True)
    qtbot.waitUntil(lambda: desktop.server.state in (ServerState.ON, ServerState.FAILED))
    return Served(desktop.server._server, FakeEngine())  # type: ignore[arg-type]


class Asking:
    """A client's request on a thread of its own."""

    def __init__(self, served: Served, **fields: object) -> None:
        self.status, self.document = 0, None
        self._thread = threading.Thread(target=self._ask, args=(served, fields))
        self._thread.start()

    def _ask(self, served: Served, fields: dict[str, object]) -> None:
        self.status, self.document = served.send(body={**ASK, **fields})

    def answer(self, qtbot: QtBot) -> tuple[int, Any]:
        qtbot.waitUntil(lambda: not self._thread.is_alive(), timeout=8000)
        return self.status, self.document


def test_it_is_off_until_it_is_switched_on(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    card = desktop.window.settings_page.server_card
    assert not card.switch.isChecked()
    assert "Off" in card.state.text()
    served = switch_on(qtbot, desktop)
    assert desktop.server.url in card.state.text()
    assert desktop.settings.current.serve
    card.copy_url.click()
    assert QGuiApplication.clipboard().text() == desktop.server.url
    status, document = Asking(served).answer(qtbot)
    assert status == 200
    assert document["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    card.switch.setChecked(False)
    qtbot.waitUntil(lambda: desktop.server.state is ServerState.OFF)
    with pytest.raises(ConnectionRefusedError):
        served.send()


def test_a_port_in_use_is_said_and_tried_again(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    card = desktop.window.settings_page.server_card
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        switch_on(qtbot, desktop, port)
        assert desktop.server.state is ServerState.FAILED
        assert str(port) in card.state.text()
        assert "another port" in card.state.text()
    card.again.click()
    qtbot.waitUntil(lambda: desktop.server.state is ServerState.ON)
    other = free_port()
    card.port.setValue(other)  # moves it
    qtbot.waitUntil(lambda: str(other) in card.state.text())


def test_a_prompt_of_the_chat_waits_for_a_client_and_is_answered(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.01))
    asking = Asking(switch_on(qtbot, desktop))
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.GENERATING)
    assert desktop.chat.send("And me?")
    status, _ = asking.answer(qtbot)
    assert status == 200
    qtbot.waitUntil(lambda: desktop.chat.current.messages[-1].status is MessageStatus.DONE)


def test_clients_wait_for_the_chat_and_the_state_says_so(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.02))
    served = switch_on(qtbot, desktop)
    desktop.chat.send("First")
    clients = [Asking(served), Asking(served)]
    card = desktop.window.settings_page.server_card
    qtbot.waitUntil(lambda: "1 wait" in card.state.text())
    for client in clients:
        assert client.answer(qtbot)[0] == 200
    assert desktop.chat.current.messages[-1].text == DEFAULT_ANSWER


def test_stop_in_the_window_ends_a_clients_answer_and_says_so(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.05, default_answer="word " * 400))
    asking = Asking(switch_on(qtbot, desktop))
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.GENERATING)
    desktop.chat.stop()
    status, document = asking.answer(qtbot)
    assert status == 200
    assert document["unblur"]["reason"] == "stopped"
    assert document["choices"][0]["finish_reason"] == "length"


def test_without_a_model_clients_are_told(open_window, qtbot: QtBot) -> None:
    desktop = open_window(loaded=False)
    status, document = Asking(switch_on(qtbot, desktop)).answer(qtbot)
    assert (status, document["error"]["code"]) == (503, "model_not_loaded")


def test_switching_off_does_not_wait_for_the_chat(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.05, default_answer="word " * 400))
    served = switch_on(qtbot, desktop)
    desktop.chat.send("Long")
    asking = Asking(served)
    qtbot.waitUntil(lambda: served.server.busy)
    desktop.window.settings_page.server_card.switch.setChecked(False)
    assert asking.answer(qtbot)[0] == 503
    qtbot.waitUntil(lambda: desktop.server.state is ServerState.OFF)
    assert desktop.engine.state is Lifecycle.GENERATING  # the chat's answer goes on


def test_closing_the_window_ends_a_clients_answer(open_window, qtbot: QtBot) -> None:
    desktop = open_window(FakeScript(seconds_per_step=0.05, default_answer="word " * 400))
    asking = Asking(switch_on(qtbot, desktop))
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.GENERATING)
    desktop.window.close()
    assert asking.answer(qtbot)[0] == 503


def test_a_key_is_made_hidden_copied_and_asked_for(open_window, qtbot: QtBot) -> None:
    desktop = open_window()
    card = desktop.window.settings_page.server_card
    switch_on(qtbot, desktop)
    card.ask_key.setChecked(True)
    key = desktop.server.key
    assert key is not None
    assert key not in card.key.displayText()
    card.copy_key.click()
    assert QGuiApplication.clipboard().text() == key
    qtbot.waitUntil(lambda: desktop.server.state is ServerState.ON)
    served = Served(desktop.server._server, FakeEngine())  # type: ignore[arg-type]
    assert served.send("GET", "/v1/models")[0] == 401
    assert served.send("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
    assert key not in desktop.settings.path.read_text()


def test_a_key_is_kept_where_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "server.key"
    key = ServerKey(file).make()
    assert ServerKey(file).key == key
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = ServerKey(file)
    assert again.make() != key
    again.forget()
    assert ServerKey(file).key is None


def test_a_key_that_cannot_be_kept_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    key = ServerKey(tmp_path / "file" / "server.key")
    assert key.make() == key.key
    assert "could not be kept" in (key.problem or "")
