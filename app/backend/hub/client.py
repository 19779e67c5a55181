"""The hub by its own library: search, one model's facts, its files and its card.

It knows `huggingface_hub` and turns each of its errors into one of ours. It refuses to download
models (`app.backend.transfer`) and to run or render what it reads. Every call waits for the
network: not for the GUI's thread.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.backend.hub.access import ENDPOINT, HubError, refused, unreachable
from app.backend.hub.card import text_only
from app.backend.hub.ref import ModelRef, is_name
from app.backend.hub.support import JsonFiles, Support, json_object, support_of_config
from app.backend.transfer.faults import TransferError
from app.backend.transfer.fetch import Place
from app.backend.transfer.files import INDEX, RemoteFile, is_plain_name, needed_files
from app.backend.transfer.http import Source
from app.backend.transfer.plan import DownloadPlan, file_url
from app.backend.transfer.read import read_file
from app.backend.transfer.stop import Stop
from engine.checkpoint.refusals import printable

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo

JSON_LIMIT = 64_000_000
CARD_LIMIT = 2_000_000
REACH_SECONDS = 10.0
MOST_FILES = 20_000  # at the root of a repository
MOST = 10**18  # no count that a hub gives is larger
# what an answer of another shape ends in, here or in the hub's library
_ODD = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_EXPAND = ["sha", "tags", "gated", "private", "downloads", "lastModified", "config", "safetensors"]


def default_endpoint() -> str:
    """The hub in use: HF_ENDPOINT names a mirror. Raises HubError where that is no address."""
    endpoint = (os.environ.get("HF_ENDPOINT") or ENDPOINT).strip().rstrip("/")
    try:
        parts = urlsplit(endpoint)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise HubError(
            "hub.bad_endpoint",
            f"HF_ENDPOINT is {printable(endpoint)!r}, which is not the address of a hub.",
            f"Unset it, or set it to an address like {ENDPOINT}.",
        )
    return endpoint


@dataclass(frozen=True)
class HubModel:
    """What a list or a search says of a model. licence: "" where it states none. parameters: None
    where the hub does not count them. updated: ISO date."""

    repo_id: str
    commit: str
    licence: str
    gated: bool
    private: bool
    downloads: int | None
    parameters: int | None
    updated: str
    tags: tuple[str, ...]
    support: Support
    endpoint: str

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{self.repo_id}"


@dataclass(frozen=True)
class HubListing:
    """One model at one commit with its files (those at its root that have a plain name)."""

    model: HubModel
    files: tuple[RemoteFile, ...]

    def file(self, name: str) -> RemoteFile | None:
        return next((file for file in self.files if file.path == name), None)


class Hub:
    """Each method raises HubError or TransferError, with what to do."""

    def __init__(
        self, token: Callable[[], str | None], endpoint: str | None = None, version: str = ""
    ) -> None:
        self.endpoint = (endpoint or default_endpoint()).rstrip("/")
        self.token = token
        self._version = version

    def search(self, words: str, limit: int = 30) -> tuple[HubModel, ...]:
        """Models with safetensors files whose name has the words, most downloaded first."""
        from huggingface_hub.utils import get_session

        with self._errors(words):
            # the list is asked for again and again where nobody answers: half a minute of waiting
            get_session().head(self.endpoint, timeout=REACH_SECONDS)
            found = self._api().list_models(
                search=words,
                filter="safetensors",
                sort="downloads",
                limit=limit,
                expand=_EXPAND,  # pyright: ignore[reportArgumentType]
            )
            models = [self._model(info) for info in found]
        once = {model.repo_id: model for model in reversed(models) if model is not None}
        return tuple(reversed(once.values()))

    def look_up(self, ref: ModelRef) -> HubListing:
        """The facts and files of one model, pinned to the commit its revision is at now."""
        with self._errors(ref.repo_id):
            api = self._api()
            info = api.model_info(ref.repo_id, revision=ref.revision, timeout=20)
            model = self._model(info)
            if model is None or not _COMMIT.fullmatch(model.commit):
                raise ValueError("no such name or commit can be")
            tree = api.list_repo_tree(ref.repo_id, revision=model.commit, recursive=False)
            files = [_file(entry) for entry in islice(tree, MOST_FILES + 1)]
        if len(files) > MOST_FILES:
            raise HubError(
                "hub.too_many_files",
                f"{ref.repo_id} has more than {MOST_FILES} files, as no model has.",
                "Choose another copy of the model.",
                f"{self.endpoint}/{ref.repo_id}",
            )
        return HubListing(model, tuple(file for file in files if file is not None))

    def read_json(self, listing: HubListing, stop: Stop | None = None) -> JsonFiles:
        """The small JSON files, their hashes checked."""
        stop = stop or Stop()
        return JsonFiles(
            config=self._json(listing, "config.json", stop),
            generation_config=self._json(listing, "generation_config.json", stop),
            hf_quant_config=self._json(listing, "hf_quant_config.json", stop),
            tokenizer_config=self._json(listing, "tokenizer_config.json", stop),
        )

    def plan(self, listing: HubListing, stop: Stop | None = None) -> DownloadPlan:
        """What to fetch of it. Raises TransferError where there is nothing to run."""
        return DownloadPlan(
            repo_id=listing.model.repo_id,
            commit=listing.model.commit,
            endpoint=self.endpoint,
            files=self.needed(listing, stop),
            licence=listing.model.licence,
        )

    def needed(self, listing: HubListing, stop: Stop | None = None) -> tuple[RemoteFile, ...]:
        """The files a model needs; which weights belong to it, its index says."""
        index = self._json(listing, INDEX, stop or Stop())
        weights = index.get("weight_map")
        shards = [str(name) for name in weights.values()] if isinstance(weights, dict) else None
        return needed_files(listing.files, shards)

    def card_text(self, listing: HubListing, stop: Stop | None = None) -> str:
        """The model card as Markdown of text alone: no front matter, no images, no HTML."""
        file = listing.file("README.md")
        if file is None:
            return ""
        data = read_file(self.place(listing.model), file, CARD_LIMIT, stop or Stop())
        return text_only(data.decode("utf-8", "replace"))

    def place(self, model: HubModel) -> Place:
        """Where its files are, for `app.backend.transfer`."""

        def locate(file: RemoteFile) -> Source:
            url = file_url(self.endpoint, model.repo_id, model.commit, file.path)
            return Source(url, self.token())

        return Place(model.repo_id, self.endpoint, locate)

    def who(self) -> str:
        """The account the token belongs to. Raises HubError when it is none or not valid."""
        with self._errors("your account"):
            token = self.token()
            if token is None:
                raise HubError(
                    "hub.no_token",
                    "No access token is kept here.",
                    f"Make one at {self.endpoint}/settings/tokens and enter it.",
                    f"{self.endpoint}/settings/tokens",
                )
            return str(self._api().whoami(token=token).get("name", ""))

    def _json(self, listing: HubListing, name: str, stop: Stop) -> dict[str, object]:
        file = listing.file(name)
        if file is None or not file.size:
            return {}
        data = read_file(self.place(listing.model), file, JSON_LIMIT, stop)
        try:
            return json_object(data)
        except ValueError as error:
            raise TransferError(
                "transfer.json_invalid",
                f"{name} of {listing.model.repo_id} is not valid JSON.",
                "The model is damaged on the hub; choose another copy.",
            ) from error

    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(
            endpoint=self.endpoint,
            token=self.token() or False,
            library_name="unblur",
            library_version=self._version or None,
        )

    def _model(self, info: ModelInfo) -> HubModel | None:
        """None for what cannot be a model's name. A fact of another type than it should have is not
        known."""
        if not isinstance(info.id, str) or not is_name(info.id):
            return None
        tags = tuple(printable(tag) for tag in info.tags or () if isinstance(tag, str))
        licences = [tag.removeprefix("license:") for tag in tags if tag.startswith("license:")]
        parameters = info.safetensors.total if info.safetensors is not None else None
        changed = info.last_modified
        return HubModel(
            repo_id=info.id,
            commit=info.sha if isinstance(info.sha, str) else "",
            licence=licences[0] if licences else "",
            gated=bool(info.gated),
            private=bool(info.private),
            downloads=_count(info.downloads),
            parameters=_count(parameters),
            updated=changed.date().isoformat() if isinstance(changed, datetime) else "",
            tags=tags,
            support=support_of_config(info.config if isinstance(info.config, dict) else None),
            endpoint=self.endpoint,
        )

    @contextlib.contextmanager
    def _errors(self, about: str) -> Iterator[None]:
        """The library's typed errors as ours; their own texts, with addresses, go no further."""
        from huggingface_hub import errors

        try:
            yield
        except errors.HfHubHTTPError as error:
            raise self._refused(about, error.response) from None
        except errors.HFValidationError:
            raise HubError(
                "hub.bad_name",
                f"{about[:80]!r} is not the name of a model.",
                "Write owner/name as on its page.",
            ) from None
        except _ODD:
            raise HubError(
                "hub.odd_answer",
                f"{self.endpoint} answers, but not as a model hub does.",
                "A network may want you to log in first: open any page in a browser, then try"
                " again.",
                self.endpoint,
            ) from None
        except errors.OfflineModeIsEnabled:
            raise HubError(
                "hub.offline",
                "The network is switched off for the hub (HF_HUB_OFFLINE is set).",
                "Unset it to search and download. Models on this computer work without it.",
            ) from None
        except errors.HTTPError as error:  # pyright: ignore[reportPrivateImportUsage] - the client's
            raise unreachable(self.endpoint, type(error).__name__) from None

    def _refused(self, about: str, response: Any) -> HubError:
        status = int(response.status_code)
        if status == 429 or status >= 500:
            return HubError(
                "hub.busy",
                f"The hub cannot answer now (status {status}).",
                "Try again in a minute.",
                self.endpoint,
            )
        return refused(
            status,
            about,
            error_code=response.headers.get("X-Error-Code", ""),
            said=response.headers.get("X-Error-Message", ""),
            has_token=self.token() is not None,
            endpoint=self.endpoint,
        )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST else None


def _file(entry: Any) -> RemoteFile | None:
    """A file of the tree; None for a folder and for a name that could leave ours."""
    path = str(getattr(entry, "path", ""))
    size, blob = getattr(entry, "size", None), getattr(entry, "blob_id", None)
    if size is None or blob is None or not is_plain_name(path) or PurePosixPath(path).name != path:
        return None
    lfs = getattr(entry, "lfs", None)
    if lfs is not None:
        return RemoteFile(path, int(lfs.size), sha256=str(lfs.sha256))
    return RemoteFile(path, int(size), git_sha1=str(blob))
