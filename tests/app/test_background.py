"""Work off the GUI thread: where its outcome is heard, how it is stopped, what errors become."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.backend.hub.access import HubError
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background, problem_of


@pytest.fixture
def background(qapp: QApplication) -> Iterator[Background]:
    made = Background("test", 2)
    yield made
    assert made.close(time.monotonic() + 5)


def forbidden(*_: object) -> None:
    raise AssertionError("this outcome was not expected")


def test_work_runs_elsewhere_and_is_heard_of_on_the_gui_thread(
    background: Background, qtbot: QtBot
) -> None:
    heard: list[tuple[str, str]] = []

    def work(_stop: Stop) -> str:
        return threading.current_thread().name

    background.run(
        work, lambda name: heard.append((name, threading.current_thread().name)), forbidden
    )
    assert heard == []  # never at once: who asks need not expect it
    qtbot.waitUntil(lambda: bool(heard))
    assert heard == [("test 1", threading.main_thread().name)]


def test_no_more_threads_than_allowed_and_first_come_first_served(
    background: Background, qtbot: QtBot
) -> None:
    begun: list[int] = []
    at_once: list[int] = []
    running = threading.Semaphore(0)
    lock, now = threading.Lock(), [0]

    def work(number: int) -> int:
        with lock:
            begun.append(number)
            now[0] += 1
            at_once.append(now[0])
        running.acquire(timeout=5)
        with lock:
            now[0] -= 1
        return number

    done: list[int] = []
    for number in range(5):
        background.run(lambda _stop, n=number: work(n), done.append, forbidden)
    for _ in range(5):
        running.release()
    qtbot.waitUntil(lambda: len(done) == 5)
    assert begun == [0, 1, 2, 3, 4]
    assert max(at_once) <= 2


def test_a_known_error_keeps_its_words_and_its_link(background: Background, qtbot: QtBot) -> None:
    problems: list[Problem] = []

    def work(_stop: Stop) -> None:
        raise HubError("hub.test", "It is so.", "Do this.", "https://huggingface.co/a/b")

    background.run(work, forbidden, problems.append)
    qtbot.waitUntil(lambda: bool(problems))
    assert problems == [Problem("hub.test", "It is so.", "Do this.", "https://huggingface.co/a/b")]


def test_an_unknown_error_is_named_and_logged_but_its_text_is_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "unblur.models"):
        problem = problem_of(KeyError("a secret"))
    assert problem.code == "app.unexpected"
    assert "KeyError" in problem.message
    assert "secret" not in problem.message
    assert caplog.records[0].exc_info is not None


def test_stopped_work_is_heard_of_as_stopped_also_before_it_began(
    background: Background, qtbot: QtBot
) -> None:
    stopped: list[str] = []

    def wait(stop: Stop) -> None:
        stop.wait(30)

    def fail(stop: Stop) -> None:
        while not stop.is_set:
            time.sleep(0.001)
        raise OSError("the connection was shut")

    tasks = [
        background.run(wait, forbidden, forbidden, lambda: stopped.append("waiting")),
        background.run(fail, forbidden, forbidden, lambda: stopped.append("failing")),
        background.run(forbidden, forbidden, forbidden, lambda: stopped.append("queued")),
    ]
    for task in reversed(tasks):
        task.stop.set()
    qtbot.waitUntil(lambda: len(stopped) == 3)
    assert sorted(stopped) == ["failing", "queued", "waiting"]


def test_after_closing_nothing_is_heard_any_more(qapp: QApplication) -> None:
    background = Background("test", 1)
    release = threading.Event()
    background.run(lambda _stop: release.wait(5), forbidden, forbidden, forbidden)
    assert background.close(time.monotonic() + 0.05) is False  # it is still at it
    release.set()
    assert background.close(time.monotonic() + 5) is True
    background.run(forbidden, forbidden, forbidden)
    QCoreApplication.processEvents()
