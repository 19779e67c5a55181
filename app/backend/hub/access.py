"""Why the hub said no, in words: one error for each thing a person can do about it.

It knows the hub's status codes and its `X-Error-Code` / `X-Error-Message` headers. It refuses to
repeat what could hold a secret: no request, no address with a query and no token is ever in an
error.
"""

from __future__ import annotations

import re

from engine.errors import UnblurError

ENDPOINT = "https://huggingface.co"
_TOKEN = re.compile(r"hf_[A-Za-z0-9_]{6,}")
_QUERY = re.compile(r"(https?://[^\s?\"']+)\?[^\s\"']*")
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")


class HubError(UnblurError):
    """The hub cannot be used as asked. `link`: the page where it can be put right, "" if none."""

    def __init__(self, code: str, message: str, action: str, link: str = "") -> None:
        super().__init__(code, message, action)
        self.link = link


def without_secrets(text: str, token: str | None = None) -> str:
    """Text fit for a log or an error: tokens, credentials and the queries of addresses (where a
    signed address has its key) are cut out."""
    if token:
        text = text.replace(token, "[token]")
    text = _TOKEN.sub("[token]", _BEARER.sub(r"\1[token]", text))
    return _QUERY.sub(r"\1", text)


def refused(
    status: int,
    repo_id: str,
    *,
    error_code: str = "",
    said: str = "",
    has_token: bool,
    endpoint: str = ENDPOINT,
) -> HubError:
    """The error for an answer of 401, 403, 404 or another 4xx about a repository.

    error_code, said: the answer's X-Error-Code and X-Error-Message. has_token: one was sent.
    """
    page = f"{endpoint}/{repo_id}"
    words = said.lower()
    if "invalid credentials" in words or "invalid user token" in words:
        return HubError(
            "hub.token_invalid",
            "The hub does not know the access token that is kept here (or it was revoked).",
            f"Make a new one at {endpoint}/settings/tokens and enter it again.",
            f"{endpoint}/settings/tokens",
        )
    if error_code == "GatedRepo" or "gated" in words or "restricted" in words:
        return _gated(status, repo_id, words, has_token, endpoint)
    if error_code == "RevisionNotFound":
        return HubError(
            "hub.revision_not_found",
            f"{repo_id} has no such version.",
            f"Choose a version that is listed at {page}/commits/main.",
            f"{page}/commits/main",
        )
    if error_code == "EntryNotFound":
        return HubError(
            "hub.file_not_found",
            f"{repo_id} no longer has a file that its list named.",
            "Look the model up again; it may have changed.",
            page,
        )
    if error_code == "RepoNotFound" or status == 404 or (status == 401 and not has_token):
        private = "" if has_token else " If it is private, an access token is needed."
        return HubError(
            "hub.not_found",
            f"The hub has no model {repo_id}, or it is not shown to you.",
            f"Check the name.{private}",
            page,
        )
    if status in (401, 403):
        return HubError(
            "hub.access_denied",
            f"The hub does not let this access token read {repo_id}.",
            f"Ask its owner at {page}, or use another token.",
            page,
        )
    return HubError(
        "hub.refused",
        f"The hub refused a request about {repo_id} (status {status}).",
        "Try again later.",
        page,
    )


def _gated(status: int, repo_id: str, words: str, has_token: bool, endpoint: str) -> HubError:
    page = f"{endpoint}/{repo_id}"
    if not has_token or status == 401:
        return HubError(
            "hub.no_token",
            f"{repo_id} is given only to people who are signed in and accepted its licence.",
            f"Accept the licence at {page}, make an access token at {endpoint}/settings/tokens,"
            " and enter it here.",
            page,
        )
    if "reject" in words or "denied" in words:
        return HubError(
            "hub.access_denied",
            f"The owners of {repo_id} declined your request for access.",
            f"Ask them at {page}, or choose another model.",
            page,
        )
    if "awaiting" in words or "pending" in words:
        return HubError(
            "hub.access_pending",
            f"Your request for access to {repo_id} has not been answered yet.",
            f"Wait for its owners; the request is shown at {page}.",
            page,
        )
    if "fine-grained" in words:
        return HubError(
            "hub.token_too_narrow",
            f"The access token may not read gated models, and {repo_id} is one.",
            f"Allow it for the token at {endpoint}/settings/tokens.",
            f"{endpoint}/settings/tokens",
        )
    return HubError(
        "hub.licence_not_accepted",
        f"The licence of {repo_id} has not been accepted with this account.",
        f"Read and accept it at {page}, then try again.",
        page,
    )


def unreachable(endpoint: str, reason: str) -> HubError:
    """No answer at all: the network, the name, or a server that is down."""
    return HubError(
        "hub.unreachable",
        f"{endpoint} does not answer ({without_secrets(reason)}).",
        "Check the network connection. Models that are on this computer work without it.",
        endpoint,
    )
