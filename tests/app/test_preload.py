"""torch's libraries are loaded ahead without breaking torch, and their absence breaks nothing."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from app.backend.preload import collector_resting, preload_torch


@pytest.mark.skipif(sys.platform != "linux", reason="the preload exists on Linux alone")
def test_torch_works_after_the_preload(repo_root: Path) -> None:
    code = (
        "import sys\n"
        "from app.backend.preload import collector_resting, preload_torch\n"
        "assert preload_torch() and 'torch' not in sys.modules\n"
        "import torch\n"
        "x = torch.ones(64, 64)\n"
        "print(int((x @ x).sum()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, check=False
    )
    assert answer.stdout == "262144\n", answer.stderr


def test_without_torch_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert preload_torch() is False


def test_libraries_that_are_not_there_are_left_to_the_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("torch", tmp_path / "torch" / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert preload_torch() is False


def test_the_collector_rests_and_works_again_even_after_an_error() -> None:
    seen: list[bool] = []

    def fail() -> None:
        with collector_resting():
            seen.append(gc.isenabled())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    gc.unfreeze()
    assert seen == [False]
    assert gc.isenabled()
