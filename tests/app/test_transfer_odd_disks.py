"""A models folder that changes under a download: read-only, gone, or with something in the way."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from hub_server import HubServer, Repository, Trouble, wait_until
from transfers import QUICK, plan_of, serving

from app.backend.transfer import download
from app.backend.transfer.download import Download
from app.backend.transfer.faults import TransferError
from app.backend.transfer.queue import DownloadQueue, State


def run(hub: HubServer, repository: Repository, root: Path) -> Path:
    return Download(plan_of(hub, repository), root, lambda _: None, QUICK).run()


def test_a_folder_that_takes_no_lock_is_said_and_not_a_crash(tmp_path: Path) -> None:
    with serving(2000) as (hub, repository):
        place = Download(plan_of(hub, repository), tmp_path, lambda _: None, QUICK).folder
        place.with_suffix(".lock").mkdir(parents=True)
        with pytest.raises(TransferError) as caught:
            run(hub, repository, tmp_path)
        assert caught.value.code == "transfer.not_writable"
        place.with_suffix(".lock").rmdir()
        assert run(hub, repository, tmp_path).is_dir()


def test_a_disk_that_leaves_before_the_first_byte_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_path: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(download.shutil, "disk_usage", gone)
    with serving(2000) as (hub, repository), pytest.raises(TransferError) as caught:
        run(hub, repository, tmp_path)
    assert caught.value.code == "transfer.not_writable"


@pytest.mark.parametrize("what", ["the unfinished download", "the models folder"])
def test_a_folder_that_vanishes_meanwhile_is_said_and_a_resume_goes_on(
    tmp_path: Path, what: str
) -> None:
    root, away = tmp_path / "models", tmp_path / "away"
    root.mkdir()
    with serving(300_000) as (hub, repository):
        hub.trouble = lambda path: Trouble(slow=0.05, piece=20_000) if "lfs" in path else None
        queue = DownloadQueue(tmp_path / "downloads.json", lambda _: None, policy=QUICK)
        queue.start()
        identity = queue.add(plan_of(hub, repository), root)
        wait_until(lambda: queue.views()[0].done_bytes > 50_000)
        if what == "the models folder":
            root.rename(away)
        else:
            shutil.rmtree(root / ".unblur")
        hub.trouble = lambda _path: None
        wait_until(lambda: not queue.busy)
        view = queue.views()[0]
        assert view.state is State.FAILED
        assert view.problem is not None
        assert view.problem.code in ("transfer.not_writable", "transfer.folder_absent")
        assert not root.exists() or not list(root.glob("*/*"))  # nothing half is published
        if what == "the models folder":
            away.rename(root)
        queue.resume(identity)
        wait_until(lambda: queue.views()[0].state is State.DONE)
        path = queue.views()[0].path
        assert path is not None
        assert (path / "model.safetensors").stat().st_size > 300_000
        queue.stop()


@pytest.mark.parametrize("way", ["owner", "owner/name"])
def test_a_file_in_the_way_of_a_model_is_said_and_kept(tmp_path: Path, way: str) -> None:
    with serving(2000) as (hub, repository):
        owner, name = repository.name.split("/")
        blocked = tmp_path / owner if way == "owner" else tmp_path / owner / name
        blocked.parent.mkdir(exist_ok=True)
        blocked.write_text("mine")
        if way == "owner":
            with pytest.raises(TransferError) as caught:
                run(hub, repository, tmp_path)
            assert caught.value.code == "transfer.not_writable"
        else:
            assert run(hub, repository, tmp_path).name.startswith(f"{name}@")
        assert blocked.read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own there")
def test_a_link_in_the_way_of_a_model_is_not_written_through(tmp_path: Path) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "models"
    elsewhere.mkdir()
    with serving(2000) as (hub, repository):
        owner, name = repository.name.split("/")
        (root / owner).mkdir(parents=True)
        (root / owner / name).symlink_to(elsewhere)
        made = run(hub, repository, root)
        assert made.name != name
        assert list(elsewhere.iterdir()) == []


def test_folders_that_a_network_disk_puts_beside_the_files_are_not_published(
    tmp_path: Path,
) -> None:
    with serving(2000) as (hub, repository):
        place = Download(plan_of(hub, repository), tmp_path, lambda _: None, QUICK).folder
        (place / "@eaDir" / "config.json").mkdir(parents=True)
        model = run(hub, repository, tmp_path)
        assert not (model / "@eaDir").exists()
        assert (model / "config.json").is_file()
