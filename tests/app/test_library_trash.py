"""What is deleted comes back as it was until the app is closed, and nothing else is touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from library_models import only, put_cached, put_model
from transfers import safetensors

from app.backend.library import trash
from app.backend.library.folders import Kind, LibraryError
from app.backend.library.library import Library
from app.backend.library.scan import Presence
from app.backend.library.verify import verify


@pytest.fixture
def library(tmp_path: Path) -> Library:
    (tmp_path / "cache").mkdir()
    return Library(tmp_path / "library.json", tmp_path / "models", tmp_path / "cache")


@pytest.mark.parametrize("kind", ["models", "model", "cache, only version", "cache, one of two"])
def test_a_deleted_model_comes_back_as_it_was(library: Library, tmp_path: Path, kind: str) -> None:
    if kind == "models":
        put_model(tmp_path / "models" / "someone" / "x")
    elif kind == "model":
        put_model(tmp_path / "dropped" / "x")
        library.folders.add(tmp_path / "dropped" / "x")
    else:
        put_cached(tmp_path / "cache", "c" * 40, weights=safetensors(3000), main=True)
        if "two" in kind:
            put_cached(tmp_path / "cache", "d" * 40, weights=safetensors(5000))
    view = library.scan()
    tree = {p: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()}
    model = view.models[0]
    library.delete(model)
    left = library.scan()
    assert len(left.models) == len(view.models) - 1
    assert all(f.presence is Presence.PRESENT for f in left.folders)
    if "two" in kind:
        assert verify(left.models[0]).is_proven, "the other version lost a content"
    again = Library(tmp_path / "library.json", tmp_path / "models", tmp_path / "cache")
    (entry,) = again.deleted()  # also after a kill
    assert entry.name == model.name
    again.undo(entry)
    assert {p: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()} == {
        **tree,
        tmp_path / "library.json": (tmp_path / "library.json").stat().st_size,
    }
    assert [m.path for m in again.scan().models] == [m.path for m in view.models]
    assert again.deleted() == ()


def test_a_deleted_model_comes_back_where_its_disk_has_another_name(
    library: Library, tmp_path: Path
) -> None:
    put_model(tmp_path / "models" / "someone" / "deleted")
    library.delete(only(library))
    (tmp_path / "models").rename(tmp_path / "elsewhere")
    moved = Library(tmp_path / "other.json", tmp_path / "elsewhere", None)
    (entry,) = moved.deleted()
    moved.undo(entry)
    assert only(moved).path == tmp_path / "elsewhere" / "someone" / "deleted"


@pytest.mark.parametrize(
    "move",
    [["/etc/origin", "0"], ["../origin", "0"], ["a", "../../../../mine"], ["a"], [1, 2]],
)
def test_a_note_of_the_trash_that_leads_out_of_its_folder_is_left_alone(
    library: Library, tmp_path: Path, move: object
) -> None:
    (tmp_path / "mine").write_text("not to be moved")
    place = tmp_path / "models" / ".unblur" / "trash" / "0123"
    place.mkdir(parents=True)
    note = {"name": "x", "size": 1, "when": 1, "moves": [move]}
    (place / "deleted.json").write_text(json.dumps(note))
    assert library.deleted() == ()
    library.empty_trash()
    assert place.is_dir()
    assert (tmp_path / "mine").is_file()


def test_deleting_from_a_cache_takes_nothing_that_lies_outside_it(
    library: Library, tmp_path: Path
) -> None:
    snapshot = put_cached(tmp_path / "cache", "c" * 40, weights=safetensors(3000))
    put_cached(tmp_path / "cache", "d" * 40, weights=safetensors(4000))
    (tmp_path / "mine.json").write_text("{}")
    (snapshot / "generation_config.json").symlink_to(tmp_path / "mine.json")
    deleted = library.delete(library.find(str(snapshot)))
    assert (tmp_path / "mine.json").is_file()
    library.undo(deleted)
    assert (snapshot / "generation_config.json").read_text() == "{}"
    assert verify(library.find(str(snapshot))).bad == ()


def test_a_cache_reached_through_a_link_is_deleted_from_and_restored(tmp_path: Path) -> None:
    put_cached(tmp_path / "disk" / "hub", "c" * 40, weights=safetensors(3000))
    put_cached(tmp_path / "disk" / "hub", "d" * 40, weights=safetensors(4000))
    (tmp_path / "linked").symlink_to(tmp_path / "disk")
    library = Library(tmp_path / "library.json", tmp_path / "models", tmp_path / "linked" / "hub")
    first = library.scan().models[0]
    deleted = library.delete(first)
    assert len(library.scan().models) == 1
    library.undo(deleted)
    assert verify(library.find(str(first.path))).is_proven


def test_emptying_the_trash_frees_the_room(library: Library, tmp_path: Path) -> None:
    put_model(tmp_path / "models" / "someone" / "x")
    put_model(tmp_path / "dropped" / "y")
    library.folders.add(tmp_path / "dropped" / "y")
    sizes = [model.size for model in library.scan().models]
    for model in library.scan().models:
        library.delete(model)
    assert library.empty_trash() == sum(sizes)
    assert library.deleted() == ()
    left = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert left == [tmp_path / "library.json"]
    assert all(folder.kind is not Kind.MODEL for folder in library.folders.all())


def test_undo_does_not_overwrite_what_came_meanwhile(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "someone" / "x"
    put_model(folder)
    entry = library.delete(only(library))
    put_model(folder, commit="b" * 40)
    with pytest.raises(LibraryError, match="something else") as caught:
        library.undo(entry)
    assert str(entry.place) in caught.value.action
    assert entry.moves[0][1].is_dir()
    assert only(library).commit == "b" * 40


def test_a_delete_that_fails_half_way_leaves_all_in_place(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_cached(tmp_path / "cache", "c" * 40, weights=safetensors(3000))
    put_cached(tmp_path / "cache", "d" * 40, weights=safetensors(5000))
    model = library.scan().models[0]
    real, calls = os.rename, []

    def second_fails(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise PermissionError(13, "Permission denied")
        real(source, target)

    monkeypatch.setattr(trash.os, "rename", second_fails)
    with pytest.raises(LibraryError) as caught:
        library.delete(model)
    assert caught.value.code == "library.not_deleted"
    assert len(library.scan().models) == 2
    assert verify(library.scan().models[0]).is_proven
    assert library.deleted() == ()
