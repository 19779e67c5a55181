"""Logs go to files, Qt's messages with them, and a folder that cannot be written is a sentence."""

from __future__ import annotations

import faulthandler
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import qWarning

from app.backend.logs import log, start_logging, stop_logging


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    enabled = faulthandler.is_enabled()
    folder = tmp_path / "Protokolle ü"
    assert start_logging(folder) is None
    yield folder
    stop_logging()
    if enabled:
        faulthandler.enable()


def test_what_is_logged_is_in_the_file_as_utf_8(logs: Path) -> None:
    logging.getLogger("unblur.anything").warning("schön 漢字")
    log.handlers[-1].flush()
    assert "WARNING unblur.anything: schön 漢字" in (logs / "unblur.log").read_text("utf-8")


def test_qts_messages_are_in_the_file(logs: Path) -> None:
    qWarning("something about a widget")
    assert "qt: something about a widget" in (logs / "unblur.log").read_text("utf-8")


def test_a_crash_has_a_file_to_go_to(logs: Path) -> None:
    assert faulthandler.is_enabled()
    assert (logs / "crash.log").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    problem = start_logging(tmp_path / "file" / "logs")
    stop_logging()
    assert problem is not None
    assert "Unblur runs without them" in problem


def test_stopping_takes_every_handler_away(tmp_path: Path) -> None:
    before = list(log.handlers)
    start_logging(tmp_path)
    stop_logging()
    assert log.handlers == before
