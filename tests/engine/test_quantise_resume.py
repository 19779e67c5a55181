"""An unfinished copy: what a stop, a kill, a full disk or damage leaves, and how it goes on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from folder_maker import copy_folder, edit_tensors
from quantise_runs import EXPERT, SMALL, contents, refused, stopped_run

from engine.checkpoint.quantiser import Choice, QuantiseOptions, quantise
from engine.checkpoint.quantiser.report import LogitDistance
from engine.checkpoint.quantiser.state import JOURNAL, LOCK, PART
from engine.checkpoint.tensor_file import Bytes
from engine.checkpoint.tensor_writer import NewFile
from engine.errors import CheckpointError, RuntimeFailure
from engine.types import LoadProgress


@pytest.fixture(scope="module")
def whole(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run writes."""
    target = tmp_path_factory.mktemp("whole") / "copy"
    quantise(tiny_folder, target, SMALL)
    return contents(target)


def test_a_stopped_copy_is_continued_to_the_same_bytes(
    tiny_folder: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    partial = stopped_run(tiny_folder, tmp_path / "copy")
    assert (partial / JOURNAL).is_file()
    report = quantise(tiny_folder, tmp_path / "copy", SMALL)
    assert report.resumed > 10
    assert len(report.modules) == 48  # those done before are in the report too
    assert contents(tmp_path / "copy") == whole
    assert not partial.exists()


KILLED = """
import os, signal, sys
from engine.checkpoint.quantiser import QuantiseOptions, quantise
def progress(p):
    if p.phase == "Quantising" and p.done_bytes > 300_000:
        os.kill(os.getpid(), signal.SIGKILL)
quantise(sys.argv[1], sys.argv[2], QuantiseOptions(shard_bytes=100_000), progress=progress)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_killed_copy_is_continued_to_the_same_bytes(
    tiny_folder: Path, tmp_path: Path, whole: dict[str, bytes], repo_root: Path
) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", KILLED, str(tiny_folder), str(tmp_path / "copy")],
        cwd=repo_root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert answer.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["copy.partial"]
    assert quantise(tiny_folder, tmp_path / "copy", SMALL).resumed > 10
    assert contents(tmp_path / "copy") == whole


def cut_journal(partial: Path) -> None:
    journal = partial / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-20])


def flip_bytes(partial: Path) -> None:
    """As after a power failure: the journal says done, the disk holds something else."""
    path = partial / "model-00002-of-00005.safetensors"
    data = bytearray(path.read_bytes())
    for offset in range(len(data) - 3000, len(data) - 2000):
        data[offset] ^= 0xFF
    path.write_bytes(data)


def lose_file(partial: Path) -> None:
    (partial / "model-00001-of-00005.safetensors").unlink()


@pytest.mark.parametrize("damage", [cut_journal, flip_bytes, lose_file])
def test_what_an_unfinished_copy_says_is_checked_before_it_is_trusted(
    tiny_folder: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    damage: Callable[[Path], None],
) -> None:
    partial = stopped_run(tiny_folder, tmp_path / "copy")
    damage(partial)
    report = quantise(tiny_folder, tmp_path / "copy", SMALL)
    assert report.resumed > 0
    assert contents(tmp_path / "copy") == whole


def test_other_options_or_another_source_do_not_continue_a_copy(
    tiny_folder: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder = copy_folder(tiny_folder, tmp_path / "source")
    target = tmp_path / "copy"
    partial = stopped_run(folder, target)
    before = contents(partial)
    for options in (
        QuantiseOptions(shard_bytes=100_000, layout="compressed-tensors"),
        QuantiseOptions(shard_bytes=100_000, shared_scales=False),
        QuantiseOptions(shard_bytes=100_000, choice=Choice(exclude=(EXPERT,))),
    ):
        with pytest.raises(CheckpointError) as caught:
            quantise(folder, target, options)
        assert caught.value.code == "quantise.other_partial"
    edit_tensors(folder, lambda tensors: tensors[f"{EXPERT}.weight"].mul_(2))
    with pytest.raises(CheckpointError) as caught:
        quantise(folder, target, SMALL)
    assert caught.value.code == "quantise.other_partial"
    assert contents(partial) == before
    edit_tensors(folder, lambda tensors: tensors[f"{EXPERT}.weight"].div_(2))
    report = quantise(folder, target, QuantiseOptions(shard_bytes=100_000, restart=True))
    assert report.resumed == 0
    assert contents(target) == whole


@pytest.mark.parametrize("names", [[LOCK], [LOCK, PART]])
def test_a_copy_killed_before_its_journal_is_begun_again(
    tiny_folder: Path, tmp_path: Path, whole: dict[str, bytes], names: list[str]
) -> None:
    partial = tmp_path / "copy.partial"
    partial.mkdir()
    for name in names:
        (partial / name).write_bytes(b"")
    quantise(tiny_folder, tmp_path / "copy", SMALL)
    assert contents(tmp_path / "copy") == whole


def test_starting_over_keeps_the_journal_until_the_rest_is_gone(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = stopped_run(tiny_folder, tmp_path / "copy")
    gone: list[str] = []
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        gone.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    quantise(tiny_folder, tmp_path / "copy", QuantiseOptions(shard_bytes=100_000, restart=True))
    assert len(gone) > 2
    assert gone.index(JOURNAL) == len(gone) - 3  # then journal and lock of the finished copy
    assert not partial.exists()


def test_every_file_is_on_the_disk_before_the_copy_is_in_its_place(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    fsync, rename = os.fsync, Path.rename
    missing: list[str] = []

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def check(path: Path, target: Path) -> Path:
        missing.extend(item.name for item in path.iterdir() if item.stat().st_ino not in synced)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", check)
    quantise(tiny_folder, tmp_path / "copy", SMALL)
    assert (len(synced) > 5, missing) == (True, [])


def test_two_processes_do_not_write_one_copy(tiny_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"

    def second(progress: LoadProgress) -> None:
        if progress.phase == "Quantising" and not codes:
            codes.append(refused(tiny_folder, target).code)

    codes: list[str] = []
    quantise(tiny_folder, target, QuantiseOptions(), progress=second)
    assert codes == ["quantise.busy"]
    assert not (target / LOCK).exists()


def test_a_disk_without_room_is_refused_before_the_work(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    error = refused(tiny_folder, tmp_path / "copy")
    assert error.code == "quantise.no_space"
    assert "0.00 GB are free" in error.message
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "quantise.no_space"), (errno.EIO, "quantise.unwritable")],
)
def test_a_disk_that_fails_on_the_way_keeps_what_is_done(
    tiny_folder: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: str,
) -> None:
    write, count = NewFile.write, 0

    def failing(self: NewFile, name: str, begin: int, data: Bytes) -> None:
        nonlocal count
        count += 1
        if count > 100:
            raise OSError(number, os.strerror(number))
        write(self, name, begin, data)

    with monkeypatch.context() as patch:
        patch.setattr(NewFile, "write", failing)
        with pytest.raises(CheckpointError) as caught:
            quantise(tiny_folder, tmp_path / "copy", SMALL)
    assert caught.value.code == code
    assert not (tmp_path / "copy").exists()
    assert quantise(tiny_folder, tmp_path / "copy", SMALL).resumed > 10
    assert contents(tmp_path / "copy") == whole


@pytest.mark.parametrize("during", ["the first check", "the last check", "the comparison"])
def test_a_stop_outside_the_writing_ends_it_too(
    tiny_folder: Path, tmp_path: Path, whole: dict[str, bytes], during: str
) -> None:
    stop = threading.Event()

    def progress(at: LoadProgress) -> None:
        if during == "the last check" and at.phase == "Quantising":
            stop.set() if at.done_bytes == at.total_bytes else stop.clear()

    def compare(source: Path, copy: Path) -> LogitDistance:
        stop.set()
        raise RuntimeFailure("compare.stopped", "The comparison was stopped.", "Start it again.")

    if during == "the first check":
        stop.set()
    with pytest.raises(RuntimeFailure) as caught:
        quantise(
            tiny_folder, tmp_path / "copy", SMALL, compare=compare, progress=progress, stop=stop
        )
    assert caught.value.code == "quantise.stopped"
    assert not (tmp_path / "copy").exists()
    quantise(tiny_folder, tmp_path / "copy", SMALL)
    assert contents(tmp_path / "copy") == whole
