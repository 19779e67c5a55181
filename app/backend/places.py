"""Where the app keeps its data, for the commands that must not import Qt.

It knows the same places as QStandardPaths gives (a test compares them). It refuses to create any.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "Unblur"


def data_folder() -> Path:
    """The person's own data: what `app.backend.files.standard_folders().data` is."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming") / NAME
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / NAME
    return _absolute(os.environ.get("XDG_DATA_HOME")) / NAME


def default_models_folder() -> Path:
    """Where models go until a person chooses. On Windows not in the roaming profile, which some
    networks copy at every login."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(local) / NAME / "models"
    return data_folder() / "models"


def _absolute(value: str | None) -> Path:
    """$XDG_DATA_HOME; the standard says that a relative one is to be ignored."""
    if value and Path(value).is_absolute():
        return Path(value)
    return Path.home() / ".local" / "share"
