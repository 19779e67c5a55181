"""The list of models is well formed, and claims no support that the engine does not have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.backend.hub.access import HubError
from app.backend.hub.catalog import CATALOG, find_entry, load_catalog
from app.backend.hub.ref import ModelRef, looks_like_ref, parse_ref
from app.backend.hub.support import Supported, support_of_config
from engine.models.registry import FAMILIES, NOT_BUILT


def test_the_shipped_list_loads_and_has_what_people_look_for() -> None:
    entries = load_catalog()
    names = {entry.repo_id for entry in entries}
    assert {
        "inclusionAI/LLaDA2.1-mini",
        "inclusionAI/LLaDA2.2-flash",
        "nvidia/diffusiongemma-26B-A4B-it-NVFP4",
        "RedHatAI/diffusiongemma-26B-A4B-it-NVFP4",
        "yifanyu/QwenDLM-4B",
        "JetLM/SDAR-4B-Chat",
        "Gen-Verse/TraDo-4B-Instruct",
        "GSAI-ML/LLaDA-8B-Instruct",
        "Dream-org/Dream-v0-Instruct-7B",
    } <= names
    assert all(entry.repo_id or "ORL" in entry.search for entry in entries)


def test_support_comes_from_the_engine_alone() -> None:
    titles = {family.title for family in FAMILIES}
    for entry in load_catalog():
        if entry.support.state is Supported.YES:
            assert entry.support.family in titles
            assert "model_type" not in entry.unverified
        assert entry.support.reason
    assert "support" not in CATALOG.read_text(encoding="utf-8")


def test_an_entry_is_found_whatever_the_case() -> None:
    entries = load_catalog()
    found = find_entry("inclusionai/llada2.1-MINI", entries)
    assert found is not None
    assert found.title == "LLaDA2.1-mini"
    assert find_entry("", entries) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": "many"}, "parameters"),
        ({"parameters": 0}, "parameters"),
        ({"licence": ""}, "licence"),
        ({"repo_id": "no slash"}, "owner/name"),
        ({"repo_id": ""}, "repo_id"),
        ({"search": "both"}, "repo_id"),
        ({"title": " "}, "title"),
        ({"supported": True}, "supported"),
        ({"unverified": ["everything"]}, "unverified"),
    ],
)
def test_a_malformed_entry_is_refused_by_name(tmp_path: Path, change: dict, says: str) -> None:
    document = json.loads(CATALOG.read_text(encoding="utf-8"))
    document["models"][0].update(change)
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps(document))
    with pytest.raises(HubError, match=says) as caught:
        load_catalog(path)
    assert caught.value.code == "hub.catalog"


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2, "models": []}', '{"version": 1}'])
def test_a_list_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "catalog.json"
    path.write_text(text)
    with pytest.raises(HubError):
        load_catalog(path)


def test_a_model_is_listed_once(tmp_path: Path) -> None:
    document = json.loads(CATALOG.read_text(encoding="utf-8"))
    document["models"].append(document["models"][0])
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps(document))
    with pytest.raises(HubError, match="twice"):
        load_catalog(path)


def test_what_the_engine_does_not_know_is_never_called_supported() -> None:
    assert support_of_config({"model_type": "llama"}).state is Supported.NO
    for name in NOT_BUILT:
        found = support_of_config({"model_type": f"{name}_of_tomorrow"})
        assert found.state is Supported.NOT_YET
        assert NOT_BUILT[name] in found.reason
    assert support_of_config({"model_type": 7}).state is Supported.NO
    assert support_of_config({}).state is Supported.UNKNOWN
    assert support_of_config({"vocab_size": 3}).state is Supported.UNKNOWN


@pytest.mark.parametrize(
    ("text", "repo_id", "revision"),
    [
        ("inclusionAI/LLaDA2.1-mini", "inclusionAI/LLaDA2.1-mini", "main"),
        ("  a/b@v1.0 ", "a/b", "v1.0"),
        ("https://huggingface.co/a/b", "a/b", "main"),
        ("https://huggingface.co/a/b/tree/refs%2Fpr%2F1", "a/b", "refs/pr/1"),
        ("https://huggingface.co/a/b/blob/abc1234/config.json?x=1#L3", "a/b", "abc1234"),
        ("http://hf.co/a/b/discussions/4", "a/b", "main"),
        ("huggingface.co/a/b/", "a/b", "main"),
        ("<https://huggingface.co/a/b>", "a/b", "main"),
        ("hf://a/b@c", "a/b", "c"),
        ("hf://models/a/b", "a/b", "main"),
        ("https://hub.test/a/b", "a/b", "main"),
    ],
)
def test_what_people_paste_is_understood(text: str, repo_id: str, revision: str) -> None:
    assert parse_ref(text, "https://hub.test") == ModelRef(repo_id, revision)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("https://example.com/a/b", "hub.other_site"),
        ("https://huggingface.co.evil.test/a/b", "hub.other_site"),
        ("file:///a/b", "hub.other_site"),
        ("http://[x/a/b", "hub.other_site"),
        ("https://huggingface.co@evil.test/a/b", "hub.other_site"),
        ("https://huggingface.co/a%2F..%2Fc/b", "hub.bad_name"),
        ("https://huggingface.co/a%00/b", "hub.bad_name"),
        ("a/b@" + "x" * 1000, "hub.bad_name"),
        ("\u3000/\u3000", "hub.bad_name"),
        ("\u0430dmin/model", "hub.bad_name"),  # a Cyrillic letter that looks Latin
        ("https://huggingface.co/datasets/a/b", "hub.not_a_model"),
        ("https://huggingface.co/spaces/a/b", "hub.not_a_model"),
        ("https://huggingface.co/a", "hub.bad_name"),
        ("just words", "hub.bad_name"),
        ("../..", "hub.bad_name"),
        ("a/../b", "hub.bad_name"),
        ("a/b@../c", "hub.bad_name"),
        ("a/b@", "hub.bad_name"),
        ("", "hub.bad_name"),
    ],
)
def test_what_is_no_model_is_refused(text: str, code: str) -> None:
    if text == "a/b@":  # an empty version is none
        assert parse_ref(text) == ModelRef("a/b")
        return
    with pytest.raises(HubError) as caught:
        parse_ref(text)
    assert caught.value.code == code
    assert not looks_like_ref(text)
