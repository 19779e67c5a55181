"""A model looked at from afar: its JSON, and the header of every weight file, fetched by range.

It knows the first bytes of safetensors files. It refuses to guess from names, and to fetch weights.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from app.backend.hub.client import Hub, HubListing
from app.backend.hub.support import (
    JsonFiles,
    Layout,
    Looked,
    Support,
    quantisation_words,
    refusal,
    stated_context,
    support_of_model,
)
from app.backend.transfer.fetch import Place
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.read import read_range
from app.backend.transfer.stop import Stop
from engine.checkpoint.tensor_file import HEADER_LIMIT, TensorEntry, parse_header
from engine.errors import CheckpointError

HEAD = 1 << 18  # most headers fit
AT_ONCE = 4


@dataclass(frozen=True)
class Examined:
    """listing: what was looked at. files: what a download would fetch. weight_bytes: of the weight
    files. layout: None where the engine would refuse. context: positions, None where not stated.
    parameters: numbers the model has, None where there is no layout."""

    listing: HubListing
    files: tuple[RemoteFile, ...]
    json: JsonFiles
    support: Support
    layout: Layout | None
    weight_bytes: int
    quantisation: str
    context: int | None
    parameters: int | None

    @property
    def download_bytes(self) -> int:
        return sum(file.size for file in self.files)


def examine(hub: Hub, listing: HubListing, stop: Stop | None = None) -> Examined:
    """Reads what a judgement needs, some hundred kilobytes a file. Waits for the network.

    Raises HubError, TransferError, Interrupted. A model that the engine would refuse is no error:
    `support` says why.
    """
    stop = stop or Stop()
    files = hub.needed(listing, stop)
    read = hub.read_json(listing, stop)
    weights = [file for file in files if file.path.endswith(".safetensors")]
    entries: dict[str, TensorEntry] | None = None
    layout: Layout | None = None
    name = listing.model.repo_id.rpartition("/")[2]
    try:
        entries = read_headers(hub.place(listing.model), weights, stop)
    except CheckpointError as error:
        support = refusal(error, Looked.HEADERS)
    else:
        shards = [file.path for file in weights]
        support, layout = support_of_model(name, read, entries, shards)
    return Examined(
        listing=listing,
        files=files,
        json=read,
        support=support,
        layout=layout,
        weight_bytes=sum(file.size for file in weights),
        quantisation=quantisation_words(read, entries),
        context=_context(read, layout),
        parameters=layout.spec.table.parameters if layout is not None else None,
    )


def read_headers(place: Place, weights: list[RemoteFile], stop: Stop) -> dict[str, TensorEntry]:
    """Every tensor of the files, by name. Raises CheckpointError for a malformed header, and as
    `read_range`."""
    entries: dict[str, TensorEntry] = {}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headers") as pool:
        for found in pool.map(lambda file: _header(place, file, stop), weights):
            entries.update(found)
    return entries


def _header(place: Place, file: RemoteFile, stop: Stop) -> dict[str, TensorEntry]:
    head = read_range(place, file, 0, HEAD, stop)
    length = int.from_bytes(head[:8], "little") + 8
    if len(head) < length <= min(file.size, HEADER_LIMIT):
        head += read_range(place, file, len(head), length, stop)
    return parse_header(io.BytesIO(head), file.path, file.size)


def _context(read: JsonFiles, layout: Layout | None) -> int | None:
    if layout is not None:
        return layout.spec.max_position_embeddings
    return stated_context(read.config)
