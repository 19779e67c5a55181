"""Threads of torch sleep while they wait, in the window and on the command line alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEEN = """
import os, sys
class AtTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("torch comes in with", os.environ.get("OMP_WAIT_POLICY"))
            sys.stdout.flush()
            os._exit(0)
sys.meta_path.insert(0, AtTorch())
"""
COMMAND = SEEN + "from app.__main__ import main; main(['generate', 'hi'])"
ENGINE = SEEN + "from engine.cli import main; main(['generate', 'hi'])"
WINDOW = (
    SEEN + "import app.models.worker as w; w.preload_torch = lambda: True\n"
    "import threading; w.load_real_engine('x', lambda p: None, threading.Event())"
)


@pytest.mark.parametrize("code", [COMMAND, ENGINE, WINDOW], ids=["unblur", "engine", "window"])
@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_wait_policy_is_set_before_torch_and_a_persons_own_is_kept(
    code: str, given: str | None, expected: str, repo_root: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if given is not None:
        environment["OMP_WAIT_POLICY"] = given
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repo_root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"torch comes in with {expected}\n", done.stderr
