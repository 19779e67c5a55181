"""What holds for the whole process: no torch before a load, no Qt without a window, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.backend.chat_store.store import ChatStore
from app.backend.conversations import MessageStatus
from app.cli import missing_qt, run, version

WINDOW = """
import sys
import time
from pathlib import Path
from PySide6.QtCore import QTimer
from app.backend.files import AppFolders
from app.desktop import build, make_application
from engine.fake import FakeLoader, FakeScript

class NoGpu:
    latest = report = None
    def start(self): pass
    def ask_for_report(self): pass
    def stop(self): pass

root = Path(sys.argv[1])
app = make_application()
folders = AppFolders(root / "data", root / "config", root / "logs")
desktop = build(app, folders, FakeLoader(FakeScript(seconds_per_step=0.02)), NoGpu())
desktop.window.show()
"""
TALK = """
desktop.engine.load_demo()
desktop.chat.send("answer me, ü 漢")
blocks = set()
def seen(snapshot):
    blocks.add(snapshot.figures.block)
    if 3 in blocks:
        print("third block", flush=True)
desktop.engine.snapshot_changed.connect(seen)
app.exec()
"""


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-c", code, *args]


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "QT_QPA_PLATFORM": "offscreen"}


def test_opening_the_window_imports_no_torch(
    tmp_path: Path, repo_root: Path, environment: dict[str, str]
) -> None:
    code = WINDOW + (
        "QTimer.singleShot(200, app.quit); app.exec()\n"
        "loaded = {m.split('.')[0] for m in sys.modules}\n"
        "desktop.window.close()\n"
        "print(sorted(loaded & {'torch', 'transformers', 'tokenizers', 'triton', 'pyqtgraph'}))"
    )
    answer = subprocess.run(
        python(code, str(tmp_path)),
        cwd=repo_root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.strip() == "[]", answer.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is a POSIX signal")
def test_a_kill_in_mid_generation_loses_no_prompt_and_no_finished_block(
    tmp_path: Path, repo_root: Path, environment: dict[str, str]
) -> None:
    process = subprocess.Popen(
        python(WINDOW + TALK, str(tmp_path)),
        cwd=repo_root,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "third block\n"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    store = ChatStore(tmp_path / "data" / "conversations.db")
    (entry,) = store.entries()
    talk = store.open(entry.id)
    store.close()
    assert talk is not None
    prompt, answer = talk.messages
    assert prompt.text == "answer me, ü 漢"
    assert answer.status is MessageStatus.INTERRUPTED
    assert answer.text.startswith("17 × 24 is the same as")
    assert len(answer.text) > 40  # two blocks, the prompt's share apart


@pytest.mark.parametrize("arguments", [("--version",), ("generate", "--help"), ("inspect", "-h")])
def test_commands_without_a_window_load_no_qt(arguments: tuple[str, ...], repo_root: Path) -> None:
    code = (
        "import sys, atexit\n"
        "from app.__main__ import main\n"
        "qt = lambda: any(m.split('.')[0] == 'PySide6' for m in sys.modules)\n"
        "atexit.register(lambda: print('QT' if qt() else 'NO QT'))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    answer = subprocess.run(
        python(code, *arguments), cwd=repo_root, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip().endswith("NO QT")


def test_version_is_the_projects(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"unblur {version()}\n"
    assert version()[0].isdigit()


def test_a_missing_qt_library_is_named_with_the_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ImportError("libEGL.so.1: cannot open shared object file: No such file or directory")

    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("app.cli._run_window", fail)
    assert run([]) == 1
    said = capsys.readouterr().err
    assert said == missing_qt(error) + "\n"
    for package in ("libxcb-cursor0", "libxcb-icccm4", "libxcb-keysyms1", "libegl1"):
        assert package in said


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has screens to be named")
def test_a_machine_without_a_screen_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    assert run([]) == 1
    assert "there is no screen" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows always has its platform")
def test_a_screen_that_does_not_answer_is_a_sentence_and_no_crash(
    repo_root: Path, environment: dict[str, str]
) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "app"],
        cwd=repo_root,
        env={**environment, "QT_QPA_PLATFORM": "nosuchscreen"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1, answer.stderr  # not an abort
    assert "Qt reached no screen here" in answer.stderr
    assert "unblur generate PROMPT" in answer.stderr


def test_ctrl_c_before_the_window_leaves_no_trace(repo_root: Path) -> None:
    code = (
        "import signal\n"
        "from app.__main__ import main\n"
        "main(['--version'])\n"
        "print(signal.getsignal(signal.SIGINT).name)"
    )
    answer = subprocess.run(
        python(code), cwd=repo_root, capture_output=True, text=True, check=False
    )
    assert answer.stdout.endswith("SIG_DFL\n"), answer.stderr


def test_a_shortened_option_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as caught:
        run(["--vers"])
    assert caught.value.code == 2


def test_a_prompt_that_nothing_would_ask_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(["--prompt", "hello"])
    assert caught.value.code == 2
    assert "unblur generate" in capsys.readouterr().err


def test_another_import_error_is_not_taken_for_qt(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise ImportError("cannot import name 'x' from 'engine'")

    monkeypatch.setattr("app.cli._run_window", fail)
    with pytest.raises(ImportError, match="cannot import name"):
        run([])


def test_a_windowed_build_without_streams_can_print(repo_root: Path) -> None:
    code = (
        "import sys\n"
        "keep = sys.stdout\n"
        "sys.stdout = sys.stderr = None\n"
        "from app.__main__ import main\n"
        "main(['--version'])\n"
        "print('x', file=sys.stderr, flush=True)\n"
        "assert not sys.stdout.isatty() and sys.stdout.encoding\n"
        "keep.write('alive')"
    )
    answer = subprocess.run(
        python(code), cwd=repo_root, capture_output=True, text=True, check=False
    )
    assert answer.stdout == "alive", answer.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_window_in_order(
    tmp_path: Path, repo_root: Path, environment: dict[str, str], name: signal.Signals
) -> None:
    log = tmp_path / "d" / "Unblur" / "logs" / "unblur.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "--model", str(tmp_path)],
        cwd=repo_root,
        env={**environment, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "d")},
        stderr=subprocess.PIPE,
        text=True,
    )
    # the failed load of a folder without a model shows that the window is up and its loop runs
    for _ in range(600):
        if log.exists() and "load failed" in log.read_text("utf-8"):
            break
        time.sleep(0.05)
    process.send_signal(name)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_startup_time_is_printed_and_the_window_closes(
    tmp_path: Path, repo_root: Path, environment: dict[str, str]
) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "app", "--startup-time", "--model", str(tmp_path)],
        cwd=repo_root,
        env={**environment, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "d ü")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("usable window after ")
    assert (tmp_path / "d ü" / "Unblur" / "logs" / "unblur.log").exists()


HANG = """
import functools, sys, time
import app.desktop, app.models.engine_model
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

def hang(path, progress, stop):
    time.sleep(60)

def load(engine, model):
    engine.load("on a disk that hangs")
    QTimer.singleShot(100, QApplication.closeAllWindows)

app.models.engine_model.CLOSE_MS = 200
app.desktop.build = functools.partial(app.desktop.build, loader=hang)
app.desktop._load = load
sys.exit(app.desktop.run_window())
"""


def test_a_load_that_hangs_in_the_system_does_not_keep_the_process(
    tmp_path: Path, repo_root: Path, environment: dict[str, str]
) -> None:
    answer = subprocess.run(
        python(HANG),
        cwd=repo_root,
        env={**environment, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (answer.returncode, answer.stderr) == (1, "")
    log = tmp_path / "data" / "Unblur" / "logs" / "unblur.log"
    assert "did not end" in log.read_text("utf-8")
