"""`unblur serve` as a process: the demo model asked over HTTP, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from app.cli import run

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C is sent otherwise there")
def test_the_demo_answers_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--json"]
    environment = {**os.environ, "UNBLUR_SERVER_KEY": "a-key"}
    with subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            assert started["key"] is True
            with OpenAI(base_url=started["url"], api_key="a-key", max_retries=0) as client:
                answer = client.chat.completions.create(
                    model=started["model"],
                    messages=[{"role": "user", "content": "What is 2 + 3?"}],
                    max_tokens=64,
                )
            assert answer.usage is not None
            assert 0 < answer.usage.completion_tokens <= 64
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert "[server.port]" in told
    assert str(port) in told


@pytest.mark.parametrize("key", ["", "two words", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_told(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--key", key]) == 1
    assert "[server.key]" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "70000", "x", "٥"])
def test_a_port_that_is_none_is_wrong_usage(port: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["serve", f"--port={port}"])
    assert ended.value.code == 2


def test_a_folder_without_a_model_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--port", "0", "--model", str(tmp_path)]) == 1
    assert "checkpoint." in capsys.readouterr().err
