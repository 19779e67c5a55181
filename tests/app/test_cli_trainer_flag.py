"""`unblur --trainer ARGS` is the trainer: a frozen app starts its runs so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.backend.training import trainer_command
from app.cli import run


def test_the_command_of_a_frozen_app_reaches_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    missing = tmp_path / "no spec.json"
    command = trainer_command(["run", str(missing), "--out", str(tmp_path / "out")])
    assert command[0] == sys.executable
    assert run(command[1:]) == 1
    assert "[spec.unreadable]" in capsys.readouterr().err
