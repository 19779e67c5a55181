"""Every file of the app's own may have been damaged by anything: it is read, or set aside and said,
and never ends the app."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transfers import plan_of, serving

from app.backend.files import read_json_object
from app.backend.hub.access import HubError
from app.backend.hub.bandwidth import keep, known
from app.backend.hub.catalog import CATALOG, load_catalog
from app.backend.hub.token import TokenStore
from app.backend.library.folders import FolderList, Kind
from app.backend.library.library import Library
from app.backend.library.trash import delete
from app.backend.transfer.plan import MANIFEST, read_manifest, write_manifest
from app.backend.transfer.queue import DownloadQueue

DEEP = "[" * 100_000
WRONG = (None, True, -1, 10**400, 1e999, "", "\x00", "\ud800", [], [None], {}, {"a": {"b": []}})


def damaged(document: Any) -> Iterator[Any]:
    """The document with each of its values, at every depth, wrong in every way, or missing."""
    keys = list(document) if isinstance(document, dict) else range(min(2, len(document)))
    for key in keys:
        for wrong in WRONG:
            spoiled = document.copy()
            spoiled[key] = wrong
            yield spoiled
        spoiled = document.copy()
        del spoiled[key]
        yield spoiled
        if isinstance(document[key], dict | list):
            for inner in damaged(document[key]):
                spoiled = document.copy()
                spoiled[key] = inner
                yield spoiled


def write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def test_only_a_json_object_of_a_plain_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for text in ("", "[]", "NaN", '{"a": Infinity}', "\x00", DEEP, '{"a":' * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"."):
            read_json_object(path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match="utf-8"):
        read_json_object(path)
    path.write_text('{"a": 1}')
    assert read_json_object(path) == {"a": 1}
    with pytest.raises(ValueError, match="too many"):
        read_json_object(path, most=3)
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "none.json")


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes among files there")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    assert read_manifest(tmp_path) is None


def queue_file(folder: Path) -> Path:
    with serving(3000) as (hub, repository):
        queue = DownloadQueue(folder / "queue.json", lambda _: None)
        queue.add(plan_of(hub, repository, "config.json", "model.safetensors"), folder)
    document = json.loads((folder / "queue.json").read_text())
    document["downloads"][0]["problem"] = {"code": "a.b", "message": "m", "action": "a"}
    write(folder / "queue.json", document)
    return folder / "queue.json"


def folders_file(folder: Path) -> Path:
    listed = FolderList(folder / "library.json", folder / "models", None)
    listed.add(folder)
    listed.note_seen(folder, 3)
    listed.remove(listed.download_to)
    return folder / "library.json"


def _texts(path: Path) -> list[str]:
    return [path.read_text()] if path.exists() else []


@pytest.mark.parametrize("make", [queue_file, folders_file])
def test_a_list_that_is_wrong_in_any_place_is_read_or_set_aside_and_said(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    whole = json.loads(path.read_text())
    for spoiled in damaged(whole):
        write(path, spoiled)
        if make is queue_file:
            opened = DownloadQueue(path, lambda _: None)
            assert all(isinstance(view.done_bytes, int) for view in opened.views())
            untouched = opened.problem is None
        else:
            listed = FolderList(path, tmp_path / "models", None)
            assert any(folder.kind is Kind.MODELS for folder in listed.all())
            untouched = listed.problem is None
        aside = [left.read_text() for left in tmp_path.glob("*damaged*")]
        assert untouched or json.dumps(spoiled) in (*aside, *_texts(path)), spoiled


def test_a_manifest_that_is_wrong_in_any_place_makes_a_plain_folder(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "someone" / "here"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with serving(3000) as (hub, repository):
        write_manifest(folder, plan_of(hub, repository, "config.json", "model.safetensors"))
    whole = json.loads((folder / MANIFEST).read_text())
    library = Library(tmp_path / "library.json", tmp_path / "models", None)
    for spoiled in damaged(whole):
        write(folder / MANIFEST, spoiled)
        (model,) = library.scan().models
        assert model.path == folder
        assert all(type(size) is int for _, size in model.files)


def test_a_note_of_the_trash_that_is_wrong_in_any_place_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "someone" / "here"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    library = Library(tmp_path / "library.json", tmp_path / "models", None)
    (model,) = library.scan().models
    note = delete(model).place / "deleted.json"
    for spoiled in damaged(json.loads(note.read_text())):
        write(note, spoiled)
        for entry in library.deleted():
            assert all(b.parent == note.parent for _, b in entry.moves), spoiled
    assert note.exists()


def test_a_token_file_and_a_measurement_that_are_wrong_are_as_none(tmp_path: Path) -> None:
    tokens, speeds = tmp_path / "token.json", tmp_path / "bandwidth.json"
    TokenStore(tokens, "http://hub", keyring=lambda: None).save("hf_ofTheTest")
    keep(speeds, "a device", 1e9)
    for spoiled in damaged(json.loads(tokens.read_text())):
        write(tokens, spoiled)
        assert TokenStore(tokens, "http://hub", keyring=lambda: None).get() is None
    for spoiled in damaged(json.loads(speeds.read_text())):
        write(speeds, spoiled)
        found = known(speeds, "a device").bytes_per_second
        assert found is None or 0 < found < float("inf")


def test_a_catalogue_that_is_wrong_in_any_place_is_refused_in_words_or_whole(
    tmp_path: Path,
) -> None:
    whole = json.loads(CATALOG.read_text(encoding="utf-8"))
    whole["models"] = whole["models"][:2]
    path = tmp_path / "catalog.json"
    for spoiled in damaged(whole):
        write(path, spoiled)
        with contextlib.suppress(HubError):
            entries = load_catalog(path)
            assert all(entry.title and entry.parameters != 10**400 for entry in entries)
    path.write_text(DEEP)
    with pytest.raises(HubError, match="nested"):
        load_catalog(path)
