"""Downloads side by side: paused, cancelled, killed, restarted, published whole or not at all."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import Blob, HubServer, Repository, Trouble, wait_until
from transfers import NAME, QUICK, model_files, noise, plan_of, serving

from app.backend.transfer import download
from app.backend.transfer.faults import TransferError
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.part_file import PartFile
from app.backend.transfer.plan import DownloadPlan, read_manifest
from app.backend.transfer.progress import Progress, Speedometer
from app.backend.transfer.queue import DownloadQueue, DownloadView, State

REPO = Path(__file__).resolve().parents[2]


class Running:
    """A started queue in a folder, stopped at the end."""

    def __init__(self, folder: Path, at_once: int = 2) -> None:
        self.root = folder / "models"
        self.root.mkdir(parents=True, exist_ok=True)
        self.changes = 0
        self.store = folder / "downloads.json"
        self.queue = DownloadQueue(
            self.store, lambda _: None, self._changed, policy=QUICK, at_once=at_once
        )

    def _changed(self) -> None:
        self.changes += 1

    def __enter__(self) -> Running:
        self.queue.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.stop()

    def view(self, identity: str) -> DownloadView:
        return next(view for view in self.queue.views() if view.id == identity)

    def wait(self, identity: str, state: State) -> DownloadView:
        wait_until(lambda: self.view(identity).state is state)
        return self.view(identity)


def assert_published(path: Path, hub: HubServer, repository: Repository) -> None:
    """The folder has exactly the needed files with the right bytes, and its manifest."""
    plan = plan_of(hub, repository)
    names = {file.path for file in plan.files} | {"unblur-model.json"}
    assert {p.name for p in path.iterdir()} == names
    for file in plan.files:
        blob = repository.files[file.path]
        assert (path / file.path).read_bytes() == blob.read(0, blob.size)
    manifest = read_manifest(path)
    assert manifest is not None
    assert (manifest.repo_id, manifest.commit) == (repository.name, repository.commit)
    assert manifest.files == plan.files


def test_a_model_is_published_under_its_own_name(tmp_path: Path) -> None:
    with serving(70_000, 50_000) as (hub, repository), Running(tmp_path) as running:
        identity = running.queue.add(plan_of(hub, repository), running.root)
        view = running.wait(identity, State.DONE)
        assert view.path == running.root / "someone" / "LLaDA2.1-tiny"
        assert view.done_bytes == view.total_bytes
        assert_published(view.path, hub, repository)
        assert list((running.root / ".unblur" / "downloads").iterdir()) == []
        running.queue.forget(identity)
        assert running.queue.views() == ()
        assert running.changes >= 2


def test_what_a_kill_left_beside_the_files_is_not_published(tmp_path: Path) -> None:
    with serving(9000) as (hub, repository), Running(tmp_path) as running:
        plan = plan_of(hub, repository)
        folder = download.unfinished_folder(running.root, plan.id)
        folder.mkdir(parents=True)
        (folder / "model.safetensors.part.jsonx1y2.part").write_text("half a note")
        running.queue.add(plan, running.root)
        path = running.wait(plan.id, State.DONE).path
        assert path is not None
        assert_published(path, hub, repository)


@pytest.mark.parametrize("name", ["Modèle 模型", "a\u3000b (ideographic space)", "Ünïcödé 🌫"])
def test_folders_of_any_script_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / name
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(home))
    with serving(9000) as (hub, repository), Running(home) as running:
        identity = running.queue.add(plan_of(hub, repository), running.root)
        view = running.wait(identity, State.DONE)
        assert view.path is not None
        assert_published(view.path, hub, repository)


def test_a_pause_is_quick_and_keeps_every_byte(tmp_path: Path) -> None:
    with serving(400_000) as (hub, repository), Running(tmp_path) as running:
        hub.trouble = lambda _path: Trouble(slow=0.3, piece=100_000)
        identity = running.queue.add(plan_of(hub, repository), running.root)
        wait_until(lambda: running.view(identity).done_bytes >= 100_000)
        begun = time.monotonic()
        running.queue.pause(identity)
        assert time.monotonic() - begun < 2
        assert running.view(identity).state is State.PAUSED
        wait_until(lambda: running.view(identity).bytes_per_second is None)
        hub.trouble = lambda _path: None
        running.queue.resume(identity)
        view = running.wait(identity, State.DONE)
        assert view.path is not None
        assert_published(view.path, hub, repository)
        ranges = [r.headers.get("range") for r in hub.file_requests() if "/lfs/" in r.path]
        assert len(ranges) == 2
        assert ranges[1] is not None


def test_of_two_downloads_one_is_cancelled_and_the_other_ends_well(tmp_path: Path) -> None:
    stay = Repository("someone/stay", model_files(300_000))
    go = Repository("someone/go", model_files(300_000))
    with HubServer(stay, go) as hub, Running(tmp_path) as running:
        hub.trouble = lambda _path: Trouble(slow=0.02, piece=20_000)
        first = running.queue.add(plan_of(hub, stay), running.root)
        second = running.queue.add(plan_of(hub, go), running.root)
        wait_until(lambda: all(v.done_bytes > 20_000 for v in running.queue.views()))
        running.queue.cancel(second)
        assert [view.id for view in running.queue.views()] == [first]
        view = running.wait(first, State.DONE)
        assert view.path is not None
        assert_published(view.path, hub, stay)
        wait_until(lambda: list((running.root / ".unblur" / "downloads").iterdir()) == [])
        assert [p.name for p in (running.root / "someone").iterdir()] == ["stay"]


def test_what_was_cancelled_can_be_asked_for_again_at_once(tmp_path: Path) -> None:
    with serving(300_000) as (hub, repository), Running(tmp_path) as running:
        hub.trouble = lambda _path: Trouble(slow=0.05, piece=50_000)
        plan = plan_of(hub, repository)
        running.queue.add(plan, running.root)
        wait_until(lambda: running.view(plan.id).done_bytes > 50_000)
        running.queue.cancel(plan.id)
        hub.trouble = lambda _path: None
        running.queue.add(plan, running.root)
        view = running.wait(plan.id, State.DONE)
        assert view.path is not None
        assert_published(view.path, hub, repository)


def test_only_so_many_run_at_once_and_the_rest_waits(tmp_path: Path) -> None:
    repositories = [Repository(f"someone/m{i}", model_files(60_000)) for i in range(3)]
    with HubServer(*repositories) as hub, Running(tmp_path, at_once=1) as running:
        hub.trouble = lambda _path: Trouble(slow=0.02, piece=20_000)
        for repository in repositories:
            running.queue.add(plan_of(hub, repository), running.root)
        most = 0
        while running.queue.busy:
            states = [view.state for view in running.queue.views()]
            most = max(most, states.count(State.RUNNING))
            time.sleep(0.005)
        assert most == 1
        assert {view.state for view in running.queue.views()} == {State.DONE}


def test_the_queue_survives_a_restart(tmp_path: Path) -> None:
    with serving(300_000) as (hub, repository):
        hub.trouble = lambda _path: Trouble(slow=0.3, piece=60_000)
        with Running(tmp_path) as running:
            plan = plan_of(hub, repository)
            running.queue.add(plan, running.root)
            wait_until(lambda: running.view(plan.id).done_bytes > 60_000)
        hub.trouble = lambda _path: None
        again = Running(tmp_path)
        assert again.view(plan.id).state is State.QUEUED
        assert again.view(plan.id).done_bytes > 60_000
        with again:
            path = again.wait(plan.id, State.DONE).path
        assert path is not None
        assert_published(path, hub, repository)


@pytest.mark.parametrize("text", ["{", '{"version": 1, "downloads": [{}]}', "[]"])
def test_a_damaged_queue_is_kept_aside_and_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "downloads.json").write_text(text)
    queue = DownloadQueue(tmp_path / "downloads.json", lambda _: None)
    assert queue.views() == ()
    assert queue.problem is not None
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_text() == text
    assert aside.name in queue.problem


def test_a_queue_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    text = '{"version": 99, "downloads": []}'
    (tmp_path / "downloads.json").write_text(text)
    queue = DownloadQueue(tmp_path / "downloads.json", lambda _: None)
    assert "newer" in (queue.problem or "")
    queue.stop()
    assert (tmp_path / "downloads.json").read_text() == text


def test_a_failure_is_shown_and_a_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(100_000) as (hub, repository), Running(tmp_path) as running:
        hub.trouble = lambda path: Trouble(status=503) if "/lfs/" in path else None
        identity = running.queue.add(plan_of(hub, repository), running.root)
        view = running.wait(identity, State.FAILED)
        assert view.problem is not None
        assert view.problem.code == "transfer.server"
        assert not (running.root / "someone").exists()
        hub.trouble = lambda _path: None
        running.queue.resume(identity)
        path = running.wait(identity, State.DONE).path
        assert path is not None
        assert_published(path, hub, repository)


def test_too_little_room_is_said_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(100_000) as (hub, repository), Running(tmp_path) as running:
        monkeypatch.setattr(
            download.shutil, "disk_usage", lambda _path: SimpleNamespace(free=download.MARGIN)
        )
        identity = running.queue.add(plan_of(hub, repository), running.root)
        view = running.wait(identity, State.FAILED)
        assert view.problem is not None
        assert view.problem.code == "transfer.disk_full"
        assert hub.requests == []
        monkeypatch.undo()
        running.queue.resume(identity)
        running.wait(identity, State.DONE)


def test_an_absent_models_folder_is_not_made(tmp_path: Path) -> None:
    with serving(100) as (hub, repository), Running(tmp_path) as running:
        drive = tmp_path / "drive" / "models"
        identity = running.queue.add(plan_of(hub, repository), drive)
        view = running.wait(identity, State.FAILED)
        assert view.problem is not None
        assert view.problem.code == "transfer.folder_absent"
        assert not drive.parent.exists()


def test_the_same_model_is_not_fetched_twice(tmp_path: Path) -> None:
    with serving(100_000) as (hub, repository), Running(tmp_path) as running:
        hub.trouble = lambda _path: Trouble(slow=0.02, piece=20_000)
        plan = plan_of(hub, repository)
        running.queue.add(plan, running.root)
        with pytest.raises(TransferError) as caught:
            running.queue.add(plan, running.root)
        assert caught.value.code == "transfer.already_queued"
        running.wait(plan.id, State.DONE)
        with pytest.raises(TransferError) as caught:
            running.queue.add(plan, running.root)
        assert caught.value.code == "transfer.already_here"


def test_a_kill_between_publishing_and_noting_it_ends_as_done(tmp_path: Path) -> None:
    with serving(5_000) as (hub, repository):
        with Running(tmp_path) as running:
            plan = plan_of(hub, repository)
            running.queue.add(plan, running.root)
            running.wait(plan.id, State.DONE)
        noted = running.store.read_text()
        running.store.write_text(noted.replace('"done"', '"queued"'))
        hub.requests.clear()
        with Running(tmp_path) as again:
            view = again.wait(plan.id, State.DONE)
        assert view.path == running.root / "someone" / "LLaDA2.1-tiny"
        assert hub.requests == []


def test_somebody_else_s_folder_is_never_written_over(tmp_path: Path) -> None:
    with serving(5_000) as (hub, repository), Running(tmp_path) as running:
        plan = plan_of(hub, repository)
        mine = running.root / "someone" / "LLaDA2.1-tiny"
        mine.mkdir(parents=True)
        (mine / "mine.txt").write_text("keep")
        running.queue.add(plan, running.root)
        path = running.wait(plan.id, State.DONE).path
        assert path == mine.with_name(f"{mine.name}@{plan.commit[:8]}")
        assert [p.name for p in mine.iterdir()] == ["mine.txt"]


def test_another_version_lies_beside_the_first(tmp_path: Path) -> None:
    with serving(100) as (hub, repository), Running(tmp_path) as running:
        running.queue.add(plan_of(hub, repository), running.root)
        wait_until(lambda: not running.queue.busy)
        repository.files["config.json"] = Blob(b'{"model_type": "llada2_moe", "new": 1}')
        plan = plan_of(hub, repository)
        running.queue.add(plan, running.root)
        path = running.wait(plan.id, State.DONE).path
        assert path is not None
        assert path.name == f"LLaDA2.1-tiny@{repository.commit[:8]}"
        assert len(list(path.parent.iterdir())) == 2


CHILD = """
import sys
from pathlib import Path
from app.backend.transfer.fetch import Policy
from app.backend.transfer.queue import DownloadQueue
folder = Path(sys.argv[1])
queue = DownloadQueue(folder / "downloads.json", lambda _: None, policy=Policy(first_wait=0.01))
print("up", flush=True)
queue.start()
import time
while queue.busy:
    time.sleep(0.01)
queue.stop()
"""


def test_twenty_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """The app is killed without warning, twenty times; the last start ends the download."""
    choose, longest = random.Random(11), 0.12
    with serving(2_000_000, 300_000, 5_000) as (hub, repository):
        hub.trouble = lambda _path: Trouble(slow=0.01, piece=10_000)
        running = Running(tmp_path)
        plan = plan_of(hub, repository)
        running.queue.add(plan, running.root)
        command = [sys.executable, "-c", CHILD, str(tmp_path)]
        seen = [0]
        for _ in range(20):
            child = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE)
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(choose.uniform(0.0, longest))
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            seen.append(Running(tmp_path).view(plan.id).done_bytes)
            if seen[-1] == seen[-2]:  # a slow machine: let it come further
                longest *= 1.3
        assert seen == sorted(seen), "bytes were lost"
        hub.trouble = lambda _path: None
        with Running(tmp_path) as last:
            path = last.wait(plan.id, State.DONE).path
        assert path is not None
        assert_published(path, hub, repository)
        assert len(set(seen)) >= 6, "the kills did not fall into the transfer"


def test_two_processes_do_not_write_the_same_download(tmp_path: Path) -> None:
    with serving(300_000) as (hub, repository), Running(tmp_path) as running:
        hub.trouble = lambda _path: Trouble(slow=0.3, piece=50_000)
        plan = plan_of(hub, repository)
        running.queue.add(plan, running.root)
        wait_until(lambda: running.view(plan.id).done_bytes > 50_000)
        other = download.Download(plan, running.root, lambda _: None, QUICK)
        with pytest.raises(TransferError) as caught:
            other.run()
        assert caught.value.code == "transfer.in_use"


def test_a_file_of_60_gb_is_kept_account_of_in_little_memory(tmp_path: Path) -> None:
    """The first megabytes of a virtual file arrive; then the figures of the whole are counted."""
    size, zeros = 60_000_000_000, bytes(1 << 20)
    blob = Blob(lfs=True, size=size, read=lambda a, b: zeros[: b - a], sha256="ab" * 32)
    repository = Repository(NAME, {"model.safetensors": blob, "config.json": Blob(b"{}")})
    with HubServer(repository) as hub, Running(tmp_path) as running:
        tracemalloc.start()
        plan = plan_of(hub, repository)
        running.queue.add(plan, running.root)
        wait_until(lambda: running.view(plan.id).done_bytes > 8_000_000)
        running.queue.pause(plan.id)
        running.queue.stop()
        progress = Progress(size)
        for _ in range(size >> 18):  # every buffer of it
            progress.received(1 << 18)
        assert progress.done > 0.99 * size
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 12_000_000
        files = list((running.root / ".unblur" / "downloads" / plan.id).iterdir())
        notes = sum(p.stat().st_size for p in files if p.suffix == ".json")
        assert notes + running.store.stat().st_size < 5_000


def test_speed_and_time_left_are_unknown_before_they_are_known() -> None:
    clock = [0.0]
    progress = Progress(10_000, lambda: clock[0])
    progress.received(100)
    assert progress.figures()[:3] == (100, None, None)
    for _ in range(40):
        clock[0] += 0.25
        progress.received(100)
    done, rate, left, waiting = progress.figures()
    assert (done, waiting) == (4100, "")
    assert rate == pytest.approx(400, rel=0.05)
    assert left == pytest.approx((10_000 - 4100) / 400, rel=0.05)
    progress.waiting("Stalled.", 4)
    assert "Stalled. Trying again in 4 s." in progress.figures()[3]
    progress.kept(5)
    assert "Checking" in progress.figures()[3]
    progress.received(1)
    assert progress.figures()[3] == ""


def test_a_stall_brings_the_speed_to_zero() -> None:
    clock = [0.0]
    meter = Speedometer(lambda: clock[0])
    meter.add(1000)
    clock[0] = 60.0
    assert meter.rate() == 0


def test_repaired_files_replace_the_bad_ones_in_place(tmp_path: Path) -> None:
    with serving(100_000) as (hub, repository), Running(tmp_path) as running:
        plan = plan_of(hub, repository)
        running.queue.add(plan, running.root)
        path = running.wait(plan.id, State.DONE).path
        assert path is not None
        (path / "model.safetensors").write_bytes(noise(50))
        bad = plan_of(hub, repository, "model.safetensors")
        repair = DownloadPlan(bad.repo_id, bad.commit, bad.endpoint, bad.files, into=path)
        hub.requests.clear()
        running.queue.add(repair, running.root)
        view = running.wait(repair.id, State.DONE)
        assert view.is_repair
        assert view.path == path
        assert_published(path, hub, repository)
        assert {r.path.rpartition("/")[2].partition("?")[0] for r in hub.requests} == {
            "model.safetensors"
        }


@pytest.mark.parametrize(
    "name", ["../evil", "a/b", "C:x", "con.json", "x.", "", ".", "a\\b", "n\0"]
)
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="file name"):
        RemoteFile(name, 1, sha256="ab" * 32)


def test_no_thread_is_left_and_no_file_open(tmp_path: Path) -> None:
    before = threading.active_count()
    with serving(50_000) as (hub, repository), Running(tmp_path) as running:
        running.queue.add(plan_of(hub, repository), running.root)
        wait_until(lambda: not running.queue.busy)
    assert threading.active_count() == before
    if sys.platform == "linux":
        held = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ]
        assert [name for name in held if str(tmp_path) in name] == []


def test_a_plan_comes_back_from_json_as_it_was() -> None:
    plan = DownloadPlan(
        "a/b", "c" * 40, "https://hub", (RemoteFile("x", 1, git_sha1="d" * 40),), "mit", Path("m")
    )
    assert DownloadPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    for broken in ({}, [], {**plan.to_json(), "files": [1]}, {**plan.to_json(), "repo_id": ".."}):
        with pytest.raises(ValueError, match=r"."):
            DownloadPlan.from_json(broken)


def test_the_part_file_keeps_its_place_after_a_restart(tmp_path: Path) -> None:
    from app.backend.transfer.http import Source

    file = RemoteFile("f", 10, git_sha1="0" * 40)
    part = PartFile(tmp_path, file, Source("http://x"))
    part.open(lambda _n: None)
    part.append(b"12345")
    part.restart()
    assert part.position == 0
    part.append(b"1234567890")
    assert not part.is_right
    part.close()
    assert (tmp_path / "f.part").read_bytes() == b"1234567890"
