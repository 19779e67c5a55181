"""Logs, crash traces and the standard streams: everything that must be in place before anything can
fail.

It knows files, `logging`, Qt's messages and faulthandler. It refuses to know what is logged. No
prompt, answer or token is ever written here.
"""

from __future__ import annotations

import faulthandler
import logging
import logging.handlers
import sys
from pathlib import Path
from typing import TextIO

from PySide6.QtCore import QMessageLogContext, QtMsgType, qInstallMessageHandler

log = logging.getLogger("unblur")
_QT_LEVELS = {
    QtMsgType.QtDebugMsg: logging.DEBUG,
    QtMsgType.QtInfoMsg: logging.INFO,
    QtMsgType.QtWarningMsg: logging.WARNING,
    QtMsgType.QtCriticalMsg: logging.ERROR,
    QtMsgType.QtFatalMsg: logging.CRITICAL,
}
_crash_file: TextIO | None = None


def start_logging(folder: Path) -> str | None:
    """Logs to `folder`/unblur.log (UTF-8, 3 x 1 MB), crash traces to `folder`/crash.log, Qt's
    messages to both.

    Returns None, or a sentence when the folder cannot be written (the app then runs without log
    files).
    """
    global _crash_file
    log.setLevel(logging.INFO)
    qInstallMessageHandler(_qt_message)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            folder / "unblur.log", maxBytes=1_000_000, backupCount=2, encoding="utf-8"
        )
        _crash_file = open(folder / "crash.log", "a", encoding="utf-8")  # noqa: SIM115 - open for life
    except OSError as error:
        return f"Logs cannot be written to {folder} ({error.strerror}). Unblur runs without them."
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    faulthandler.enable(_crash_file)
    return None


def stop_logging() -> None:
    """Closes what `start_logging` opened and gives Qt its own message handler back."""
    global _crash_file
    qInstallMessageHandler(None)
    for handler in [h for h in log.handlers if isinstance(h, logging.FileHandler)]:
        log.removeHandler(handler)
        handler.close()
    if _crash_file is not None:
        faulthandler.disable()
        _crash_file.close()
        _crash_file = None


def _qt_message(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
    log.log(_QT_LEVELS.get(kind, logging.WARNING), "qt: %s", message)
    if kind in (QtMsgType.QtCriticalMsg, QtMsgType.QtFatalMsg) and sys.stderr is not None:
        print(message, file=sys.stderr)
