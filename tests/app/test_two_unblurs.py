"""Two windows, or a window and a command, at once: neither loses what the other was told."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from hub_server import Trouble, wait_until
from library_models import put_model
from transfers import QUICK, plan_of, serving

from app.backend.library.folders import FolderList
from app.backend.library.library import Library
from app.backend.transfer.queue import DownloadQueue, State


def queue_in(folder: Path) -> DownloadQueue:
    return DownloadQueue(folder / "downloads.json", lambda _: None, policy=QUICK)


def add_folder(store: Path, default: Path, added: Path) -> None:
    FolderList(store, default, None).add(added)


def test_the_second_leaves_the_downloads_to_the_first_and_says_so(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    with serving(400_000) as (hub, repository):
        hub.trouble = lambda path: Trouble(slow=0.05) if "lfs" in path else None
        first, plan = queue_in(tmp_path), plan_of(hub, repository)
        first.start()
        first.add(plan, root)
        wait_until(lambda: first.views()[0].done_bytes > 0)
        second = queue_in(tmp_path)
        second.start()
        assert second.views() == ()
        assert second.problem is not None
        assert "Another Unblur" in second.problem
        small = plan_of(hub, repository, "config.json")
        other = tmp_path / "other"
        other.mkdir()
        small = type(small)(small.repo_id, "b" * 40, small.endpoint, small.files)
        second.add(small, other)  # refused by the hub, which has no such version, but tried
        wait_until(lambda: second.views()[0].state is State.FAILED)
        second.stop()
        hub.trouble = lambda _path: None
        wait_until(lambda: first.views()[0].state is State.DONE)
        first.stop()
    third = queue_in(tmp_path)
    assert [view.repo_id for view in third.views()] == [plan.repo_id]
    assert third.views()[0].state is State.DONE


def test_once_the_first_has_ended_the_list_is_anybodys(tmp_path: Path) -> None:
    first = queue_in(tmp_path)
    first.start()
    first.stop()
    second = queue_in(tmp_path)
    second.start()
    assert second.problem is None
    first.stop()  # once more: it must not write over the second's list
    second.stop()


def test_a_folder_that_another_process_added_is_not_written_over(tmp_path: Path) -> None:
    for name in ("one", "two"):
        put_model(tmp_path / name / "a" / "b")
    store, default = tmp_path / "library.json", tmp_path / "models"
    library = Library(store, default, None)
    library.folders.add(tmp_path / "one")
    process = multiprocessing.get_context("spawn").Process(
        target=add_folder, args=(store, default, tmp_path / "two")
    )
    process.start()
    process.join()
    library.scan()  # writes how many models each folder has
    kept = {folder.path for folder in FolderList(store, default, None).all()}
    assert kept == {default, tmp_path / "one", tmp_path / "two"}
    assert {folder.path for folder in library.folders.all()} == kept


def test_a_list_that_was_deleted_or_damaged_meanwhile_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    store, default = tmp_path / "library.json", tmp_path / "models"
    folders = FolderList(store, default, None)
    for spoil in (store.unlink, lambda: store.write_text("{")):
        folders.add(tmp_path / "one")
        spoil()
        folders.add(tmp_path / "two")
        kept = {folder.path for folder in FolderList(store, default, None).all()}
        assert kept == {default, tmp_path / "one", tmp_path / "two"}
        folders.remove(tmp_path / "two")
