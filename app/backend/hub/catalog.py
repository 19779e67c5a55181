"""The curated list: models a person may want, with what is known of each and how well.

It knows the shape of `assets/catalog.json` and refuses every entry that does not have it. Whether a
model runs is never in the file: the engine says so, from the `model_type` it is known by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.backend.files import read_json_object
from app.backend.hub.access import HubError
from app.backend.hub.ref import parse_ref
from app.backend.hub.support import Looked, Support, Supported, support_of_config
from engine.paths import ASSETS

CATALOG = ASSETS / "catalog.json"
VERSION = 1
MOST = 10**18  # no number of a model is larger
FACTS = (
    "model_type",
    "architecture",
    "parameters",
    "active_parameters",
    "context",
    "licence",
    "quantisation",
    "weight_bytes",
)
_KEYS = {"repo_id", "search", "title", "family", "about", "source", "unverified", *FACTS}


@dataclass(frozen=True)
class CatalogEntry:
    """repo_id: "" for a model whose name on the hub is not known; `search` finds it then. Facts are
    None where they are not known. unverified: the facts taken from second hand. source: where the
    facts come from. support: computed by the engine, not written down."""

    title: str
    family: str
    about: str
    source: str
    repo_id: str
    search: str
    model_type: str | None
    architecture: str | None
    parameters: int | None
    active_parameters: int | None
    context: int | None
    licence: str | None
    quantisation: str | None
    weight_bytes: int | None
    unverified: tuple[str, ...]
    support: Support


def load_catalog(path: Path = CATALOG) -> tuple[CatalogEntry, ...]:
    """Raises HubError naming the entry and the field of a list that is not well formed."""
    try:
        document = read_json_object(path)
    except (OSError, ValueError) as error:
        raise _broken(f"cannot be read ({error})") from error
    if document.get("version") != VERSION:
        raise _broken(f"is not of version {VERSION}")
    entries = document.get("models")
    if not isinstance(entries, list):
        raise _broken("has no list of models")
    loaded = tuple(_entry(value, number) for number, value in enumerate(entries, 1))
    names = [entry.repo_id for entry in loaded if entry.repo_id]
    for name in names:
        if names.count(name) > 1:
            raise _broken(f"lists {name} twice")
    return loaded


def find_entry(repo_id: str, entries: tuple[CatalogEntry, ...]) -> CatalogEntry | None:
    return next((e for e in entries if e.repo_id.lower() == repo_id.lower() != ""), None)


def _entry(value: object, number: int) -> CatalogEntry:
    if not isinstance(value, dict):
        raise _broken(f"entry {number} is not an object")
    where = f"entry {number} ({value.get('title')})"
    unknown = set(value) - _KEYS
    missing = {"title", "family", "about", "source", "unverified", *FACTS} - set(value)
    if unknown or missing:
        raise _broken(f"{where}: {', '.join(sorted(unknown | missing))} unknown or missing")
    text = {key: _text(value, key, where) for key in ("title", "family", "about", "source")}
    repo_id, search = str(value.get("repo_id") or ""), str(value.get("search") or "")
    if bool(repo_id) == bool(search):
        raise _broken(f"{where} needs a repo_id, or words to search for")
    if repo_id:
        _check_name(repo_id, where)
    unverified = value["unverified"]
    named = unverified if isinstance(unverified, list) else [None]
    if any(fact != "repo_id" and fact not in FACTS for fact in named):
        raise _broken(f"{where}: unverified names something that is no fact")
    model_type, architecture = (
        _word(value, "model_type", where),
        _word(value, "architecture", where),
    )
    return CatalogEntry(
        **text,
        repo_id=repo_id,
        search=search,
        model_type=model_type,
        architecture=architecture,
        parameters=_number(value, "parameters", where),
        active_parameters=_number(value, "active_parameters", where),
        context=_number(value, "context", where),
        licence=_word(value, "licence", where),
        quantisation=_word(value, "quantisation", where),
        weight_bytes=_number(value, "weight_bytes", where),
        unverified=tuple(unverified),
        support=_support(model_type, architecture, "model_type" in unverified),
    )


def _support(model_type: str | None, architecture: str | None, second_hand: bool) -> Support:
    config: dict[str, object] = {}
    if model_type is not None:
        config["model_type"] = model_type
    if architecture is not None:
        config["architectures"] = [architecture]
    found = support_of_config(config)
    if second_hand and found.state is Supported.YES:
        reason = f"{found.family} models run here; whether this is one, its files will tell."
        return Support(Supported.UNKNOWN, reason, Looked.NOTHING, found.family)
    return found


def _text(value: Mapping[str, object], key: str, where: str) -> str:
    text = value[key]
    if not isinstance(text, str) or not text.strip():
        raise _broken(f"{where}: {key} is empty")
    return text


def _word(value: Mapping[str, object], key: str, where: str) -> str | None:
    found = value[key]
    if found is None or (isinstance(found, str) and found.strip()):
        return found
    raise _broken(f"{where}: {key} is {found!r}")


def _number(value: Mapping[str, object], key: str, where: str) -> int | None:
    found = value[key]
    if found is None or (type(found) is int and 0 < found < MOST):
        return found
    raise _broken(f"{where}: {key} is {found!r}")


def _check_name(repo_id: str, where: str) -> None:
    try:
        ok = parse_ref(repo_id).repo_id == repo_id
    except HubError:
        ok = False
    if not ok:
        raise _broken(f"{where}: {repo_id!r} is not owner/name")


def _broken(problem: str) -> HubError:
    return HubError(
        "hub.catalog",
        f"The list of models {problem}.",
        "Install Unblur again. Searching and pasting a name work without the list.",
    )
