"""Everything behind the Models page and `unblur models`, put together for one person's data folder.

It knows construction only: which file each part keeps. The queue is made but not started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.backend.hub.bandwidth import known
from app.backend.hub.client import Hub, default_endpoint
from app.backend.hub.fit import Bandwidth
from app.backend.hub.token import TokenStore
from app.backend.library.library import Library, hugging_face_cache
from app.backend.places import data_folder, default_models_folder
from app.backend.transfer.queue import DownloadQueue


@dataclass(frozen=True)
class ModelServices:
    """See each class for its thread rules."""

    tokens: TokenStore
    hub: Hub
    library: Library
    queue: DownloadQueue
    bandwidth_file: Path

    def bandwidth(self, device_name: str) -> Bandwidth:
        """What was measured on a device, by `app.backend.hub.bandwidth.measure` and `keep`."""
        return known(self.bandwidth_file, device_name)


def open_services(
    data: Path | None = None,
    models: Path | None = None,
    on_change: Callable[[], None] = lambda: None,
    version: str = "",
) -> ModelServices:
    """data, models: the folders to use instead of the person's own. on_change: see
    `DownloadQueue`. HF_ENDPOINT names another hub."""
    data = data or data_folder()
    endpoint = default_endpoint()
    tokens = TokenStore(data / "token.json", endpoint)
    return ModelServices(
        tokens=tokens,
        hub=Hub(tokens.get, endpoint, version),
        library=Library(
            data / "library.json", models or default_models_folder(), hugging_face_cache()
        ),
        queue=DownloadQueue(data / "downloads.json", tokens.get_for, on_change),
        bandwidth_file=data / "bandwidth.json",
    )
