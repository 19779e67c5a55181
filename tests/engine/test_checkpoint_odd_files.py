"""Files that are not files: pipes, devices, links to themselves, endless JSON. None hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from folder_maker import copy_folder, refusal, write_tokenizer

from engine.checkpoint import folder as folder_module
from engine.checkpoint import open_checkpoint

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices have no file there")


@pytest.fixture
def model(tiny_folder: Path, tmp_path: Path) -> Path:
    folder = copy_folder(tiny_folder, tmp_path / "model")
    write_tokenizer(folder, 512, {"<|mask|>": 503})
    open_checkpoint(folder).release()
    return folder


@posix
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(
    model: Path, name: str, repo_root: Path
) -> None:
    (model / name).unlink()
    os.mkfifo(model / name)
    answer = subprocess.run(  # a process of its own, so that waiting would fail and not hang
        [sys.executable, "-m", "engine", "inspect", str(model)],
        cwd=repo_root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1
    assert f"{name} is not a plain file" in answer.stderr
    assert "[checkpoint.not_a_file]" in answer.stderr


@posix
@pytest.mark.parametrize("name", FILES)
def test_a_device_in_place_of_a_file_is_refused(model: Path, name: str) -> None:
    (model / name).unlink()
    (model / name).symlink_to("/dev/null")  # /dev/zero would never end
    assert refusal(model).code == "checkpoint.not_a_file"
    assert refusal(model).file == name


@posix
@pytest.mark.parametrize("name", FILES)
def test_a_link_to_itself_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    (model / name).symlink_to(name)
    assert refusal(model).code == "checkpoint.unreadable"
    assert refusal(model).file == name


def test_json_too_large_for_a_model_is_not_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "JSON_LIMIT", 100)
    error = refusal(model)
    assert error.code == "checkpoint.file_too_large"
    assert error.file == "config.json"
    assert "at most 100" in error.message
