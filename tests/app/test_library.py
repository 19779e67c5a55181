"""The models on this computer's disks: found without a network, verified, deleted, brought back."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hub_server import wait_until
from library_models import only, put_cached, put_model
from transfers import NAME, QUICK, plan_of, safetensors, serving

from app.backend.hub.support import Supported
from app.backend.library.folders import FolderList, Kind, LibraryError
from app.backend.library.library import Library, disk_use
from app.backend.library.scan import COPY_JOURNAL, Presence
from app.backend.library.verify import FileState, repair_plan, verify
from app.backend.transfer.download import Download
from app.backend.transfer.faults import Interrupted
from app.backend.transfer.queue import DownloadQueue, State
from app.backend.transfer.stop import Stop
from engine.checkpoint.quantiser.state import JOURNAL


@pytest.fixture
def library(tmp_path: Path) -> Library:
    (tmp_path / "cache").mkdir()
    return Library(tmp_path / "library.json", tmp_path / "models", tmp_path / "cache")


@pytest.fixture(autouse=True)
def no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library must not even try, but where a test serves something itself."""
    if "hub" not in request.node.name:

        def refuse(*_args: object, **_options: object) -> None:
            raise AssertionError("the network was asked")

        monkeypatch.setattr(socket, "create_connection", refuse)


def test_a_finished_download_is_found_with_its_facts(library: Library, tmp_path: Path) -> None:
    plan = put_model(tmp_path / "models" / "someone" / "LLaDA2.1-tiny")
    model = only(library)
    assert (model.name, model.repo_id, model.commit) == (NAME, NAME, plan.commit)
    assert (model.licence, model.kind, model.problem) == ("mit", Kind.MODELS, "")
    assert model.hashes == plan.files
    assert model.support.state is Supported.YES
    assert model.size == sum(p.stat().st_size for p in model.path.iterdir())


def test_unfinished_and_hidden_things_are_no_models(library: Library, tmp_path: Path) -> None:
    put_model(tmp_path / "models" / ".unblur" / "downloads" / "abc")
    put_model(tmp_path / "models" / "someone" / ".hidden")
    (tmp_path / "models" / "someone" / "notes").mkdir()
    put_model(tmp_path / "models" / "someone" / "copy.partial")
    assert COPY_JOURNAL == JOURNAL
    (tmp_path / "models" / "someone" / "copy.partial" / JOURNAL).touch()
    assert library.scan().models == ()


def test_a_folder_without_a_manifest_is_a_model_too(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    put_model(folder)
    (folder / "unblur-model.json").unlink()
    model = only(library)
    assert (model.name, model.repo_id, model.hashes) == ("mine", "", ())


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config.json": b"{}", "model.bin": b"x"}, "pickle"),
        ({"model.safetensors": b"x"}, "config.json"),
        ({"config.json": b"{"}, "valid JSON"),
        ({"config.json": b'{"model_type": "llama"}'}, "llama"),
    ],
)
def test_what_cannot_run_says_why(
    library: Library, tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    folder = tmp_path / "models" / "a" / "b"
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    model = only(library)
    assert model.support.state is Supported.NO
    assert says in model.support.reason


def test_the_hugging_face_cache_is_read_in_place(library: Library, tmp_path: Path) -> None:
    snapshot = put_cached(tmp_path / "cache", "c" * 40, weights=safetensors(3000), main=True)
    before = sorted(str(p) for p in (tmp_path / "cache").rglob("*"))
    model = only(library)
    assert (model.name, model.commit, model.kind) == ("someone/cached", "c" * 40, Kind.CACHE)
    assert model.path == snapshot
    assert {file.path for file in model.hashes} == {"config.json", "model.safetensors"}
    assert verify(model).is_proven
    assert sorted(str(p) for p in (tmp_path / "cache").rglob("*")) == before


def test_a_cache_that_lost_a_content_says_so(library: Library, tmp_path: Path) -> None:
    snapshot = put_cached(tmp_path / "cache", "c" * 40, weights=safetensors(3000))
    (snapshot / "model.safetensors").resolve().unlink()
    model = only(library)
    assert "model.safetensors is missing" in model.problem
    assert [c.state for c in verify(model).bad] == [FileState.MISSING]


def test_versions_of_one_model_are_doubles_and_share_their_room(
    library: Library, tmp_path: Path
) -> None:
    put_cached(tmp_path / "cache", "c" * 40, weights=safetensors(3000))
    put_cached(tmp_path / "cache", "d" * 40, weights=safetensors(5000, 1))
    put_model(tmp_path / "models" / "a" / "b", name="someone/other")
    view = library.scan()
    assert set(view.doubles) == {"someone/cached"}
    assert [m.commit[0] for m in view.doubles["someone/cached"]] == ["c", "d"]
    cached = view.doubles["someone/cached"]
    config = (cached[0].path / "config.json").stat().st_size
    assert disk_use(cached) == sum(model.size for model in cached) - config


def test_an_absent_drive_is_absent_and_never_empty(library: Library, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    put_model(drive / "a" / "b")
    library.folders.add(drive)
    assert len(library.scan().models) == 1
    drive.rename(tmp_path / "unplugged")
    again = Library(tmp_path / "library.json", tmp_path / "models", tmp_path / "cache")
    view = next(v for v in again.scan().folders if v.folder.path == drive)
    assert view.presence is Presence.ABSENT
    assert "not there" in view.reason
    drive.mkdir()  # the empty mount point
    view = next(v for v in again.scan().folders if v.folder.path == drive)
    assert view.presence is Presence.ABSENT
    assert "had 1 models" in view.reason
    drive.rmdir()
    (tmp_path / "unplugged").rename(drive)
    assert len(again.scan().models) == 1


def test_a_folder_emptied_by_deleting_is_empty_and_not_absent(
    library: Library, tmp_path: Path
) -> None:
    put_model(tmp_path / "models" / "a" / "b")
    library.delete(only(library))
    library.empty_trash()
    view = library.scan().folders[0]
    assert (view.presence, view.models) == (Presence.PRESENT, ())


def test_a_new_default_folder_is_empty_and_a_chosen_one_is_not_made(tmp_path: Path) -> None:
    library = Library(tmp_path / "library.json", tmp_path / "models", None)
    assert library.scan().folders[0].presence is Presence.PRESENT
    assert not (tmp_path / "models").exists()
    assert library.folders.download_to.is_dir()
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    library.folders.choose_download_folder(chosen)
    chosen.rmdir()
    assert library.folders.download_to == chosen
    assert not chosen.exists()
    assert library.scan().folders[0].presence is Presence.ABSENT


def test_a_folder_that_may_not_be_read_says_so(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_model(tmp_path / "models" / "a" / "b")
    assert len(library.scan().models) == 1
    real = Path.iterdir

    def refused(path: Path):
        if path == tmp_path / "models":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    view = library.scan().folders[0]
    assert view.presence is Presence.UNREADABLE
    assert "Permission denied" in view.reason
    monkeypatch.undo()
    assert library.folders.all()[0].seen == 1


def test_what_is_dropped_is_recognised(tmp_path: Path, library: Library) -> None:
    put_model(tmp_path / "dropped" / "model")
    put_cached(tmp_path / "home" / "hub", "c" * 40, weights=b"x")
    kinds = {
        "dropped": Kind.MODELS,
        "dropped/model": Kind.MODEL,
        "home": Kind.CACHE,
    }
    for name, kind in kinds.items():
        assert library.folders.add(tmp_path / name).kind is kind
    assert library.folders.all()[-1].path == tmp_path / "home" / "hub"
    (tmp_path / "file.txt").write_text("")
    for wrong in ("file.txt", "nowhere"):
        with pytest.raises(LibraryError) as caught:
            library.folders.add(tmp_path / wrong)
        assert caught.value.code == "library.not_a_folder"
    with pytest.raises(LibraryError, match="Hugging Face"):
        library.folders.choose_download_folder(tmp_path / "home" / "hub")


@pytest.mark.parametrize("text", ["{", '{"version": 1}', '{"version": 99, "folders": []}'])
def test_a_folder_list_of_another_kind_is_not_lost(tmp_path: Path, text: str) -> None:
    store = tmp_path / "library.json"
    store.write_text(text)
    folders = FolderList(store, tmp_path / "models", None)
    assert folders.problem is not None
    folders.remove(tmp_path / "models")
    kept = [p.read_text() for p in tmp_path.glob("library*.json")]
    assert text in kept


def test_a_folder_taken_off_the_list_stays_off_until_it_is_added(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    put_cached(cache, "c" * 40, weights=b"x")
    store = tmp_path / "library.json"
    Library(store, tmp_path / "models", cache).folders.remove(cache)
    again = Library(store, tmp_path / "models", cache)
    assert [f.path for f in again.folders.all()] == [tmp_path / "models"]
    assert (cache / "models--someone--cached").is_dir()
    again.folders.add(cache)
    assert Library(store, tmp_path / "models", cache).folders.all()[-1].path == cache


def test_verify_names_each_bad_file_and_what_is_wrong(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "someone" / "x"
    put_model(folder)
    assert verify(only(library)).is_proven
    (folder / "config.json").unlink()
    (folder / "LICENSE").write_text("longer than it was before")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1] + b"\x00")
    model = only(library)
    assert "config.json" in model.problem
    report = verify(model)
    assert {check.path: check.state for check in report.bad} == {
        "config.json": FileState.MISSING,
        "LICENSE": FileState.WRONG_SIZE,
        "model.safetensors": FileState.WRONG_BYTES,
    }
    plan = repair_plan(report)
    assert {file.path for file in plan.files} == {check.path for check in report.bad}
    assert plan.into == folder


def test_verify_without_hashes_checks_what_can_be_checked(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    put_model(folder)
    (folder / "unblur-model.json").unlink()
    report = verify(only(library))
    assert [check.state for check in report.files] == [FileState.NO_HASH]
    assert not report.is_proven
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-7])
    (check,) = verify(only(library)).bad
    assert check.state is FileState.DAMAGED
    assert "truncated" in check.reason
    with pytest.raises(LibraryError) as caught:
        repair_plan(verify(only(library)))
    assert caught.value.code == "library.no_origin"


def test_verify_tells_its_progress_and_can_be_stopped(library: Library, tmp_path: Path) -> None:
    put_model(tmp_path / "models" / "someone" / "x")
    model, told, stop = only(library), [], Stop()
    verify(model, progress=lambda done, total: told.append((done, total)))
    manifest = (model.path / "unblur-model.json").stat().st_size
    assert told[-1] == (model.size - manifest, model.size)
    stop.set()
    with pytest.raises(Interrupted):
        verify(model, stop)


def test_a_repair_from_the_hub_fetches_only_the_bad_files(tmp_path: Path) -> None:
    library = Library(tmp_path / "library.json", tmp_path / "models", None)
    root = library.folders.download_to
    with serving(60_000) as (hub, repository):
        Download(plan_of(hub, repository), root, lambda _: None, QUICK).run()
        model = only(library)
        (model.path / "model.safetensors").write_bytes(b"cut")
        hub.requests.clear()
        queue = DownloadQueue(tmp_path / "queue.json", lambda _: None, policy=QUICK)
        queue.start()
        identity = queue.add(repair_plan(verify(model)), model.root)
        wait_until(lambda: not queue.busy)
        queue.stop()
        (view,) = queue.views()
        assert (view.id, view.state) == (identity, State.DONE)
        assert verify(only(library)).is_proven
        assert len(hub.file_requests()) == 1
        with pytest.raises(LibraryError) as caught:
            repair_plan(verify(only(library)))
        assert caught.value.code == "library.nothing_to_repair"


def test_a_model_is_found_by_what_people_type(library: Library, tmp_path: Path) -> None:
    put_model(tmp_path / "models" / "someone" / "LLaDA2.1-tiny")
    put_model(tmp_path / "models" / "someone" / "LLaDA2.1-tiny@bbbbbbbb", commit="b" * 40)
    put_model(tmp_path / "models" / "single")
    path = tmp_path / "models" / "someone" / "LLaDA2.1-tiny"
    assert library.find(str(path)).path == path
    assert library.find(f"{NAME}@bbbb").commit == "b" * 40
    with pytest.raises(LibraryError) as caught:
        library.find(NAME.upper())
    assert caught.value.code == "library.ambiguous"
    with pytest.raises(LibraryError) as caught:
        library.find("nothing")
    assert caught.value.code == "library.not_found"
