"""Fixtures of the engine's tests. Triton runs interpreted here: no test of this suite needs a
GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def tiny_folder(shared_fixtures: Path) -> Path:
    return shared_fixtures / "llada2-tiny"
