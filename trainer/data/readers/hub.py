"""Data sets of the hub: which files there are, and one of them on this machine.

Knows `huggingface_hub`, which resumes, checks and keeps what it fetches, and turns its errors into
sentences. Refuses loading scripts: only files of rows are fetched. Waits for the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] - the HTTP client's own base
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from engine.errors import RequestError

PREFIX = "hf://"
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
_NO_ROWS = ("dataset_infos.json", "dataset_info.json", "state.json")
_REFERENCE = re.compile(
    r"hf://(?:datasets/)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?:/(?P<path>.+))?"
)
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
LISTED = 12  # files named in a sentence


@dataclass(frozen=True)
class HubData:
    """repo: owner/name. path: of a file or folder in it, empty = all. revision: branch, tag or
    commit."""

    repo: str
    path: str = ""
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> HubData:
        """From `hf://owner/name[@revision][/path]`. Raises RequestError `data.hub_name`."""
        match = _REFERENCE.fullmatch(text.rstrip("/"))
        if match is None:
            raise RequestError(
                "data.hub_name",
                f"{text!r:.80} is no data set of the hub.",
                "Write hf://owner/name, hf://owner/name@revision or hf://owner/name/path.",
            )
        return cls(match["repo"], match["path"] or "", match["revision"] or "main")


@dataclass(frozen=True)
class HubFile:
    """A file of rows. size: bytes, 0 where the hub does not say."""

    path: str
    size: int


@dataclass(frozen=True)
class HubListing:
    """commit: what the revision was when it was asked. files: of rows, by name."""

    data: HubData
    commit: str
    files: tuple[HubFile, ...]


def list_hub(data: HubData, endpoint: str | None = None) -> HubListing:
    """Files of rows below the path. Raises RequestError `data.hub_...`."""
    with _in_words(data):
        info = HfApi(endpoint).dataset_info(data.repo, revision=data.revision, files_metadata=True)
    found = [
        HubFile(sibling.rfilename, sibling.size or 0)
        for sibling in info.siblings or ()
        if _has_rows(sibling.rfilename) and _is_below(sibling.rfilename, data.path)
    ]
    if not found:
        raise RequestError(
            "data.hub_empty",
            f"{data.repo} holds no file of rows{f' at {data.path}' if data.path else ''}.",
            "Name another data set; those made by a script are not run here.",
        )
    files = tuple(sorted(found, key=lambda file: file.path))
    return HubListing(data, info.sha or data.revision, files)


def _has_rows(path: str) -> bool:
    name = PurePosixPath(path)
    return name.suffix.lower() in SUFFIXES and name.name.lower() not in (*_NO_ROWS, "license.txt")


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(folder.rstrip("/") + "/")


def one_table(listing: HubListing) -> tuple[HubFile, ...]:
    """The files, where they are one file or the parts of one. Raises RequestError
    `data.hub_choose`, which names what can be chosen."""
    whole = {_SHARD.sub("", file.path) for file in listing.files}
    if len(whole) == 1:
        return listing.files
    names = [file.path for file in listing.files]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    raise RequestError(
        "data.hub_choose",
        f"{listing.data.repo} holds several files: {', '.join(names[:LISTED])}{more}.",
        f"Name one, such as {PREFIX}{listing.data.repo}/{names[0]}.",
    )


def fetch(listing: HubListing, file: HubFile, endpoint: str | None = None) -> Path:
    """The file on this machine, fetched unless it was before. Raises RequestError
    `data.hub_...`."""
    with _in_words(listing.data):
        path = HfApi(endpoint).hf_hub_download(
            listing.data.repo, file.path, repo_type="dataset", revision=listing.commit
        )
    return Path(path)


def local_files(names: tuple[str, ...], endpoint: str | None = None) -> tuple[str, ...]:
    """Paths as they are, and every `hf://...` as the files it stands for, fetched."""
    paths: list[str] = []
    for name in names:
        if not name.startswith(PREFIX):
            paths.append(name)
            continue
        listing = list_hub(HubData.parse(name), endpoint)
        paths += [str(fetch(listing, file, endpoint)) for file in one_table(listing)]
    return tuple(paths)


@contextmanager
def _in_words(data: HubData) -> Iterator[None]:
    """The library's errors as sentences; none repeats an address or a token."""
    repo = data.repo
    try:
        yield
    except GatedRepoError as error:
        raise RequestError(
            "data.hub_gated",
            f"{repo} is only given to those who accept its terms.",
            f"Accept them on the hub's page of {repo}, then log in with your access token.",
        ) from error
    except RevisionNotFoundError as error:
        raise RequestError(
            "data.hub_revision", f"{repo} has no revision {data.revision}.", "Name another one."
        ) from error
    except RepositoryNotFoundError as error:
        raise RequestError(
            "data.hub_missing",
            f"The hub has no data set {repo} that you may see.",
            "Check its name. A private one needs your access token.",
        ) from error
    except HFValidationError as error:
        raise RequestError(
            "data.hub_name", f"{repo} cannot be a data set's name.", "Write owner/name."
        ) from error
    except (EntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _unreachable(repo) from error
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", "?")
        raise RequestError(
            "data.hub_refused",
            f"The hub answered {status} when asked for {repo}.",
            "Try again later.",
        ) from error
    except (HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename:
            raise RequestError(
                "data.hub_disk",
                f"{repo} cannot be kept on this disk: {error.strerror}.",
                "Make room, or set HF_HOME to a folder on another disk.",
            ) from error
        raise _unreachable(repo) from error


def _unreachable(repo: str) -> RequestError:
    return RequestError(
        "data.hub_unreachable",
        f"The hub cannot be reached, and {repo} was not fetched before.",
        "Check the network, then try again.",
    )
