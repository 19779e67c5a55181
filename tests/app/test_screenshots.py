"""Pictures of the window: a true answer of the demo, and fixed states."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtGui import QImage

import app.screenshots as screenshots
from app.desktop import Desktop
from app.models.snapshot import BlockView, Cell, Snapshot
from engine.types import TokenState as S


def test_screenshot_saves_the_demos_answer_and_its_denoising(
    tmp_path: Path, repo_root: Path
) -> None:
    target = tmp_path / "Bilder ü" / "out.png"
    answer = subprocess.run(
        [sys.executable, "-m", "app", "--screenshot", str(target)],
        cwd=repo_root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    midway = target.with_name("out-denoising.png")
    assert answer.stdout.splitlines() == [str(midway), str(target)]
    first, last = QImage(str(midway)), QImage(str(target))
    assert first.width() == last.width() == 1280
    assert first.height() == last.height() == 800
    assert first != last


def test_screenshot_of_a_folder_without_a_model_says_why(tmp_path: Path, repo_root: Path) -> None:
    command = [sys.executable, "-m", "app", "--screenshot", str(tmp_path / "x.png")]
    answer = subprocess.run(
        [*command, "--model", str(tmp_path)],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 1
    assert "config.json" in answer.stdout
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("name", ["out", "", "out.jpg"])
def test_a_picture_must_be_named_as_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert screenshots.save_answer(tmp_path / name) == 1
    assert "must end in .png" in capsys.readouterr().out


def test_a_place_that_cannot_hold_pictures_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert screenshots.save_answer(file / "out.png") == 1
    assert screenshots.save_pages(file) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"Pictures cannot be saved in {file} (") for line in said] == [True] * 2


def test_a_picture_of_an_empty_prompt_says_why_there_is_none(
    open_window: Callable[..., Desktop], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert screenshots._answer(open_window(), tmp_path / "x.png", None, "  ") == 1
    assert "Type something to send." in capsys.readouterr().out


def snapshot(index: int, *states: S, final: bool = False) -> Snapshot:
    cells = tuple(Cell("x", state, 0.5) for state in states)
    return Snapshot("r", (BlockView(index, cells, 1, final),))


def test_the_picture_that_shows_most_of_denoising_is_kept() -> None:
    rising = [
        snapshot(0, S.COMMITTED, final=True),
        snapshot(0, S.MASKED, S.MASKED),
        snapshot(1, S.MASKED, S.MASKED),
        snapshot(0, S.COMMITTED, S.DRAFT),
        snapshot(2, S.COMMITTED, S.DRAFT),
    ]
    assert [screenshots.denoising_shown(s) for s in rising] == [0, 1, 2, 3, 4]


SOME = [
    "chat-empty",
    "chat-failed-load",
    "models-library",
    "models-does-not-fit",
    "models-downloads",
    "settings",
]


@pytest.mark.parametrize("state", SOME)
def test_every_state_is_saved_under_its_name(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QT_SCALE_FACTOR", screenshots.SCALED)  # the process for scaled pictures
    monkeypatch.setattr(screenshots, "STATES", {state: screenshots.STATES[state]})
    assert screenshots.save_pages(tmp_path) == 0
    path = tmp_path / f"{state}-light-125.png"
    assert capsys.readouterr().out.splitlines() == [str(path)]
    assert not QImage(str(path)).isNull()
