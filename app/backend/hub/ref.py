"""What a person pasted, as a model's name: `owner/name`, `owner/name@version` or a page's link.

It knows the shapes of names and links. It refuses to ask the network whether there is such a model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from app.backend.hub.access import HubError

HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_REVISION = re.compile(r"[\w./-]{1,120}", re.ASCII)
_OTHER_KINDS = ("datasets", "spaces", "collections", "papers", "docs", "blog", "buckets")
_PAGES = ("tree", "blob", "resolve", "raw", "commit", "commits")


@dataclass(frozen=True)
class ModelRef:
    """revision: a branch, tag or commit; "main" unless said otherwise."""

    repo_id: str
    revision: str = "main"


def parse_ref(text: str, endpoint: str = "") -> ModelRef:
    """Raises HubError naming what was not understood. endpoint: a hub whose links count too."""
    given = text.strip().strip("<>\"'")
    hosts = (*HOSTS, *((urlsplit(endpoint).hostname,) if endpoint else ()))
    if given.lower().startswith("hf://"):
        given = given[5:].removeprefix("models/")
    elif "://" in given:
        return _from_link(given, hosts)
    elif given.partition("/")[0].lower() in hosts:
        return _from_link(f"https://{given}", hosts)
    name, _, revision = given.partition("@")
    return _checked(name, revision or "main", text)


def is_name(text: str) -> bool:
    """Whether a hub's own word for a model is `owner/name`."""
    return bool(_NAME.fullmatch(text)) and ".." not in text and "--" not in text


def looks_like_ref(text: str) -> bool:
    """Whether a search box's text names one model rather than words to search for."""
    try:
        parse_ref(text)
    except HubError:
        return False
    return True


def _from_link(link: str, hosts: tuple[str | None, ...]) -> ModelRef:
    try:
        parts = urlsplit(link)
    except ValueError:  # a bracket where none can be
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or parts.hostname not in hosts:
        raise HubError(
            "hub.other_site",
            f"The link leads to {parts.hostname or 'no site'}, which is not the model hub.",
            "Paste a link to a model's page on huggingface.co, or its owner/name.",
        )
    steps = [unquote(step) for step in parts.path.split("/") if step]
    if steps and steps[0] == "models":
        steps = steps[1:]
    if steps and steps[0] in _OTHER_KINDS:
        raise HubError(
            "hub.not_a_model",
            f"The link leads to something else than a model ({steps[0]}).",
            "Paste a link to a model's page.",
        )
    revision = steps[3] if len(steps) > 3 and steps[2] in _PAGES else "main"
    return _checked("/".join(steps[:2]), revision, link)


def _checked(name: str, revision: str, given: str) -> ModelRef:
    if not is_name(name) or not _REVISION.fullmatch(revision) or ".." in revision:
        raise HubError(
            "hub.bad_name",
            f"{given.strip()[:80]!r} is not the name of a model.",
            "Write owner/name as on its page, or paste the page's link.",
        )
    return ModelRef(name, revision)
