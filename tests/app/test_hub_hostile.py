"""A hub may answer anything: each answer is understood, or refused as an error of ours, and nothing
that is shown or reckoned with has a type it should not have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hub_server import Blob, HubServer, Repository
from transfers import NAME, TOKEN, model_files

from app.backend.hub import client
from app.backend.hub.access import HubError
from app.backend.hub.client import Hub, HubListing, HubModel
from app.backend.hub.examine import Examined, examine
from app.backend.hub.ref import ModelRef
from app.cli_models import main
from engine.errors import UnblurError

WRONG = (None, True, -1, 10**30, 1e999, "", "\x1b[2J\n", "\ud800", [], [None], {}, {"a": [{}]})
DEEP = "[" * 20_000 + "]" * 20_000
FACTS = ("id", "sha", "lastModified", "private", "gated", "downloads", "tags", "config")


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer(Repository(NAME, model_files(500))) as server:
        yield server


@pytest.fixture
def hub(server: HubServer) -> Hub:
    return Hub(lambda: None, server.endpoint)


def spoiled(value: Any, key: str | int, wrong: Any) -> Any:
    """A copy in which one value, or one of the first entry's, is another."""
    changed = deepcopy(value)
    (changed if isinstance(changed, dict) else changed[0])[key] = wrong
    return changed


def retelling(part: str, change: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    """Changes the answers whose path ends with `part` or has it before a commit."""
    return lambda path, value: change(value) if part in path else value


def outcome(ask: Callable[[], Any]) -> Any:
    """What it gives, or the error of ours that it ends in; any other error is a fault."""
    try:
        return ask()
    except UnblurError as error:
        return error


def check_facts(model: HubModel) -> None:
    assert model.downloads is None or type(model.downloads) is int
    assert model.parameters is None or type(model.parameters) is int
    texts = (model.repo_id, model.commit, model.licence, model.updated, *model.tags)
    assert all(isinstance(text, str) and (text.isprintable() or not text) for text in texts)
    assert isinstance(model.gated, bool)


@pytest.mark.parametrize("key", [*FACTS, "safetensors", "siblings", "cardData"])
def test_a_fact_of_another_type_is_not_known_or_refused(
    hub: Hub, server: HubServer, key: str
) -> None:
    for wrong in (*WRONG, {"parameters": {}, "total": "many"}, ["license:\x1b[31m" + "x" * 10_000]):
        server.retold = retelling(
            f"/{NAME}/revision", lambda value, wrong=wrong: spoiled(value, key, wrong)
        )
        listing = outcome(lambda: hub.look_up(ModelRef(NAME)))
        if isinstance(listing, HubListing):
            check_facts(listing.model)
            plan = outcome(lambda listing=listing: hub.plan(listing))
            assert isinstance(plan, UnblurError) or plan.repo_id == NAME
        else:
            assert listing.code == "hub.odd_answer"


@pytest.mark.parametrize("key", ["path", "size", "oid", "lfs", "type"])
def test_a_file_that_cannot_be_is_left_out_or_refused(
    hub: Hub, server: HubServer, key: str
) -> None:
    lfs = {"oid": "f" * 64, "size": 1e999, "pointerSize": 1}
    for wrong in (*WRONG, "../x", "/etc/passwd", "a\\b", "con", lfs, {**lfs, "size": -5}):
        server.retold = retelling(
            "/tree/", lambda value, wrong=wrong: spoiled(value, key, wrong) if value else value
        )
        listing = outcome(lambda: hub.look_up(ModelRef(NAME)))
        if isinstance(listing, UnblurError):
            assert listing.code == "hub.odd_answer"
            continue
        for file in listing.files:
            assert Path(file.path).name == file.path
            assert 0 <= file.size < 1 << 62


def test_one_odd_model_does_not_spoil_a_search(hub: Hub, server: HubServer) -> None:
    odd = ["../../etc", "no-owner", "a/b/c", "<b>x</b>/y", "\x1b[2J/x", "", 5, None]

    def more(value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*({**value[0], "id": name} for name in odd), *value, *value]

    server.retold = retelling("/api/models", more)
    (found,) = hub.search("tiny")
    assert found.repo_id == NAME  # once, although it was said twice
    check_facts(found)


@pytest.mark.parametrize("answer", [None, [], {}, 5, "text", True, [[]], [5], [None], {"error": 1}])
def test_json_of_another_kind_is_an_error_in_words(
    hub: Hub, server: HubServer, answer: Any
) -> None:
    server.retold = lambda _path, _value: answer
    for ask in (lambda: hub.look_up(ModelRef(NAME)), lambda: hub.search("x"), hub.who):
        found = outcome(ask)
        if isinstance(found, UnblurError):
            assert found.code in ("hub.odd_answer", "hub.no_token")
        else:
            assert found in ((), "")  # an empty list of models is one


def test_json_nested_without_end_is_an_error_in_words(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub_server.server.json.dumps", lambda _value: DEEP)
    for ask in (lambda: hub.look_up(ModelRef(NAME)), lambda: hub.search("x")):
        with pytest.raises(HubError) as caught:
            ask()
        assert caught.value.code == "hub.odd_answer"


def test_a_list_of_files_without_end_is_ended(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_FILES", 8)
    server.retold = retelling("/tree/", lambda value: value * 4)
    with pytest.raises(HubError) as caught:
        hub.look_up(ModelRef(NAME))
    assert caught.value.code == "hub.too_many_files"


@pytest.mark.parametrize(
    "data",
    [
        DEEP,
        "[]",
        "null",
        '{"weight_map": 5}',
        '{"weight_map": {"w": "../../x.safetensors"}}',
        '{"weight_map": {"w": null}}',
        '{"model_type": {"a": 1}, "max_position_embeddings": 1e999}',
        '{"model_type": "llada2_moe", "max_position_embeddings": true, "hidden_size": -1}',
    ],
)
def test_the_files_of_a_model_may_hold_anything(hub: Hub, server: HubServer, data: str) -> None:
    for name in ("config.json", "model.safetensors.index.json", "tokenizer_config.json"):
        files = {**model_files(500), name: Blob(data.encode())}
        server.repositories[NAME] = Repository(NAME, files)
        found = outcome(lambda: examine(hub, hub.look_up(ModelRef(NAME))))
        if isinstance(found, Examined):
            assert found.context is None or type(found.context) is int
            assert found.support.reason
        else:
            assert found.action


def test_the_token_does_not_follow_the_hubs_answers_to_another_host(server: HubServer) -> None:
    """localhost is another host than 127.0.0.1, though the same server answers."""
    server.repositories[NAME].readers = {TOKEN: "accepted"}
    hub = Hub(lambda: TOKEN, server.endpoint)
    server.api_status = lambda path: (
        (307, {"Location": f"{server.files_host}{path}"})
        if not any(r.host.startswith("localhost") for r in server.requests)
        else None
    )
    hub.look_up(ModelRef(NAME))
    elsewhere = [r for r in server.requests if r.host.startswith("localhost")]
    assert elsewhere
    assert not any("authorization" in r.headers for r in elsewhere)


def test_nothing_a_hub_says_can_drive_the_terminal(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setattr("app.backend.model_services.hugging_face_cache", lambda: None)
    monkeypatch.setattr("app.backend.hub.token.system_keyring", lambda: None)
    server.repositories[NAME].licence = "\x1b[2J\x9b31m\x07mit"
    assert main(["search", "tiny"]) == 0
    folder = tmp_path / "data" / "Unblur" / "models" / "me\x1b[2J" / "model\nFAKE"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "\x1b[5m"}))
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert NAME in said
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "\nFAKE" not in said


@pytest.mark.parametrize("address", ["foo", "http://[x", "ftp://a", "http://", "http://a:99999"])
def test_a_mirror_that_is_no_address_is_said_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert main(["search", "x"]) == 1
    assert "hub.bad_endpoint" in capsys.readouterr().err
