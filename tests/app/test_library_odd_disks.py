"""Disks as they are: parts of them unreadable, or gone this moment, links in circles, pipes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from library_models import only, put_cached, put_model

from app.backend.library.folders import LibraryError
from app.backend.library.library import Library
from app.backend.library.scan import Presence
from app.backend.library.verify import FileState, verify

posix = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    (tmp_path / "cache").mkdir()
    return Library(tmp_path / "library.json", tmp_path / "models", tmp_path / "cache")


def refuse(monkeypatch: pytest.MonkeyPatch, *paths: Path, error: OSError | None = None) -> None:
    """The system does not let anyone look into these folders (tests may run as root)."""
    real = Path.iterdir

    def iterdir(path: Path):
        if path in paths:
            raise error or PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)


def test_what_cannot_be_read_hides_no_other_model_and_is_named(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    put_model(models / "someone" / "good")
    for name in ("locked", "someone/locked", "lost+found"):
        (models / name).mkdir()
    refuse(monkeypatch, models / "locked", models / "someone" / "locked", models / "lost+found")
    assert only(library).path == models / "someone" / "good"
    view = library.scan().folders[0]
    assert view.presence is Presence.PRESENT
    assert view.reason == "Not shown, since it cannot be read: locked, someone/locked."


def test_an_unreadable_version_of_a_cache_hides_no_other(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_cached(tmp_path / "cache", "c" * 40, weights=b"x")
    locked = tmp_path / "cache" / "models--a--locked" / "snapshots"
    locked.mkdir(parents=True)
    refuse(monkeypatch, locked)
    assert only(library).commit == "c" * 40
    assert "models--a--locked" in library.scan().folders[1].reason


def test_a_share_that_is_gone_is_named_and_hides_nothing(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_model(tmp_path / "models" / "someone" / "good")
    share = tmp_path / "models" / "share"
    share.mkdir()
    real = Path.is_dir

    def is_dir(path: Path) -> bool:
        if path == share:
            raise OSError(107, "Transport endpoint is not connected")
        return real(path)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    refuse(monkeypatch, share, error=OSError(107, "Transport endpoint is not connected"))
    assert only(library).path.name == "good"
    assert "share" in library.scan().folders[0].reason


def test_what_is_deleted_while_it_is_looked_at_is_left_out(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_model(tmp_path / "models" / "someone" / "good")
    leaving = tmp_path / "models" / "someone" / "leaving"
    put_model(leaving)
    refuse(monkeypatch, leaving, error=FileNotFoundError(2, "No such file or directory"))
    assert only(library).path.name == "good"
    assert library.scan().folders[0].reason == ""


@posix
def test_links_in_a_circle_end_nothing(library: Library, tmp_path: Path) -> None:
    model = tmp_path / "models" / "someone" / "good"
    put_model(model)
    (tmp_path / "models" / "round").symlink_to(tmp_path / "models" / "round")
    (tmp_path / "models" / "someone" / "up").symlink_to(tmp_path / "models")
    (model / "config.json").unlink()
    (model / "config.json").symlink_to(model / "config.json")
    found = only(library)
    assert found.path == model
    assert "config.json" in found.problem
    states = {check.path: check.state for check in verify(found).files}
    assert states["config.json"] is FileState.UNREADABLE


@posix
def test_a_pipe_or_a_device_is_never_waited_for(library: Library, tmp_path: Path) -> None:
    model = tmp_path / "models" / "someone" / "good"
    put_model(model)
    for name in ("unblur-model.json", "added_tokens.json"):  # the second has no bytes by right
        (model / name).unlink()
    (model / "unblur-model.json").symlink_to("/dev/zero")
    assert only(library).repo_id == ""
    (model / "unblur-model.json").unlink()
    put_model(tmp_path / "models" / "someone" / "other")
    os.replace(
        tmp_path / "models" / "someone" / "other" / "unblur-model.json",
        model / "unblur-model.json",
    )
    os.mkfifo(model / "added_tokens.json")
    (found,) = [m for m in library.scan().models if m.path == model]
    states = {check.path: check.state for check in verify(found).files}
    assert states["added_tokens.json"] is FileState.UNREADABLE
    assert states["config.json"] is FileState.RIGHT


def test_a_model_that_is_gone_is_not_deleted_in_words(library: Library, tmp_path: Path) -> None:
    """Its card is still there when somebody else has moved it away."""
    put_cached(tmp_path / "cache", "c" * 40, weights=b"x")
    put_model(tmp_path / "models" / "someone" / "good")
    models = library.scan().models
    (tmp_path / "cache" / "models--someone--cached").rename(tmp_path / "away")
    (tmp_path / "models" / "someone").rename(tmp_path / "away too")
    assert len(models) == 2
    for model in models:
        with pytest.raises(LibraryError) as caught:
            library.delete(model)
        assert caught.value.code == "library.not_deleted"
    assert library.deleted() == ()


def test_a_model_of_a_folder_that_left_the_list_is_still_deleted(
    library: Library, tmp_path: Path
) -> None:
    put_model(tmp_path / "more" / "someone" / "good")
    library.folders.add(tmp_path / "more")
    model = only(library)
    library.folders.remove(tmp_path / "more")
    library.delete(model)
    assert not model.path.exists()
    (deleted,) = library.deleted()  # still offered
    library.undo(deleted)
    assert model.path.is_dir()
    library.delete(model)
    assert library.empty_trash() == model.size
    assert not (tmp_path / "more" / ".unblur").exists()


def test_a_cache_whose_names_of_versions_are_no_text_can_be_deleted_from(
    library: Library, tmp_path: Path
) -> None:
    for commit in ("c" * 40, "d" * 40):
        put_cached(tmp_path / "cache", commit, weights=commit.encode())
    refs = tmp_path / "cache" / "models--someone--cached" / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "odd").write_bytes(b"\xff\xfe\x00")
    model = next(m for m in library.scan().models if m.commit == "d" * 40)
    library.delete(model)
    assert [m.commit for m in library.scan().models] == ["c" * 40]
    assert (refs / "odd").is_file()


@pytest.mark.parametrize("through", ["itself", "a link"])
def test_a_model_whose_folder_is_listed_twice_is_one_model(
    library: Library, tmp_path: Path, through: str
) -> None:
    path = tmp_path / "models" / "someone" / "x"
    put_model(path)
    dropped = path
    if through == "a link":
        dropped = tmp_path / "linked"
        dropped.symlink_to(path)
    library.folders.add(dropped)
    view = library.scan()
    assert [model.path for model in view.models] == [path]
    assert view.doubles == {}
    assert [f.folder.path for f in view.folders].count(dropped) == 0
    deleted = library.delete(library.find("someone/LLaDA2.1-tiny"))
    library.undo(deleted)
    assert [model.path for model in library.scan().models] == [path]
