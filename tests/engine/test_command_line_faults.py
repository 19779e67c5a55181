"""The engine's command line under clumsy use: a failure is a sentence and a status."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine import canvas_terminal
from engine.cli import INTERRUPTED, generate_parser, main, settings_from
from engine.errors import RequestError, RuntimeFailure
from engine.fake import FakeEngine, FakeScript
from engine.loading import choose_device, use_device
from engine.types import GenerateRequest, Message

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and devices")
LONG = ("--threshold", "1", "--temperature", "1", "--max-new-tokens", "1500")


def shell(command: str, repo_root: Path) -> subprocess.CompletedProcess[str]:
    """`$UNBLUR` is the command; one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["UNBLUR"] = f"{sys.executable} -m engine"
    return subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {command}"],
        cwd=repo_root,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("value", ["abc", "", "0,5"])
def test_an_editing_threshold_that_is_no_number_is_wrong_usage(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", "hi", "--editing-threshold", value])
    assert caught.value.code == 2
    assert "neither a number nor 'off'" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "expected"), [("off", None), ("OFF", None), ("0", 0.0)])
def test_editing_off_is_not_editing_at_zero(value: str, expected: float | None) -> None:
    options = generate_parser().parse_args(["hi", "--editing-threshold", value])
    assert settings_from(options, FakeEngine().info).editing_threshold == expected


@pytest.mark.parametrize("arguments", [[], ["hi", "--prompt", "ho"]])
def test_no_prompt_and_two_prompts_are_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", *arguments])
    assert caught.value.code == 2
    assert "one prompt is needed" in capsys.readouterr().err


def test_an_empty_model_path_is_not_taken_for_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--model", ""]) == 1
    assert "The path is empty." in capsys.readouterr().err
    assert main(["inspect", ""]) == 1
    assert "The path is empty." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["foo", "mps", "meta", "cpu:x", "\x1b[31m"])
def test_a_device_that_models_do_not_run_on_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        choose_device(name)
    assert caught.value.code == "request.device"
    assert "\x1b" not in caught.value.message


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert str(choose_device(None)) == "cuda"
    assert str(choose_device("cuda:1")) == "cuda:1"
    with pytest.raises(RuntimeFailure, match="sees 2 here"):
        choose_device("cuda:2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert str(choose_device(None)) == "cpu"
    with pytest.raises(RuntimeFailure, match="sees none here") as caught:
        choose_device("cuda")
    assert caught.value.code == "load.no_gpu"


def test_bytes_that_are_not_text_are_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "caf\udcc3\udca9"]) == 1
    captured = capsys.readouterr()
    assert "Character 4 of the message is not text" in captured.err
    assert captured.out == ""


@posix
def test_a_reader_that_goes_away_ends_it_quietly(repo_root: Path) -> None:
    answer = shell("$UNBLUR inspect --modules assets/demo | head -n 1", repo_root)
    assert answer.stdout.startswith("Model")
    assert answer.stderr == ""


@posix
def test_a_closed_output_is_no_error(repo_root: Path) -> None:
    answer = shell("$UNBLUR generate hi --max-new-tokens 8 >&-", repo_root)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_a_sentence(repo_root: Path) -> None:
    answer = shell("$UNBLUR generate hi --max-new-tokens 8 > /dev/full", repo_root)
    assert answer.returncode == 1
    assert "[output.failed]" in answer.stderr
    assert len(answer.stderr.splitlines()) == 2


def interrupted(repo_root: Path, wait_for_text: bool) -> tuple[int, str, str]:
    """Exit status and output of a long reply that got one Ctrl+C, while loading or in its text."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "engine", "generate", "Tell me a story.", *LONG],
        cwd=repo_root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        first = process.stdout.read(1) if wait_for_text else ""
        if not wait_for_text:
            time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, first + out, err


@posix
def test_ctrl_c_in_a_reply_keeps_its_text_and_figures(repo_root: Path) -> None:
    status, out, err = interrupted(repo_root, wait_for_text=True)
    assert (status, err) == (INTERRUPTED, "")
    assert "stopped by you" in out
    assert "tok/s" in out


@posix
def test_ctrl_c_while_loading_leaves_no_trace(repo_root: Path) -> None:
    status, out, err = interrupted(repo_root, wait_for_text=False)
    assert (status, out, err) == (-signal.SIGINT, "", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("plain", [True, False])
def test_a_models_control_characters_do_not_reach_a_terminal(plain: bool) -> None:
    engine = FakeEngine(
        FakeScript(default_answer="a\x1b]0;title\x07b\rc\n\td\x9be", edits_per_block=0)
    )
    request = GenerateRequest((Message("user", "hi"),), 64)
    terminal, pipe = Terminal(), io.StringIO()
    canvas_terminal.show_reply(engine, request, terminal, plain=plain)
    canvas_terminal.show_reply(engine, request, pipe, plain=plain)
    assert "a\x1b]0;title\x07b\rc\n\td\x9be" in pipe.getvalue()
    shown = terminal.getvalue()
    assert "a\ufffd]0;title\ufffdb\ufffdc\n\td\ufffde" in shown
    assert not {"\x07", "\x9b", "\x1b]"} & {
        shown[i : i + n] for n in (1, 2) for i in range(len(shown))
    }


@pytest.mark.parametrize(
    ("name", "current"), [("cuda:1", [1]), ("cuda:0", [0]), ("cuda", [0]), ("cpu", [])]
)
def test_the_chosen_gpu_becomes_the_current_one(
    monkeypatch: pytest.MonkeyPatch, name: str, current: list[int]
) -> None:
    made: list[int] = []
    monkeypatch.setattr("torch.cuda.set_device", made.append)
    use_device(torch.device(name))
    assert made == current
