"""What is behind the Models page, for a test: its own folder, no keyring, no hub by default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.backend.hub.client import Hub
from app.backend.hub.token import TokenStore
from app.backend.library.library import Library
from app.backend.model_services import ModelServices
from app.backend.transfer.fetch import Policy
from app.backend.transfer.queue import DownloadQueue
from app.models.model_store import ServicesMaker

NO_HUB = "http://127.0.0.1:9"  # nobody listens there


def services_in(
    folder: Path,
    endpoint: str = NO_HUB,
    cache: Path | None = None,
    policy: Policy | None = None,
) -> ServicesMaker:
    """What is behind the Models page, in a folder of the test and with no keyring."""

    def make(on_change: Callable[[], None]) -> ModelServices:
        tokens = TokenStore(folder / "token.json", endpoint, keyring=lambda: None)
        return ModelServices(
            tokens=tokens,
            hub=Hub(tokens.get, endpoint),
            library=Library(folder / "library.json", folder / "models", cache),
            queue=DownloadQueue(folder / "downloads.json", tokens.get_for, on_change, policy),
            bandwidth_file=folder / "bandwidth.json",
        )

    return make
