"""Where the files that ship with the project lie."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).resolve().parent.parent / "assets"


def demo_folder() -> Path:
    """The demo checkpoint."""
    return ASSETS / "demo"
